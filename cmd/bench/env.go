package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"

	"rebound/cmd/internal/exit"
)

// env is what a command writes to.
type env struct {
	stdout, stderr io.Writer
	log            *slog.Logger

	// describe gets a command's flags and help in place of stdout, where it is set; nothing else of the command is done.
	describe func(fs *flag.FlagSet, text string)
}

// parse parses a command's flags; what remains are its arguments. Help was asked for, so it is a result; what is wrong is
// one line.
func (e *env) parse(fs *flag.FlagSet, args []string, text string) error {
	if e.describe != nil {
		e.describe(fs, text)
		return flag.ErrHelp
	}
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(e.stdout)
		fmt.Fprint(e.stdout, text)
		fs.PrintDefaults()
		return err
	case err != nil:
		return exit.Usagef("%w (-h lists the flags)", err)
	}
	return nil
}
