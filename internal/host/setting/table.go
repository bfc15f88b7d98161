package setting

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
)

// Error is about an invalid value or an unknown key.
type Error struct {
	Where   string // "FILE:LINE" or "-set"; empty for a default
	Key     string // empty if the file is not valid TOML
	Problem string
}

func (e *Error) Error() string {
	parts := slices.DeleteFunc([]string{e.Where, e.Key, e.Problem}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// Table is all settings of a program. Values are collected by Read and Set, where later ones replace earlier ones, and
// checked by Apply.
type Table struct {
	Settings []Setting
	Removed  map[string]string // keys of earlier versions, and what replaces each

	assigned map[string]assigned // by key
	flags    map[string]assigned // that Assign lays over given
}

type assigned struct {
	value any
	where func(element int) string // "FILE:LINE" of an element, or of the whole if element is -1
}

// New returns a table of these settings.
func New(settings ...Setting) *Table {
	return &Table{Settings: settings, assigned: map[string]assigned{}}
}

// Find returns the setting with that key, or nil.
func (t *Table) Find(key string) *Setting {
	i := slices.IndexFunc(t.Settings, func(s Setting) bool { return s.Key == key })
	if i < 0 {
		return nil
	}
	return &t.Settings[i]
}

// unknown returns the problem with a key that is not in the table.
func (t *Table) unknown(key string) string {
	if instead, ok := t.Removed[key]; ok {
		return "this setting was removed: " + instead
	}
	if near := t.nearest(key); near != "" {
		return "unknown key (did you mean " + near + "?)"
	}
	return "unknown key"
}

// nearest returns the key that a user may have meant: one of the same name, or else the one with the fewest different
// letters, up to two, or a quarter of a longer key; "" if there is none.
func (t *Table) nearest(key string) (near string) {
	if len(key) > 64 {
		return ""
	}
	_, name, dotted := strings.Cut(key, ".")
	if !dotted {
		name = key
	}
	best := max(2, len(key)/4) + 1
	for i := range t.Settings {
		s := &t.Settings[i]
		n := distance(key, s.Key)
		if name == s.Name() {
			n = min(n, 1)
		}
		if n < best {
			near, best = s.Key, n
		}
	}
	return near
}

// distance returns how many letters must be inserted, deleted, replaced or exchanged with their neighbour to make b of
// a.
func distance(a, b string) int {
	var before, last, row []int // of the shorter a's: two letters, one letter, none
	for i := range len(a) + 1 {
		row = make([]int, len(b)+1)
		for j := range row {
			switch {
			case i == 0 || j == 0:
				row[j] = i + j
				continue
			case a[i-1] == b[j-1]:
				row[j] = last[j-1]
			default:
				row[j] = 1 + min(last[j-1], last[j], row[j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return row[len(b)]
}

// Read reads the values in a TOML file.
func (t *Table) Read(file string) error {
	doc, err := readFile(file)
	if err != nil {
		return err
	}
	return t.Parse(file, doc)
}

// Set assigns one KEY=VALUE. A VALUE that is not valid TOML is a string, and so are the elements of a list, whose
// brackets may be omitted.
func (t *Table) Set(assignment string) error {
	key, text, ok := strings.Cut(assignment, "=")
	key = strings.TrimSpace(key)
	fail := func(problem string) error { return &Error{"-set", key, problem} }
	if !ok {
		return fail("wants KEY=VALUE")
	}
	s := t.Find(key)
	if s == nil {
		return fail(t.unknown(key))
	}
	value, err := s.read(text)
	if err != nil {
		return fail(err.Error())
	}
	t.assigned[key] = assigned{value, func(int) string { return "-set" }}
	return nil
}

// read parses a value from a command line.
func (s *Setting) read(text string) (any, error) {
	if _, problem := checkBounds(text); problem != "" {
		return nil, errors.New(problem)
	}
	text = strings.TrimSpace(text)
	kind, list := s.Kind.elem()
	value := literal(text, kind)
	if list {
		value = elements(text, kind)
	}
	if _, problem := s.mismatch(value); problem != "" {
		return nil, errors.New(problem)
	}
	return value, nil
}

// literal parses one value: a bare word is a string.
func literal(text string, k Kind) any {
	quoted := strings.HasPrefix(text, `"`) || strings.HasPrefix(text, "'")
	if v, ok := decodeValue(text); ok && (k != Text || quoted) {
		return v
	}
	return text
}

// elements parses a list, with or without its brackets.
func elements(text string, k Kind) any {
	inner, open := strings.CutPrefix(text, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !open || !closed {
		inner = text
	}
	if v, ok := decodeValue("[" + inner + "]"); ok {
		return v
	}
	out := []any{}
	for e := range strings.SplitSeq(inner, ",") {
		if e = strings.TrimSpace(e); e != "" {
			out = append(out, literal(e, k))
		}
	}
	return out
}

// Apply checks all values and stores them in their variables, in the table's order.
func (t *Table) Apply() error {
	for i := range t.Settings {
		s := &t.Settings[i]
		g, ok := t.assigned[s.Key]
		if !ok {
			continue
		}
		err := s.put(g.value)
		var e elementError
		switch {
		case errors.As(err, &e):
			return t.FailAt(s.Key, e.index, "%w", e.error)
		case err != nil:
			return t.Fail(s.Key, "%w", err)
		}
	}
	return nil
}

// Unused returns an Error for each setting that differs from its default but has no effect, because the driver does not
// support it or a condition is not met. driver is "" if unknown.
func (t *Table) Unused(driver string) (all []*Error) {
	for i := range t.Settings {
		s := &t.Settings[i]
		problem := ""
		switch {
		case !t.chosen(s):
		case driver != "" && s.Drivers != nil && !slices.Contains(s.Drivers, driver):
			problem = fmt.Sprintf("has no effect with driver %s (it is for %s)", driver, strings.Join(s.Drivers, ", "))
		case s.Needs != nil && !slices.ContainsFunc(s.Needs, t.holds):
			problem = "has no effect without " + strings.Join(s.Needs, " or ")
		}
		if problem != "" {
			all = append(all, &Error{t.assigned[s.Key].where(-1), s.Key, problem})
		}
	}
	return all
}

// WarnUnused logs what Unused returns.
func (t *Table) WarnUnused(driver string, log *slog.Logger) {
	for _, e := range t.Unused(driver) {
		log.Warn("setting not in force", "setting", e.Key, "at", e.Where, "reason", e.Problem)
	}
}

// chosen reports whether a setting has a value other than its default.
func (t *Table) chosen(s *Setting) bool {
	g, ok := t.assigned[s.Key]
	return ok && !s.equals(g.value, s.Default)
}

// equals reports whether value equals the value that text represents.
func (s *Setting) equals(value any, text string) bool {
	v, err := s.read(text)
	return err == nil && reflect.DeepEqual(v, value)
}

// holds reports whether a condition of Setting.Needs is met.
func (t *Table) holds(condition string) bool {
	key, want, named := strings.Cut(condition, "=")
	key, not := strings.CutSuffix(key, "!")
	s := t.Find(key)
	if !named {
		return t.chosen(s)
	}
	g, ok := t.assigned[key]
	if !ok {
		g.value, _ = s.read(s.Default)
	}
	return s.equals(g.value, want) != not
}

// Fail returns an Error about a setting, for checks that concern several. It names the place where the user set it.
func (t *Table) Fail(key, format string, a ...any) error { return t.FailAt(key, -1, format, a...) }

// FailAt is Fail for one element of a list.
func (t *Table) FailAt(key string, element int, format string, a ...any) error {
	e := &Error{Key: key, Problem: fmt.Errorf(format, a...).Error()}
	if g, ok := t.assigned[key]; ok {
		e.Where = g.where(element)
	}
	return e
}
