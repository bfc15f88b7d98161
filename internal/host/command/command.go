// Package command runs a program that has several commands: it chooses the command, prints help, manual page and shell
// completion, and turns errors into messages and exit codes.
package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/limits"
	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

// Program is a program with its commands. The commands version, manual and completion are added to them.
type Program struct {
	Name, Line string // "rebound-bench"; what it does, in one line without a full stop
	About      string // the first sentence of its help, after the name
	More       string // the last sentences of its help
	Codes      string // its exit codes

	Commands []Command

	// Default is the command for arguments that begin with a flag, and for a target in the place of a command: an
	// address, or a name with a dot. FlagsToo is false if flags need a command.
	Default  string
	FlagsToo bool

	// Moved maps words that were commands to what to use now.
	Moved map[string]string

	Values  map[string][]string         // see manual.Program
	Pages   map[string]func(*Env) error // further manual pages by name
	SeeAlso []string
}

// Command is a command with its line in the help.
type Command struct {
	Name, Args, Line string
	Run              func(*Env, []string) error
	NoFlags          bool     // it has neither flags nor help
	Folders          bool     // its arguments are folders
	Words            []string // values of its argument, nil if they are not a short list
}

// Main runs the program with the arguments after its name and returns the exit code.
func (p *Program) Main(args []string) int { return p.Run(args, os.Stdout, os.Stderr) }

// Run is Main with other output streams.
func (p *Program) Run(args []string, stdout, stderr io.Writer) int {
	out, said := sanitize.NewWriter(stdout), sanitize.NewWriter(stderr)
	return process.Printed(p.perform(args, out, said), p.Name, out, said)
}

func (p *Program) perform(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		p.printHelp(stderr)
		return process.Usage
	}
	switch first := args[0]; {
	case first == manual.CompleteCommand:
		p.described().Complete(stdout, args[1:])
		return process.Done
	case slices.Contains([]string{"-h", "-help", "--help", "help"}, first):
		p.printHelp(stdout)
		return process.Done
	case first == "-version" || first == "--version":
		args[0] = "version"
	case isTarget(first), p.FlagsToo && strings.HasPrefix(first, "-"):
		args = append([]string{p.Default}, args...)
	}
	all := p.all()
	i := slices.IndexFunc(all, func(c Command) bool { return c.Name == args[0] })
	if now, moved := p.Moved[args[0]]; moved {
		fmt.Fprintf(stderr, "%s %s: moved to another program: use %s\n", p.Name, args[0], now)
		return process.Usage
	}
	if i < 0 {
		var names []string
		for _, c := range all {
			names = append(names, c.Name)
		}
		slices.Sort(names)
		fmt.Fprintf(stderr, "%s: unknown command %q%s: want a target or one of %s (-h explains them)\n", p.Name,
			args[0], setting.Meant("", args[0], names), strings.Join(names, ", "))
		return process.Usage
	}
	level := new(slog.LevelVar)
	level.Set(nic.Notice)
	err := limits.Check(limits.Need{Files: 64, Threads: 24, Memory: 32 << 20})
	if err == nil {
		err = limits.Explain(all[i].Run(&Env{Stdout: stdout, Stderr: stderr, Log: process.NewLog(stderr, level),
			level: level}, args[1:]))
	}
	code, say := process.ExitCode(err)
	if say {
		fmt.Fprintf(stderr, "%s %s: %s\n", p.Name, args[0], sanitize.Error(err))
	}
	return code
}

// all are the commands with those of every program.
func (p *Program) all() []Command {
	words := []string(nil)
	for name := range p.Pages {
		words = append(words, name)
	}
	slices.Sort(words)
	args := ""
	if words != nil {
		args = "[" + strings.Join(words, "|") + "]"
	}
	return append(slices.Clip(p.Commands),
		Command{Name: "version", Line: "print the version, the source revision and the Go release", Run: p.version,
			NoFlags: true},
		Command{Name: "manual", Args: args, Line: "print a manual page: " + p.Name + " manual | man -l -",
			Run: p.manual, NoFlags: true, Words: words},
		Command{Name: "completion", Args: "bash|zsh|fish", Line: "print shell completion: source <(" + p.Name +
			" completion bash)", Run: p.completion, NoFlags: true, Words: manual.Shells})
}

func (p *Program) printHelp(w io.Writer) {
	fmt.Fprintf(w, "%s %s\n\n", p.Name, p.About)
	for _, c := range p.all() {
		fmt.Fprintf(w, "  %-46s   %s\n", strings.TrimSpace(strings.TrimSpace(p.Name+" "+c.Name)+" "+c.Args), c.Line)
	}
	fmt.Fprintf(w, "\n%s\nExit status: %s\n", p.More, p.Codes)
}

// isTarget reports whether a word in place of a command is a host to measure: an address, or a name with a dot.
func isTarget(word string) bool {
	return !strings.HasPrefix(word, "-") && strings.ContainsAny(word, ".:") && !strings.ContainsRune(word, '/')
}

// described is the program for its manual page. Each command describes its own arguments.
func (p *Program) described() *manual.Program {
	m := &manual.Program{Name: p.Name, Section: 1, Values: p.Values, Line: p.Line,
		Doc:  p.Name + " " + p.About + "\n\n" + p.More,
		Exit: p.Codes, SeeAlso: p.SeeAlso}
	for _, c := range p.all() {
		one := manual.Command{Name: c.Name, Args: c.Args, Doc: c.Line, Folders: c.Folders, Words: c.Words}
		if !c.NoFlags {
			c.Run(&Env{describe: func(fs *flag.FlagSet, text string) {
				_, doc, _ := strings.Cut(text, "\n\n") // the first line is the usage, which is already printed above
				one.Flags, one.Doc = fs, one.Doc+"\n\n"+doc
			}}, nil)
		}
		m.Commands = append(m.Commands, one)
	}
	return m
}

func (p *Program) version(e *Env, args []string) error {
	if len(args) > 0 {
		return process.Usagef("unexpected argument %q", args[0])
	}
	_, err := io.WriteString(e.Stdout, process.Version(p.Name))
	return err
}

func (p *Program) manual(e *Env, args []string) error {
	if len(args) == 1 && p.Pages[args[0]] != nil {
		return p.Pages[args[0]](e)
	}
	if len(args) > 0 {
		return process.Usagef("unexpected argument %q", args[0])
	}
	v, day := process.BuildStamp()
	return p.described().WriteMan(e.Stdout, v, day)
}

func (p *Program) completion(e *Env, args []string) error {
	shell := "bash"
	switch {
	case len(args) == 1:
		shell = args[0]
	case len(args) > 1:
		return process.Usagef("unexpected argument %q", args[1])
	}
	err := p.described().WriteCompletion(e.Stdout, shell)
	if errors.Is(err, manual.ErrShell) {
		return process.Usagef("%w", err)
	}
	return err
}
