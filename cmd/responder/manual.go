package main

import (
	"fmt"
	"io"

	"rebound/cmd/internal/manual"
	"rebound/cmd/internal/version"
)

const about = `Answers ICMP echo, UDP echo and STAMP (RFC 8762) from a core of its own, with the driver's receive and transmit and the rewrite of
the frame fused into one loop: the far end for measurements of latency, whose own turnaround is small, steady and recorded.

It prints one line when it answers, and a summary at the end or at SIGUSR1:

  ready driver=afxdp device=eth1 mac=c6:81:39:0d:ff:e1 addresses=10.0.0.2/24

Results go to stdout, the log to stderr. Under systemd (NOTIFY_SOCKET) it says when it answers, and while its loops turn (WATCHDOG_USEC).`

// described is this program as its help and its manual page show it.
func described() *manual.Program {
	p := &manual.Program{Name: "responder", Section: 8, Line: "far end for measurements of network latency", Doc: about,
		Settings: newSettings(nil).table,
		Exit:     "0 done, 1 failed (check: something of the host costs latency), 2 used wrongly.",
		SeeAlso:  []string{"rebound-config(5)", "bench(1)", "simnic(1)"}}
	for i, c := range commands() {
		m := manual.Command{Name: c.name, Args: c.args, Doc: c.doc}
		if i == 0 {
			m.Name = ""
		}
		if c.flags != nil {
			m.Flags = c.flags()
		}
		p.Commands = append(p.Commands, m)
	}
	return p
}

func printUsage(w io.Writer) {
	described().Usage(w)
	fmt.Fprint(w, "\nKEY is as in config.toml (nic.device), VALUE in TOML syntax; a bare word is a string.\n")
}

func manualCommand(args []string, stdout, _ io.Writer) error {
	v, day := version.Stamp()
	switch {
	case len(args) == 0 || len(args) == 1 && args[0] == "responder":
		return described().WriteMan(stdout, v, day)
	case len(args) == 1 && args[0] == "config":
		return manual.WriteConfig(stdout, newSettings(nil).table, "rebound-config", "configuration of Rebound's responder", intro, v, day,
			"responder(8)")
	}
	return usageError(fmt.Sprintf("there is no manual page of %q: there are responder, config", args))
}

func completionCommand(args []string, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return usageError(fmt.Sprintf("unexpected argument %q", args[0]))
	}
	return described().WriteBash(stdout)
}
