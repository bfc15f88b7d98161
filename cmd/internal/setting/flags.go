package setting

import (
	"flag"
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
	if s.Kind == Boolean {
		f.BoolFunc(name, s.usage(), set)
	} else {
		f.Func(name, s.usage(), set)
	}
}

// usage is a flag's description, in lines that fit a terminal.
func (s *Setting) usage() string {
	doc := strings.ReplaceAll(s.Doc, "`", "") // package flag would take what they enclose for the value's name
	var b strings.Builder
	for paragraph := range strings.SplitSeq(doc, "\n\n") {
		b.WriteString(wrap(paragraph, "", usageWidth))
	}
	b.WriteString(choices(s.Choices, "", usageWidth))
	return strings.TrimSuffix(b.String(), "\n") + " (default " + s.Default + ")"
}

const usageWidth = 110
