// Package bench measures round trips to a target, saves them as reports, and compares reports.
package bench

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/version"
	"github.com/rebound-nic/rebound/latency/plain"
)

const about = `measures network round trips, keeps them as reports, and compares reports.`

const about2 = `"rebound-bench COMMAND -h" lists a command's flags. Results go to stdout, messages to stderr.`

const codes = `0 done, 1 failed, 2 wrong usage, 3 a comparison exceeded -fail-if.`

// entry is a command with its name and its line in the help.
type entry struct {
	name, args, line string
	run              func(*env, []string) error
}

func commands() []entry {
	return []entry{
		{"run", "TARGET [TARGET ...] [flags]", "measure; writes a report folder and prints its percentiles. rebound-bench TARGET does the same", runCommand},
		{"compare", "A B [C ...]", "compare reports, other tools' files, or time ranges that a Prometheus stores", compareCommand},
		{"report", "DIR|FILE [...]", "print saved reports and rewrite their report.html; print other tools' files", reportCommand},
		{"history", "DIR [...]", "draw how results changed over many reports, and find where their level changed", historyCommand},
		{"watch", "[TARGET ...] [-config FILE] [flags]", "probe many targets continuously at a low rate: metrics, hourly logs, verdicts on change", watchCommand},
		{"matrix", "-prom URL [flags]", "draw a matrix of who measured whom, from a Prometheus that scrapes rebound-bench watch", matrixCommand},
		{"suspects", "-prom URL [flags]", "name the hosts, links or zones that explain failing paths of a fleet, from a Prometheus that scrapes its watches", suspectsCommand},
		{"config", "", "print the configuration file of rebound-bench watch", configCommand},
		{"demo", "", "try it on this machine: responder and kernel, compared, in two network namespaces", demoCommand},
		{"version", "", "print the version, the source revision and the Go release", versionCommand},
		{"manual", "[watch]", "print a manual page: rebound-bench manual | man -l -", manualCommand},
		{"completion", "bash|zsh|fish", "print shell completion: source <(rebound-bench completion bash)", completionCommand},
	}
}

func printHelp(w io.Writer) {
	fmt.Fprintf(w, "rebound-bench %s\n\n", about)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-46s   %s\n", strings.TrimSpace("rebound-bench "+c.name+" "+c.args), c.line)
	}
	fmt.Fprintf(w, "\n%s\nExit status: %s\n", about2, codes)
}

// Main runs bench with the arguments after the program name and returns the exit status.
func Main(args []string) int { return bench(args, os.Stdout, os.Stderr) }

// bench runs one command and returns the exit code.
func bench(args []string, stdout, stderr io.Writer) int {
	out, said := plain.NewWriter(stdout), plain.NewWriter(stderr)
	return exit.Printed(perform(args, out, said), "rebound-bench", out, said)
}

func perform(args []string, stdout, stderr io.Writer) int {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	if len(args) == 0 {
		printHelp(stderr)
		return exit.Usage
	}
	if args[0] == manual.CompleteCommand {
		described().Complete(stdout, args[1:])
		return exit.Done
	}
	if args[0] == "-version" || args[0] == "--version" {
		args[0] = "version"
	}
	if isTarget(args[0]) {
		args = append([]string{"run"}, args...)
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
		fmt.Fprintf(stderr, "rebound-bench: unknown command %q: want a target or one of %s (-h explains them)\n", args[0], strings.Join(names, ", "))
		return exit.Usage
	}
	err := all[i].run(&env{stdout: stdout, stderr: stderr, log: log}, args[1:])
	code, say := exit.Code(err)
	if say {
		fmt.Fprintf(stderr, "rebound-bench %s: %s\n", args[0], plain.Error(err))
	}
	return code
}

// isTarget reports whether a word in place of a command is a host to measure: an address, or a name with a dot.
func isTarget(word string) bool {
	return !strings.HasPrefix(word, "-") && strings.ContainsAny(word, ".:") && !strings.ContainsRune(word, '/')
}

func versionCommand(e *env, args []string) error {
	if len(args) > 0 {
		return exit.Usagef("unexpected argument %q", args[0])
	}
	_, err := io.WriteString(e.stdout, version.Text("rebound-bench"))
	return err
}
