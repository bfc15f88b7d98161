// Command bench measures round trips to a target, keeps them as reports, and compares reports.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Exit codes of every command of this project.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // the command line cannot be carried out on this machine as it stands
	exitWorse  = 3 // compare -fail-if: a limit was exceeded
)

// errUsage marks errors that only another command line mends.
var errUsage = errors.New("")

func usage(format string, args ...any) error {
	return fmt.Errorf("%w%w", errUsage, fmt.Errorf(format, args...))
}

// errWorse says that a comparison exceeded its limits.
var errWorse = errors.New("worse than allowed")

const help = `bench measures network round trips, keeps them as reports, and compares reports.

  bench run -target IP [flags]   measure; writes a report folder and prints its percentiles
  bench compare A B [C ...]      percentiles of reports side by side, with confidence
  bench report DIR [...]         print saved reports, and make their report.html anew
  bench demo                     try all of it on this machine: responder and kernel in two network namespaces
  bench peers                    the responder side by side with testpmd, the kernel and a socket
  bench gap                      the responder's polling loop beside one in C

"bench COMMAND -h" lists a command's flags. Results go to stdout, messages to stderr.
Exit status: 0 done, 1 failed, 2 used wrongly, 3 a comparison exceeded -fail-if.
`

func main() { os.Exit(bench(os.Args[1:], os.Stdout, os.Stderr)) }

// bench runs one command and returns the exit code.
func bench(args []string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if len(args) == 0 {
		fmt.Fprint(stderr, help)
		return exitUsage
	}
	commands := map[string]func(*env, []string) error{"run": runCommand, "compare": compareCommand, "report": reportCommand, "demo": demoCommand, "peers": peersCommand, "gap": gapCommand}
	command, ok := commands[args[0]]
	switch {
	case ok:
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help" || args[0] == "help":
		fmt.Fprint(stdout, help)
		return exitDone
	default:
		fmt.Fprintf(stderr, "bench: no command %q\n\n%s", args[0], help)
		return exitUsage
	}
	err := command(&env{stdout: stdout, stderr: stderr, log: log}, args[1:])
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitDone
	}
	var inner exitCode
	if errors.As(err, &inner) {
		return int(inner)
	}
	fmt.Fprintf(stderr, "bench %s: %v\n", args[0], err)
	switch {
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errWorse):
		return exitWorse
	}
	return exitFailed
}

// env is what a command writes to.
type env struct {
	stdout, stderr io.Writer
	log            *slog.Logger
}

// parse parses a command's flags; what remains are its arguments. Help was asked for, so it is a result; what is wrong is
// one line.
func (e *env) parse(fs *flag.FlagSet, args []string, text string) error {
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(e.stdout)
		fmt.Fprint(e.stdout, text)
		fs.PrintDefaults()
		return err
	case err != nil:
		return usage("%w (-h lists the flags)", err)
	}
	return nil
}

// onSignal sets stop at the first SIGINT or SIGTERM. The second one ends the process as if nothing had been set.
func onSignal(stop *atomic.Bool) (restore func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-c:
			stop.Store(true)
			signal.Stop(c)
		case <-done:
		}
	}()
	return func() { signal.Stop(c); close(done) }
}
