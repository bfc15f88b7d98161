package lab

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// span is a field of a structure that a vendor published, in bits from the structure's start.
type span struct{ off, width int }

// String formats the span as manuals do: a dword's offset and the bits in it, which are counted from the left in a
// big-endian structure.
func (s span) String() string {
	if s.width > 32 || s.off%32+s.width > 32 {
		return fmt.Sprintf("%02xh*%d", s.off/32*4, s.width/32)
	}
	hi := 31 - s.off%32
	return fmt.Sprintf("%02xh.%d:%d", s.off/32*4, hi, hi-s.width+1)
}

// bitStructs parses structures that are declared bit by bit, as in mlx5_ifc.h: an element of an array is a bit. It
// returns the fields of each structure by name. Fields of nested structures are listed both by their own names and
// prefixed with "outer.". If a name is ambiguous, the result has all fields with that name.
func bitStructs(text string) map[string]map[string][]span {
	p := &bitParser{bodies: map[string][]string{}, done: map[string]*bitStruct{}}
	text = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|(?m:^[ \t]*#[^\n]*)`).ReplaceAllString(text, " ")
	tokens := regexp.MustCompile(`\w+|[{}\[\];]`).FindAllString(text, -1)
	for i := 0; i+2 < len(tokens); i++ {
		if (tokens[i] != "struct" && tokens[i] != "union") || tokens[i+2] != "{" {
			continue
		}
		end := matching(tokens, i+2)
		p.bodies[tokens[i]+" "+tokens[i+1]] = tokens[i+3 : end]
		i = end
	}
	all := map[string]map[string][]span{}
	for name := range p.bodies {
		kind, bare, _ := strings.Cut(name, " ")
		if kind == "struct" {
			all[bare] = p.named(name).fields
		}
	}
	return all
}

func matching(tokens []string, i int) int {
	for depth := 0; i < len(tokens); i++ {
		switch tokens[i] {
		case "{":
			depth++
		case "}":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(tokens)
}

type bitStruct struct {
	size   int
	fields map[string][]span
}

func (s *bitStruct) add(name string, f span) {
	for _, was := range s.fields[name] {
		if was == f {
			return
		}
	}
	s.fields[name] = append(s.fields[name], f)
}

type bitParser struct {
	bodies map[string][]string // by "struct name"
	done   map[string]*bitStruct
}

func (p *bitParser) named(name string) *bitStruct {
	if s := p.done[name]; s != nil {
		return s
	}
	p.done[name] = &bitStruct{fields: map[string][]span{}} // stops recursion in a structure that contains itself
	s := p.body(p.bodies[name], strings.HasPrefix(name, "union"))
	p.done[name] = s
	return s
}

// body parses members up to the end: "type name[bits][bits];", "struct name member[n];", or an aggregate without a
// name.
func (p *bitParser) body(t []string, union bool) *bitStruct {
	s := &bitStruct{fields: map[string][]span{}}
	place := func(name string, size int, inner *bitStruct) {
		off := s.size
		if union {
			off = 0
		}
		if inner != nil {
			for n, all := range inner.fields {
				for _, f := range all {
					s.add(n, span{off + f.off, f.width})
					if name != "" {
						s.add(name+"."+n, span{off + f.off, f.width})
					}
				}
			}
		}
		if name != "" {
			s.add(name, span{off, size})
		}
		s.size = max(s.size, off+size)
	}
	for i := 0; i < len(t); {
		var inner *bitStruct
		unit := 1
		aggregate := t[i] == "struct" || t[i] == "union"
		switch {
		case aggregate && i+1 < len(t) && t[i+1] == "{":
			end := matching(t, i+1)
			inner = p.body(t[i+2:end], t[i] == "union")
			i = end + 1
		case aggregate && i+1 < len(t):
			inner = p.named(t[i] + " " + t[i+1])
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
			case t[i] == "[" && i+1 < len(t) && t[i+1] == "]":
				n = 0
			case t[i] == "[" && i+1 < len(t):
				v, _ := strconv.ParseInt(t[i+1], 0, 32)
				n *= int(v)
			case name == "" && t[i] != "]":
				name = t[i]
			}
		}
		i++
		place(name, n*unit, inner)
	}
	return s
}

// defines parses the macros of a header and returns the offsets in their values: "(((_i) < 64) ? (0x01000 + ((_i) *
// 0x40)) : (0x0D000 + ..." gives 1000h and d000h, because factors of an index are ignored.
func defines(text string) map[string][]uint64 {
	all := map[string][]uint64{}
	text = strings.ReplaceAll(text, "\\\n", " ")
	for _, m := range regexp.MustCompile(`(?m)^#define\s+(\w+)(?:\(\w+\))?\s+(.*)$`).FindAllStringSubmatch(text, -1) {
		value, _, _ := strings.Cut(m[2], "/*")
		for _, n := range regexp.MustCompile(`(\*\s*)?0[xX]([0-9a-fA-F]+)`).FindAllStringSubmatch(value, -1) {
			if v, err := strconv.ParseUint(n[2], 16, 64); err == nil && n[1] == "" {
				all[m[1]] = append(all[m[1]], v)
			}
		}
	}
	return all
}

func FuzzBitStructs(f *testing.F) {
	f.Add("struct a_bits { u8 x[0x8]; struct b_bits b; union { u8 y[1]; } z; };")
	f.Add("struct a { struct a a; }; #define X (0x1")
	f.Fuzz(func(t *testing.T, text string) {
		bitStructs(text)
		defines(text)
	})
}
