package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/whole"
)

// env has the output streams of a command.
type env struct {
	stdout, stderr io.Writer
	log            *slog.Logger

	// describe, if set, gets a command's flags and help, and the command does nothing else.
	describe func(fs *flag.FlagSet, text string)
}

// writePage writes a page and prints its path.
func (e *env) writePage(path string, to func(io.Writer) error) error {
	if err := whole.Write(path, to); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.stdout, "page %s\n", plain.Text(path))
	return err
}

// parse parses a command's flags; the remaining words are its arguments. A request for help is not an error: -h prints
// text and all flags.
func (e *env) parse(fs *flag.FlagSet, args []string, text string) error {
	rest, err := e.parseMixed(fs, args, text, "")
	if err == nil && len(rest) > 0 {
		err = fs.Parse(append([]string{"--"}, rest...)) // they become fs.Args
	}
	return err
}

// parseMixed is parse for a command whose arguments may come before, between and after its flags; it returns the
// arguments. If short is not empty, -h prints only that, and -help-all text with all flags.
func (e *env) parseMixed(fs *flag.FlagSet, args []string, text, short string) (rest []string, err error) {
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
	switch {
	case errors.Is(err, flag.ErrHelp) && short != "":
		fmt.Fprint(e.stdout, short)
		return nil, err
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(e.stdout)
		fmt.Fprint(e.stdout, text)
		fs.PrintDefaults()
		return nil, err
	case err != nil && short != "":
		return nil, exit.Usagef("%w (-help-all lists the flags)", err)
	case err != nil:
		return nil, exit.Usagef("%w (-h lists the flags)", err)
	}
	return rest, nil
}
