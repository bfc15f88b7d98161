package setting

import (
	"flag"
	"maps"
	"strings"
)

// Flag makes a command line flag of a setting. name is the flag's, Name with hyphens where it is empty.
func (s *Setting) Flag(f *flag.FlagSet, name string) {
	if name == "" {
		name = strings.ReplaceAll(s.Name(), "_", "-")
	}
	set := func(text string) error {
		v, err := s.read(text)
		if err == nil {
			err = s.apply(v)
		}
		return err
	}
	f.Var(&value{s, set}, name, s.usage())
}

// Flag makes a command line flag of the setting of that key, whose values Assign lays over those of a file: a flag counts wherever the file
// is named. A flag of a list may be repeated. name is as in Setting.Flag.
func (t *Table) Flag(f *flag.FlagSet, key, name string) {
	s := t.Find(key)
	if name == "" {
		name = strings.ReplaceAll(s.Name(), "_", "-")
	}
	f.Var(&value{s, func(text string) error {
		v, err := s.read(text)
		if err != nil {
			return err
		}
		if list, ok := v.([]any); ok {
			if before, ok := t.flags[key].value.([]any); ok {
				v = append(before, list...)
			}
		}
		if t.flags == nil {
			t.flags = map[string]assigned{}
		}
		t.flags[key] = assigned{v, func(int) string { return "-" + name }}
		return nil
	}}, name, s.usage())
}

// Assign lays the values of the flags over those that were read.
func (t *Table) Assign() { maps.Copy(t.assigned, t.flags) }

// value is a setting as package flag wants it.
type value struct {
	of  *Setting
	set func(text string) error
}

func (v *value) String() string        { return "" } // the default stands in the description
func (v *value) Set(text string) error { return v.set(text) }
func (v *value) IsBoolFlag() bool      { return v.of.Kind == Boolean }

// Choices are the values that the flag takes, nil where they are not a few.
func (v *value) Choices() []string { return v.of.Values() }

// Values are what a setting takes, as it is written on a command line: nil where that is not one of a few.
func (s *Setting) Values() (names []string) {
	if s.Kind == Boolean {
		return []string{"true", "false"}
	}
	for _, c := range s.Choices {
		names = append(names, c.Name)
	}
	return names
}

// usage is a flag's description, in lines that fit a terminal.
func (s *Setting) usage() string {
	doc := strings.ReplaceAll(s.Doc, "`", "") // package flag would take what they enclose for the value's name
	var b strings.Builder
	for paragraph := range strings.SplitSeq(doc, "\n\n") {
		b.WriteString(Wrap(paragraph, "", usageWidth))
	}
	b.WriteString(choices(s.Choices, "  ", usageWidth))
	return strings.TrimSuffix(b.String(), "\n") + " (default " + s.Default + ")"
}

const usageWidth = 110
