package process

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Exit codes of every command of this project.
const (
	Done   = 0
	Failed = 1
	Usage  = 2 // the command line cannot be carried out on this machine
	Worse  = 3 // a comparison exceeded its limits
)

// errUsage marks errors that only another command line fixes.
var errUsage = errors.New("")

// Usagef returns an error for which Code is Usage.
func Usagef(format string, args ...any) error {
	return fmt.Errorf("%w%w", errUsage, fmt.Errorf(format, args...))
}

// ErrWorse means that a comparison exceeded its limits.
var ErrWorse = errors.New("worse than allowed")

// Status is the exit code of a process that finished its work and reported the failure itself.
type Status int

func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Printed returns the exit code of a command that finished with code. If its results could not be written to out, it
// prints that and returns another code.
func Printed(code int, name string, out *sanitize.Writer, stderr io.Writer) int {
	if err := out.Err(); err != nil {
		fmt.Fprintf(stderr, "%s: the output is incomplete: %s\n", name, sanitize.Error(err))
		code = max(code, Failed)
	}
	return code
}

// ExitCode returns the exit code for a command's error, and whether the error is still to be printed.
func ExitCode(err error) (code int, say bool) {
	var inner Status
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return Done, false
	case errors.As(err, &inner):
		return int(inner), false
	case errors.Is(err, errUsage):
		return Usage, true
	case errors.Is(err, ErrWorse):
		return Worse, true
	}
	return Failed, true
}
