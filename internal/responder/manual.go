package responder

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/process"
)

const about = `Answers ICMP echo, UDP echo and STAMP (RFC 8762) from a dedicated core. The driver's receive and transmit and the rewrite of the frame are
one loop, so that the responder's own turnaround is small, steady and recorded.

It prints one line when it is ready, and a summary at exit or at SIGUSR1:

  ready driver=afxdp device=eth1 mac=c6:81:39:0d:ff:e1 addresses=10.0.0.2/24

Results go to stdout, the log to stderr. Under systemd it notifies when it is ready (NOTIFY_SOCKET), and while its polling loops run (WATCHDOG_USEC).`

// described is this program as its help and its manual page show it.
func described() *manual.Program {
	p := &manual.Program{Name: "rebound-responder", Section: 8, Line: "answer latency probes from a dedicated core",
		Doc:      about,
		Settings: newSettings(nil).table,
		Exit:     "0 done, 1 failed (check: a host setting increases latency), 2 wrong usage.",
		SeeAlso:  []string{"rebound-config(5)", "rebound-bench(1)", "rebound-simnic(1)"}}
	for i, c := range commands() {
		m := manual.Command{Name: c.name, Args: c.args, Doc: c.doc}
		if i == 0 {
			m.Name = ""
		}
		if c.flags != nil {
			m.Flags = c.flags()
		}
		switch c.name {
		case "completion":
			m.Words = manual.Shells
		case "manual":
			m.Words = []string{"responder", "config"}
		}
		p.Commands = append(p.Commands, m)
	}
	return p
}

func printUsage(w io.Writer) {
	described().Usage(w)
	fmt.Fprint(w, "\nKEY is as in config.toml (nic.device), VALUE in TOML syntax; a bare word is a string. Example:\n  rebound-responder -set nic.device=eth1 -set respond.addresses=10.0.0.2/24\n\"rebound-responder COMMAND -h\" lists a command's flags.\n")
}

// printCommandUsage prints one command's usage with its flags.
func printCommandUsage(w io.Writer, name string) {
	p := described()
	i := slices.IndexFunc(p.Commands, func(c manual.Command) bool { return c.Name == name })
	one := &manual.Program{Name: p.Name, Commands: p.Commands[i : i+1]}
	one.Usage(w)
	if fs := p.Commands[i].Flags; fs != nil {
		fmt.Fprintln(w)
		fs.SetOutput(w)
		fs.PrintDefaults()
	}
}

func manualCommand(args []string, stdout, _ io.Writer) error {
	v, day := process.BuildStamp()
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == "responder":
		return described().WriteMan(stdout, v, day)
	case len(args) == 1 && args[0] == "config":
		return manual.WriteConfig(stdout, newSettings(nil).table, "rebound-config",
			"configuration of Rebound's responder", intro, v, day,
			"rebound-responder(8)")
	}
	return usageError(fmt.Sprintf("no manual page %q: want responder or config", args))
}

func completionCommand(args []string, stdout, _ io.Writer) error {
	shell := "bash"
	switch {
	case len(args) == 1:
		shell = args[0]
	case len(args) > 1:
		return usageError(fmt.Sprintf("unexpected argument %q", args[1]))
	}
	err := described().WriteCompletion(stdout, shell)
	if errors.Is(err, manual.ErrShell) {
		return usageError(err.Error())
	}
	return err
}
