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

// Table is all settings of a program. Values are collected by Read and Set, where later ones replace earlier ones, and checked
// by Apply.
type Table struct {
	Settings []Setting

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
		return fail("unknown key")
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
