package setting

import (
	"flag"
	"maps"
	"slices"
	"strings"
)

// flag is the name of the setting's flag.
func (s *Setting) flag() string {
	if s.FlagName != "" {
		return s.FlagName
	}
	return strings.ReplaceAll(s.Name(), "_", "-")
}

// AddFlag adds a command line flag for a setting. It takes effect as soon as it is parsed.
func (s *Setting) AddFlag(f *flag.FlagSet) { f.Var(&value{s, s.Assign}, s.flag(), s.usage()) }

// Assign checks a value from a command line and stores it in the setting's variable.
func (s *Setting) Assign(text string) error {
	v, err := s.read(text)
	if err == nil {
		err = s.put(v)
	}
	return err
}

// ByFlag returns the setting of that flag, nil if there is none.
func (t *Table) ByFlag(name string) *Setting {
	i := slices.IndexFunc(t.Settings, func(s Setting) bool { return s.flag() == name })
	if i < 0 {
		return nil
	}
	return &t.Settings[i]
}

// Flags are the names of all flags.
func (t *Table) Flags() (names []string) {
	for i := range t.Settings {
		names = append(names, t.Settings[i].flag())
	}
	return names
}

// AddFlags adds a command line flag for each setting. Assign applies their values after those of a file, so a flag
// takes precedence wherever the file is named. A flag of a list may be repeated.
func (t *Table) AddFlags(f *flag.FlagSet) {
	t.flags = map[string]assigned{}
	for i := range t.Settings {
		s := &t.Settings[i]
		f.Var(&value{s, func(text string) error {
			v, err := s.read(text)
			if err != nil {
				return err
			}
			if list, ok := v.([]any); ok {
				if before, ok := t.flags[s.Key].value.([]any); ok {
					v = append(before, list...)
				}
			}
			t.flags[s.Key] = assigned{v, func(int) string { return "-" + s.flag() }}
			return nil
		}}, s.flag(), s.usage())
	}
}

// Assign applies the values of the flags over those that were read.
func (t *Table) Assign() { maps.Copy(t.assigned, t.flags) }

// value implements flag.Value for a setting.
type value struct {
	of  *Setting
	set func(text string) error
}

func (v *value) String() string        { return "" } // the description contains the default
func (v *value) Set(text string) error { return v.set(text) }
func (v *value) IsBoolFlag() bool      { return v.of.Kind == Boolean }

// Choices are the values that the flag accepts, nil if they are not a short list.
func (v *value) Choices() []string { return v.of.Values() }

// Values returns the values that a setting accepts, as written on a command line, or nil if they are not a short list.
func (s *Setting) Values() (names []string) {
	if s.Kind == Boolean {
		return []string{"true", "false"}
	}
	for _, c := range s.Choices {
		names = append(names, c.Name)
	}
	return names
}

// usage returns a flag's description, in lines that fit a terminal.
func (s *Setting) usage() string {
	doc := strings.ReplaceAll(s.Doc, "`", "") // package flag would take what they enclose for the value's name
	if s.Arg != "" {
		doc = strings.Replace(doc, s.Arg, "`"+s.Arg+"`", 1)
	}
	var b strings.Builder
	for paragraph := range strings.SplitSeq(doc, "\n\n") {
		b.WriteString(Wrap(paragraph, "", usageWidth))
	}
	b.WriteString(strings.ReplaceAll(choices(s.Choices, "  ", usageWidth), "`", ""))
	text := strings.TrimSuffix(b.String(), "\n")
	if s.Default != `""` {
		text += " (default " + s.Default + ")"
	}
	return text
}

const usageWidth = 110
