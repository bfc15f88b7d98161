package setting

import (
	"fmt"
	"strings"
)

// TOML returns a file with every setting, its default and its description. intro precedes it.
func (t *Table) TOML(intro string) string {
	var b strings.Builder
	b.WriteString(comment(intro))
	section := ""
	for i := range t.Settings {
		s := &t.Settings[i]
		if s.Section() != section {
			section = s.Section()
			fmt.Fprintf(&b, "\n[%s]\n", section)
		} else {
			b.WriteByte('\n')
		}
		b.WriteString(comment(s.Doc))
		b.WriteString(choices(s.Choices, "# ", tomlWidth))
		fmt.Fprintf(&b, "%s = %s\n", s.Name(), s.Default)
	}
	return b.String()
}

const tomlWidth = 120

func comment(text string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if b.Len() > 0 {
			b.WriteString("#\n")
		}
		b.WriteString(Wrap(paragraph, "# ", tomlWidth))
	}
	return b.String()
}

// choices lists the choices: each name with its description, or only the names if none is described.
func choices(list []Choice, prefix string, width int) string {
	longest, described := 0, false
	var names []string
	for _, c := range list {
		longest, described = max(longest, len(c.Name)), described || c.Doc != ""
		if c.Name != "" {
			names = append(names, c.Name)
		}
	}
	if list != nil && !described {
		return Wrap(strings.Join(names, ", "), prefix, width)
	}
	var b strings.Builder
	for _, c := range list {
		first := fmt.Sprintf("%s%-*s", prefix, longest+3, c.Name)
		rest := prefix + strings.Repeat(" ", longest+3)
		b.WriteString(first + strings.TrimPrefix(Wrap(c.Doc, rest, width), rest))
	}
	return b.String()
}

// Wrap breaks text into lines of at most width bytes, with a prefix before each.
func Wrap(text, prefix string, width int) string {
	var b strings.Builder
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(prefix)+len(line)+1+len(word) > width {
			b.WriteString(prefix + line + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	b.WriteString(prefix + line + "\n")
	return b.String()
}
