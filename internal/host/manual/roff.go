package manual

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/setting"
)

// roff collects a page in the macros of man(7).
type roff struct{ strings.Builder }

// escape escapes text, so that none of it is read as a request. Text in backquotes becomes bold.
func escape(text string) string {
	text = strings.ReplaceAll(text, `\`, `\e`)
	text = strings.ReplaceAll(text, "-", `\-`)
	for bold := true; strings.Contains(text, "`"); bold = !bold {
		font := `\fR`
		if bold {
			font = `\fB`
		}
		text = strings.Replace(text, "`", font, 1)
	}
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}

func argument(text string) string { return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"` }

func (r *roff) request(name string, arguments ...string) {
	r.WriteString("." + name)
	for _, a := range arguments {
		r.WriteString(" " + argument(a))
	}
	r.WriteByte('\n')
}

// text writes paragraphs, separated by the request paragraph. Lines that start with a space are kept as they are.
func (r *roff) text(doc, paragraph string) {
	first := true
	for block := range strings.SplitSeq(strings.Trim(doc, "\n"), "\n\n") {
		if !first {
			r.WriteString(paragraph + "\n")
		}
		first = false
		literal := false
		for line := range strings.SplitSeq(block, "\n") {
			if blank := strings.HasPrefix(line, " "); blank != literal {
				literal = blank
				if blank {
					r.WriteString(".nf\n")
				} else {
					r.WriteString(".fi\n")
				}
			}
			r.WriteString(escape(line) + "\n")
		}
		if literal {
			r.WriteString(".fi\n")
		}
	}
}

// head writes the start of a page. version and date appear in its footer.
func (r *roff) head(name string, section int, line, version, date string) {
	fmt.Fprintf(r, ".\\\" Made by the program itself, from its flags and settings.\n")
	fmt.Fprintf(r, ".TH %s %d \"%s\" %s \"Rebound\"\n", argument(strings.ToUpper(name)), section, date, argument("Rebound "+version))
	r.request("SH", "NAME")
	fmt.Fprintf(r, "%s \\- %s\n", escape(name), escape(line))
}

// WriteMan writes the program's manual page. version and date, which may be empty, appear in its footer.
func (p *Program) WriteMan(w io.Writer, version, date string) error {
	var r roff
	r.head(p.Name, p.Section, p.Line, version, date)
	r.request("SH", "SYNOPSIS")
	for i, c := range p.Commands {
		if i > 0 {
			r.WriteString(".br\n")
		}
		r.WriteString(strings.TrimSpace(fmt.Sprintf("\\fB%s\\fR %s", escape(strings.TrimSpace(p.Name+" "+c.Name)), escape(c.Args))) + "\n")
	}
	r.request("SH", "DESCRIPTION")
	r.text(p.Doc, ".PP")
	if len(p.Commands) > 1 {
		r.request("SH", "COMMANDS")
	}
	for _, c := range p.Commands {
		if len(p.Commands) > 1 {
			r.request("SS", strings.Join(strings.Fields(p.Name+" "+c.Name+" "+c.Args), " "))
			r.text(c.Doc, ".PP")
		} else if len(c.flags()) > 0 {
			r.request("SH", "OPTIONS")
		}
		for _, f := range c.flags() {
			r.flag(f)
		}
	}
	if p.Exit != "" {
		r.request("SH", "EXIT STATUS")
		r.text(p.Exit, ".PP")
	}
	if len(p.SeeAlso) > 0 {
		r.request("SH", "SEE ALSO")
		r.text(strings.Join(p.SeeAlso, ", "), ".PP")
	}
	_, err := io.WriteString(w, r.String())
	return err
}

func (r *roff) flag(f *flag.Flag) {
	value, doc := flag.UnquoteUsage(f)
	r.WriteString(".TP\n")
	if isBool(f) {
		fmt.Fprintf(r, "\\fB%s\\fR\n", escape("-"+f.Name))
	} else {
		fmt.Fprintf(r, "\\fB%s\\fR \\fI%s\\fR\n", escape("-"+f.Name), escape(value))
	}
	if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && !strings.Contains(doc, "(default") {
		doc += " (default " + f.DefValue + ")"
	}
	r.text(doc, ".IP")
}

// WriteConfig writes the manual page of a configuration file: each section, and each key with its default and
// description.
func WriteConfig(w io.Writer, t *setting.Table, name, line, intro, version, date string, seeAlso ...string) error {
	var r roff
	r.head(name, 5, line, version, date)
	r.request("SH", "DESCRIPTION")
	r.text(intro, ".PP")
	section := ""
	for i := range t.Settings {
		s := &t.Settings[i]
		if s.Section() != section {
			section = s.Section()
			r.request("SH", "["+section+"]")
		}
		fmt.Fprintf(&r, ".TP\n\\fB%s\\fR (%s, default %s)\n", escape(s.Name()), s.Kind, escape(s.Default))
		r.text(s.Doc, ".IP")
		for _, c := range s.Choices {
			fmt.Fprintf(&r, ".RS\n.TP\n\\fB%s\\fR\n", escape(c.Name))
			r.text(c.Doc, ".IP")
			r.WriteString(".RE\n")
		}
	}
	r.request("SH", "SEE ALSO")
	r.text(strings.Join(seeAlso, ", "), ".PP")
	_, err := io.WriteString(w, r.String())
	return err
}
