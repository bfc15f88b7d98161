package setting

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// Parse takes the values in doc, which has that name in messages.
func (t *Table) Parse(file, doc string) error {
	where := func(line int) string { return fmt.Sprintf("%s:%d", file, max(1, line)) }
	if line, problem := checkBounds(doc); problem != "" {
		return &Error{where(line), "", problem}
	}
	var root toml.Primitive
	md, err := toml.Decode(doc, &root)
	var broken toml.ParseError
	switch {
	case errors.As(err, &broken):
		return &Error{where(broken.Position.Line), broken.LastKey, oneLine(broken.Message)}
	case err != nil:
		return &Error{where(1), "", err.Error()}
	}
	d := &document{doc, &md, root}
	for _, key := range md.Keys() {
		fail := func(k toml.Key, problem string) error {
			return &Error{where(d.line(key)), strings.Join(k, "."), problem}
		}
		section := t.hasSection(key[0])
		value := d.value(key[0])
		table, isTable := value.(map[string]any)
		switch {
		case !isTable && section:
			return fail(key[:1], "is "+article(value)+", must be a section")
		case !isTable && !section:
			if _, list := value.([]map[string]any); !list {
				return fail(key[:1], "unknown key")
			}
			fallthrough
		case !section:
			return fail(key[:1], "unknown section")
		case len(key) == 1:
			continue
		}
		s := t.Find(strings.Join(key[:2], "."))
		if s == nil || strings.Contains(key[1], ".") {
			return fail(key[:2], t.unknown(strings.Join(key[:2], ".")))
		}
		value = table[key[1]]
		line := d.line(key)
		if i, problem := s.mismatch(value); problem != "" {
			return &Error{where(d.elementLine(key, i)), s.Key, problem}
		}
		t.assigned[s.Key] = assigned{value, func(i int) string {
			if i < 0 {
				return where(line)
			}
			return where(d.elementLine(key, i))
		}}
	}
	return nil
}

func (t *Table) hasSection(name string) bool {
	for i := range t.Settings {
		if t.Settings[i].Section() == name {
			return true
		}
	}
	return false
}

// document is a parsed TOML file.
type document struct {
	text string
	md   *toml.MetaData
	root toml.Primitive
}

func (d *document) value(key string) any {
	var all map[string]any
	if d.md.PrimitiveDecode(d.root, &all) != nil {
		return nil
	}
	return all[key]
}

// line returns the line of a key, 0 if unknown. The library reports positions only in errors, so this provokes one.
func (d *document) line(key toml.Key) int {
	p := d.root
	for _, part := range key {
		var inner map[string]toml.Primitive
		if d.md.PrimitiveDecode(p, &inner) != nil {
			break
		}
		next, ok := inner[part]
		if !ok {
			break
		}
		p = next
	}
	var e toml.ParseError
	if errors.As(d.md.PrimitiveDecode(p, refusal{}), &e) {
		return e.Position.Line
	}
	return 0
}

// refusal takes no value.
type refusal struct{}

func (refusal) UnmarshalTOML(any) error { return errors.New("refused") }

// elementLine returns the line of an element of a list, or the key's line if i is negative. The library does not report
// the position of an element, so this finds what follows the i-th comma between the brackets.
func (d *document) elementLine(key toml.Key, i int) int {
	first := d.line(key)
	if i < 0 || first < 1 {
		return first
	}
	_, list, ok := strings.Cut(strings.Join(strings.SplitAfter(d.text, "\n")[first-1:], ""), "=")
	at, depth := first, 0
	if !ok {
		return first
	}
	scan(list, func(_, line int, c byte) bool {
		switch {
		case strings.IndexByte(" \t\r\n", c) >= 0:
			return true
		case depth == 1 && c == ',':
			i--
			return true
		case depth == 1 && i == 0: // the element
			at = first + line - 1
			return false
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
		return depth > 0
	})
	return at
}

// decodeValue reads one value in TOML syntax, and nothing more.
func decodeValue(text string) (any, bool) {
	var doc map[string]any
	if _, err := toml.Decode("v = "+text, &doc); err != nil || len(doc) != 1 {
		return nil, false
	}
	v, ok := doc["v"]
	return v, ok
}

// mismatch describes a wrong type of a value, and returns the index of the element at fault, or -1.
func (s *Setting) mismatch(value any) (element int, problem string) {
	kind, list := s.Kind.elem()
	if !list {
		if !kind.accepts(value) {
			return -1, fmt.Sprintf("is %s, must be %v", article(value), s.Kind)
		}
		return -1, ""
	}
	elements, ok := value.([]any)
	if !ok {
		return -1, fmt.Sprintf("is %s, must be %v", article(value), s.Kind)
	}
	for i, e := range elements {
		if !kind.accepts(e) {
			return i, fmt.Sprintf("has %s, must be %v", article(e), s.Kind)
		}
	}
	return -1, ""
}

func (k Kind) accepts(value any) (ok bool) {
	switch k {
	case Text:
		_, ok = value.(string)
	case Integer:
		_, ok = value.(int64)
	case Boolean:
		_, ok = value.(bool)
	case item:
		return Text.accepts(value) || Integer.accepts(value)
	}
	return ok
}

// article names the TOML type of a value.
func article(value any) string {
	switch value.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case []any:
		return "a list"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "a list of tables"
	}
	return fmt.Sprintf("a %T", value)
}

// quote writes a string in TOML.
func quote(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' || r == '\'' }) {
		// as the package writes it, but 100 times faster: every program formats all defaults at start
		return `"` + s + `"`
	}
	b, err := toml.Marshal(map[string]string{"v": s})
	if err != nil {
		panic(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(string(b), "v ="))
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
