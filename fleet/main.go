// Package fleet is rebound-watch: it probes many targets continuously, and judges what the watches of many hosts
// measured of each other.
package fleet

import (
	"io"

	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/process"
)

func program() *command.Program {
	return &command.Program{Name: "rebound-watch", Line: "probe many hosts continuously",
		About: "probes many targets continuously: metrics, hourly logs, verdicts on change; and finds what is wrong in a fleet that does so.",
		More: `"rebound-watch -h" prints this, "rebound-watch COMMAND -h" a command's flags. Without a command, "rebound-watch TARGET ..." probes. ` +
			`Results go to stdout, messages to stderr.`,
		Codes: "0 done, 1 failed, 2 wrong usage, 3 a comparison exceeded -fail-if.",
		Commands: []command.Command{
			{Name: "probe", Args: "[TARGET ...] [-config FILE] [flags]", Line: "probe targets until SIGTERM or Ctrl-C. rebound-watch TARGET does the same, and so does rebound-watch -FLAG", Run: probeCommand},
			{Name: "matrix", Args: "-prom URL [flags]", Line: "draw a matrix of who measured whom, from a Prometheus that scrapes the watches", Run: matrixCommand},
			{Name: "suspects", Args: "-prom URL [flags]", Line: "name the hosts, links or zones that explain failing paths, from a Prometheus that scrapes the watches", Run: suspectsCommand},
			{Name: "compare", Args: "A B [C ...]", Line: "compare time ranges that a Prometheus keeps, reports, or other tools' files", Run: compareCommand, Folders: true},
			{Name: "config", Line: "print the configuration file: every setting with its default", Run: configCommand, NoFlags: true},
		},
		Default: "probe", FlagsToo: true,
		Pages:   map[string]func(*command.Env) error{"config": configManual},
		SeeAlso: []string{"rebound-watch(5)", "rebound-responder(8)", "rebound-bench(1)"}}
}

// Main runs rebound-watch with the arguments after the program name and returns the exit status.
func Main(args []string) int { return program().Main(args) }

func configManual(e *command.Env) error {
	v, day := process.BuildStamp()
	return manual.WriteConfig(e.Stdout, newWatchSettings().table, "rebound-watch", "configuration of rebound-watch",
		configIntro, v, day, "rebound-watch(1)")
}

// Run is Main with other output streams.
func Run(args []string, stdout, stderr io.Writer) int { return program().Run(args, stdout, stderr) }
