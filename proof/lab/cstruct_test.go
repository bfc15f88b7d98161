package lab

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// cStructs parses structures of bytes and words, as in Amazon's and iPXE's headers. Spans count bits from the
// structure's start: in a little-endian structure from each word's bit 0, in a big-endian one (__be32) from its highest
// bit. A comment such as "7:5 : sq_direction" before a member names bits of the member. Fields of nested structures are
// listed both by their own names and prefixed with "outer.".
func cStructs(text string) map[string]map[string]span {
	p := &cParser{bodies: map[string][]string{}, done: map[string]*cStruct{}, open: map[string]bool{}}
	tokens := cToken.FindAllString(cFlags.ReplaceAllString(text, " "), -1)
	for i := 0; i+2 < len(tokens); i++ {
		if (tokens[i] == "struct" || tokens[i] == "union") && tokens[i+2] == "{" {
			p.bodies[tokens[i+1]] = append([]string{tokens[i]}, tokens[i+3:matching(tokens, i+2)]...)
		}
	}
	all := map[string]map[string]span{}
	for name := range p.bodies {
		all[name] = p.named(name).fields
	}
	return all
}

var (
	cToken = regexp.MustCompile(`(?s)/\*.*?\*/|\w+|[{}\[\];,*:]`)
	cFlags = regexp.MustCompile(`(?m)^[ \t]*#.*$|__attribute(?:__)? *\(\(? *\(? *packed *\)? *\)? *\)`)
	cBits  = regexp.MustCompile(`(?m)^[ \t/*]*(\d+)(?::(\d+))? : (\w+)`)
	cWidth = map[string]int{
		"u8": 8, "u16": 16, "u32": 32, "u64": 64, "uint8_t": 8, "uint16_t": 16, "uint32_t": 32, "uint64_t": 64,
		"__u8": 8, "__u16": 16, "__u32": 32, "__u64": 64, "__aligned_u64": 64, "__s32": 32, "__s64": 64, "__be16": 16,
		"__be32": 32, "__be64": 64,
	}
)

type cStruct struct {
	size   int
	fields map[string]span
}

type cParser struct {
	bodies map[string][]string // "struct" or "union", and the text between the braces
	done   map[string]*cStruct
	open   map[string]bool // structures being parsed, to stop recursion in one that contains itself
}

func (p *cParser) named(name string) *cStruct {
	if s := p.done[name]; s != nil {
		return s
	}
	body := p.bodies[name]
	if body == nil || p.open[name] {
		return &cStruct{}
	}
	p.open[name] = true
	s := p.body(body[1:], body[0] == "union")
	p.open[name] = false
	p.done[name] = s
	return s
}

func (p *cParser) body(t []string, union bool) *cStruct {
	s := &cStruct{fields: map[string]span{}}
	bits := map[string]span{} // bits of the next member, from the comment before it
	part := map[string]span{} // all such bits; a member with the same name takes precedence
	var inside []func()
	for i := 0; i < len(t); {
		if strings.HasPrefix(t[i], "/*") {
			bits = map[string]span{}
			for _, m := range cBits.FindAllStringSubmatch(t[i], -1) {
				hi, _ := strconv.Atoi(m[1])
				lo := hi
				if m[2] != "" {
					lo, _ = strconv.Atoi(m[2])
				}
				bits[m[3]] = span{lo, hi - lo + 1}
			}
			i++
			continue
		}
		var inner *cStruct
		unit := cWidth[t[i]]
		switch {
		case (t[i] == "struct" || t[i] == "union") && i+1 < len(t) && t[i+1] == "{":
			end := matching(t, i+1)
			inner = p.body(t[i+2:min(end, len(t))], t[i] == "union")
			i = end + 1
		case (t[i] == "struct" || t[i] == "union") && i+1 < len(t):
			inner = p.named(t[i+1])
			i += 2
		default:
			i++
		}
		if inner != nil {
			unit = inner.size
		}
		name, n := "", 1
		for ; i < len(t) && t[i] != ";"; i++ {
			switch {
			case t[i] == "[" && i+1 < len(t):
				v, _ := strconv.ParseInt(t[i+1], 0, 32)
				n = min(n*int(v), 1<<20)
				i++
			case name == "":
				name = t[i]
			}
		}
		i++
		off := s.size
		if union {
			off = 0
		}
		add := func(name string, f span) {
			if _, twice := s.fields[name]; !twice {
				s.fields[name] = f
			}
		}
		if name != "" {
			add(name, span{off, unit * n})
		}
		for b, f := range bits {
			if _, twice := part[b]; !twice {
				part[b] = span{off + f.off, f.width}
			}
		}
		if inner != nil {
			for f, at := range inner.fields {
				// a member with the same name takes precedence
				inside = append(inside, func() { add(f, span{off + at.off, at.width}) })
				if name != "" && len(f) < 200 {
					add(name+"."+f, span{off + at.off, at.width})
				}
			}
		}
		bits = map[string]span{}
		s.size = max(s.size, min(off+unit*n, 1<<30))
	}
	for _, add := range inside {
		add()
	}
	for b, f := range part {
		if _, twice := s.fields[b]; !twice {
			s.fields[b] = f
		}
	}
	return s
}

func FuzzCStructs(f *testing.F) {
	f.Add("struct a { /* 7:0 : x */ u8 x[0x8]; struct b c; union { u8 y[1]; } z; }; struct b { struct a a; };")
	f.Add("struct a { struct a a; u8 b[")
	f.Fuzz(func(t *testing.T, text string) { cStructs(text) })
}
