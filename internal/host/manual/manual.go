// Package manual generates manual pages and shell completion from a program's flag sets and tables of settings.
package manual

import (
	"flag"
	"io"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/setting"
)

// Program describes a program for its users.
type Program struct {
	Name    string // "responder"
	Section int    // of the manual: 1 for users, 8 for administrators
	Line    string // description in one line without a full stop
	Doc     string // as Command.Doc

	// Commands are listed in the order of the help. A program without commands has a single one with an empty name.
	Commands []Command

	// Settings are the keys of -set and of the configuration file, nil if there are none.
	Settings *setting.Table

	// Exit documents the exit codes, in the format of Command.Doc.
	Exit string

	// Values maps the names of flags that are parsed by a function to their values, for completion only.
	Values map[string][]string

	// SeeAlso names other pages: "bench(1)".
	SeeAlso []string
}

// Command is one command of a program.
type Command struct {
	Name string // what follows the program's name; empty for a program without commands, and for the default command
	Args string // "[-config FILE] ADDR"

	// Doc is paragraphs separated by empty lines. A line that starts with a space is kept as it is.
	Doc string

	Flags *flag.FlagSet // nil for none

	// Words are the values that an argument may have, nil if they are not a short list.
	Words []string

	// Folders means that the arguments are folders rather than files.
	Folders bool
}

// isBool reports whether a flag needs no value.
func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// flags returns a command's flags, sorted by name.
func (c *Command) flags() (all []*flag.Flag) {
	if c.Flags != nil {
		c.Flags.VisitAll(func(f *flag.Flag) { all = append(all, f) })
	}
	return all
}

// command returns the command with that name, or nil.
func (p *Program) command(name string) *Command {
	i := slices.IndexFunc(p.Commands, func(c Command) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Commands[i]
}

// Usage writes one entry for each command, its synopsis and its description, in lines that fit a terminal.
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
