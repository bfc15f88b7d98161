// Package bench measures round trips to a target, saves them as reports, and compares reports.
package bench

import (
	"io"

	"github.com/rebound-nic/rebound/internal/host/command"
)

func program() *command.Program {
	return &command.Program{Name: "rebound-bench", Line: "measure network round trips and compare them",
		About: "measures network round trips, keeps them as reports, and compares reports.",
		More:  `"rebound-bench COMMAND -h" lists a command's flags. Results go to stdout, messages to stderr.`,
		Codes: "0 done, 1 failed, 2 wrong usage, 3 a comparison exceeded -fail-if.",
		Commands: []command.Command{
			{Name: "run", Args: "TARGET [TARGET ...] [flags]", Line: "measure; writes a report folder and prints its percentiles. rebound-bench TARGET does the same", Run: runCommand},
			{Name: "versus", Args: "A B [flags]", Line: "which of two targets is better: ICMP and UDP, alternating, one page with the answer", Run: versusCommand},
			{Name: "compare", Args: "A B [C ...]", Line: "compare reports, or other tools' files", Run: compareCommand, Folders: true},
			{Name: "report", Args: "DIR|FILE [...]", Line: "print saved reports and rewrite their report.html; print other tools' files", Run: reportCommand, Folders: true},
			{Name: "explain", Args: "DIR RESPONDER-DIR", Line: "whose tail is it: attribute the slowest round trips with the responder's own report", Run: explainCommand, Folders: true},
			{Name: "history", Args: "DIR [...]", Line: "draw how results changed over many reports, and find where their level changed", Run: historyCommand, Folders: true},
			{Name: "demo", Line: "try it on this machine: responder and kernel, compared, in two network namespaces", Run: demoCommand},
		},
		Default: "run",
		Moved: map[string]string{"watch": "rebound-watch TARGET ...", "matrix": "rebound-watch matrix",
			"suspects": "rebound-watch suspects",
			"config":   "rebound-watch config"},
		Values:  map[string][]string{"ab": {"name=", "target="}, "size": {"rfc2544"}}, // of flags that are not settings
		SeeAlso: []string{"rebound-responder(8)", "rebound-watch(1)", "rebound-simnic(1)"}}
}

// Main runs bench with the arguments after the program name and returns the exit status.
func Main(args []string) int { return program().Main(args) }

// Run is Main with other output streams.
func Run(args []string, stdout, stderr io.Writer) int { return program().Run(args, stdout, stderr) }
