// Command bench measures round trips to a target, keeps them as reports, and compares reports.
package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"rebound/cmd/internal/exit"
	"rebound/cmd/internal/version"
)

const about = `measures network round trips, keeps them as reports, and compares reports.`

const about2 = `"bench COMMAND -h" lists a command's flags. Results go to stdout, messages to stderr.`

const codes = `0 done, 1 failed, 2 used wrongly, 3 a comparison exceeded -fail-if.`

// entry is a command by its name, with its line of the help.
type entry struct {
	name, args, line string
	run              func(*env, []string) error
}

// commands are all there are.
func commands() []entry {
	return []entry{
		{"run", "-target IP [flags]", "measure; writes a report folder and prints its percentiles", runCommand},
		{"compare", "A B [C ...]", "percentiles of reports, or of times that a Prometheus keeps, side by side, with confidence", compareCommand},
		{"report", "DIR [...]", "print saved reports, and make their report.html again", reportCommand},
		{"watch", "[-config FILE] [flags]", "probe many targets for ever at a low rate: metrics, logs by the hour, verdicts on change", watchCommand},
		{"matrix", "-prom URL [flags]", "draw what the watches of many hosts measured of each other, from a Prometheus that scrapes them", matrixCommand},
		{"config", "", "print the configuration file of bench watch", configCommand},
		{"demo", "", "try all of it on this machine: responder and kernel in two network namespaces", demoCommand},
		{"version", "", "what it was built from", versionCommand},
		{"manual", "[watch]", "print the manual page, or that of the watch's configuration: bench manual | man -l -", manualCommand},
		{"completion", "", "print the completion of this command line for bash", completionCommand},
	}
}

func printHelp(w io.Writer) {
	fmt.Fprintf(w, "bench %s\n\n", about)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-28s   %s\n", strings.TrimSpace("bench "+c.name+" "+c.args), c.line)
	}
	fmt.Fprintf(w, "\n%s\nExit status: %s\n", about2, codes)
}

func main() { os.Exit(bench(os.Args[1:], os.Stdout, os.Stderr)) }

// bench runs one command and returns the exit code.
func bench(args []string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if len(args) == 0 {
		printHelp(stderr)
		return exit.Usage
	}
	all := commands()
	i := slices.IndexFunc(all, func(c entry) bool { return c.name == args[0] })
	switch {
	case i >= 0:
	case args[0] == "-h" || args[0] == "-help" || args[0] == "--help" || args[0] == "help":
		printHelp(stdout)
		return exit.Done
	default:
		var names []string
		for _, c := range all {
			names = append(names, c.name)
		}
		slices.Sort(names)
		fmt.Fprintf(stderr, "bench: no command %q: there are %s (-h explains them)\n", args[0], strings.Join(names, ", "))
		return exit.Usage
	}
	err := all[i].run(&env{stdout: stdout, stderr: stderr, log: log}, args[1:])
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
