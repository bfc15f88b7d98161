// Package manual makes manual pages and shell completion of a program from what its command line is parsed with: flag sets and
// tables of settings. Nothing is written twice, and so nothing is out of date.
package manual

import (
	"flag"
	"io"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/setting"
)

// Program is a program as its user sees it.
type Program struct {
	Name    string // "responder"
	Section int    // of the manual: 1 for users, 8 for who runs the machine
	Line    string // what it is, in one line without a full stop
	Doc     string // as Command.Doc

	// Commands are all it has, in the order of its help. A program without any has one of no name.
	Commands []Command

	// Settings are the keys of -set and of the configuration file, nil if it has none.
	Settings *setting.Table

	// Exit says what the exit codes mean, as Command.Doc.
	Exit string

	// Values are what flags take that are parsed by a function, by the flag's name: for completion only.
	Values map[string][]string

	// SeeAlso names other pages: "bench(1)".
	SeeAlso []string
}

// Command is one command of a program.
type Command struct {
	Name string // what stands behind the program's name; empty for a program without commands, and for the one that needs no name
	Args string // "[-config FILE] ADDR"

	// Doc has paragraphs apart by empty lines. A line that begins with a blank is kept as it is.
	Doc string

	Flags *flag.FlagSet // nil for none

	// Words are the values that an argument may have, nil where they are not a few.
	Words []string

	// Folders says that the arguments are folders, and not files.
	Folders bool
}

// isBool reports whether a flag stands without a value.
func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// flags are those of a command, by name.
func (c *Command) flags() (all []*flag.Flag) {
	if c.Flags != nil {
		c.Flags.VisitAll(func(f *flag.Flag) { all = append(all, f) })
	}
	return all
}

// command finds the one of that name, nil if there is none.
func (p *Program) command(name string) *Command {
	i := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Commands[i]
}

// Usage writes one entry for each command: how to call it, and beside it what it does, in lines that fit a terminal.
func (p *Program) Usage(w io.Writer) error {
	const left, width = 47, 128
	var b strings.Builder
	b.WriteString("usage:\n")
	for _, c := range p.Commands {
		call := "  " + strings.Join(strings.Fields(p.Name+" "+c.Name+" "+c.Args), " ")
		indent := strings.Repeat(" ", left+1)
		doc := setting.Wrap(c.Doc, indent, width)
		if len(call) <= left {
			doc = call + doc[len(call):]
		} else {
			doc = call + "\n" + doc
		}
		b.WriteString(doc)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
