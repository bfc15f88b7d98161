// Command bench measures round trips to a target, keeps them as reports, and compares reports.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"rebound/cmd/internal/exit"
	"rebound/cmd/internal/version"
)

const help = `bench measures network round trips, keeps them as reports, and compares reports.

  bench run -target IP [flags]   measure; writes a report folder and prints its percentiles
  bench compare A B [C ...]      percentiles of reports side by side, with confidence
  bench report DIR [...]         print saved reports, and make their report.html again
  bench demo                     try all of it on this machine: responder and kernel in two network namespaces
  bench version                  what it was built from

"bench COMMAND -h" lists a command's flags. Results go to stdout, messages to stderr.
Exit status: 0 done, 1 failed, 2 used wrongly, 3 a comparison exceeded -fail-if.
`

func main() { os.Exit(bench(os.Args[1:], os.Stdout, os.Stderr)) }

// bench runs one command and returns the exit code.
func bench(args []string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if len(args) == 0 {
		fmt.Fprint(stderr, help)
		return exit.Usage
	}
	commands := map[string]func(*env, []string) error{"run": runCommand, "compare": compareCommand, "report": reportCommand, "demo": demoCommand, "version": versionCommand}
	command, ok := commands[args[0]]
	switch {
	case ok:
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help" || args[0] == "help":
		fmt.Fprint(stdout, help)
		return exit.Done
	default:
		fmt.Fprintf(stderr, "bench: no command %q: there are %s (-h explains them)\n", args[0], strings.Join(slices.Sorted(maps.Keys(commands)), ", "))
		return exit.Usage
	}
	err := command(&env{stdout: stdout, stderr: stderr, log: log}, args[1:])
	code, say := exit.Code(err)
	if say {
		fmt.Fprintf(stderr, "bench %s: %v\n", args[0], err)
	}
	return code
}

func versionCommand(e *env, args []string) error {
	if len(args) > 0 {
		return exit.Usagef("%q is left over", args[0])
	}
	_, err := io.WriteString(e.stdout, version.Text("bench"))
	return err
}
