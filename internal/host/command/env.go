package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Env has the output streams of a command.
type Env struct {
	Stdout, Stderr io.Writer
	Log            *slog.Logger
	level          *slog.LevelVar // of Log

	// describe, if set, gets a command's flags and help, and the command does nothing else.
	describe func(fs *flag.FlagSet, text string)
}

// WritePage writes a page and prints its path.
func (e *Env) WritePage(path string, to func(io.Writer) error) error {
	if err := atomicfile.Write(path, to); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.Stdout, "page %s\n", sanitize.Text(path))
	return err
}

// Verbose has Log show what the command does, too, if it is asked for.
func (e *Env) Verbose(asked bool) {
	if asked && e.level != nil {
		e.level.Set(slog.LevelInfo)
	}
}

// Parse parses a command's flags; the remaining words are its arguments. A request for help is not an error: -h prints
// text and all flags.
func (e *Env) Parse(fs *flag.FlagSet, args []string, text string) error {
	rest, err := e.ParseMixed(fs, args, text, "")
	if err == nil && len(rest) > 0 {
		err = fs.Parse(append([]string{"--"}, rest...)) // they become fs.Args
	}
	return err
}

// ParseMixed is Parse for a command whose arguments may come before, between and after its flags; it returns the
// arguments. If short is not empty, -h prints only that, and -help-all text with all flags.
func (e *Env) ParseMixed(fs *flag.FlagSet, args []string, text, short string) (rest []string, err error) {
	if e.describe != nil {
		e.describe(fs, text)
		return nil, flag.ErrHelp
	}
	fs.SetOutput(io.Discard)
	if short != "" && slices.ContainsFunc(args, func(a string) bool { return a == "-help-all" || a == "--help-all" }) {
		short, err = "", flag.ErrHelp
	}
	for err == nil {
		if err = fs.Parse(args); err != nil || fs.NArg() == 0 {
			break
		}
		if n := len(args) - fs.NArg(); n > 0 && args[n-1] == "--" {
			rest = append(rest, fs.Args()...)
			break
		}
		rest, args = append(rest, fs.Arg(0)), fs.Args()[1:]
	}
	if err != nil {
		err = setting.Unknown(err, fs)
	}
	switch {
	case errors.Is(err, flag.ErrHelp) && short != "":
		fmt.Fprint(e.Stdout, short)
		return nil, err
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(e.Stdout)
		fmt.Fprint(e.Stdout, text)
		fs.PrintDefaults()
		return nil, err
	case err != nil && short != "":
		return nil, process.Usagef("%w (-help-all lists the flags)", err)
	case err != nil:
		return nil, process.Usagef("%w (-h lists the flags)", err)
	}
	return rest, nil
}
