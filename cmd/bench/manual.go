package main

import (
	"flag"
	"slices"
	"strings"

	"rebound/cmd/internal/exit"
	"rebound/cmd/internal/manual"
	"rebound/cmd/internal/version"
)

// described is this program as its manual page shows it. What a command takes, it says itself.
func described() *manual.Program {
	p := &manual.Program{Name: "bench", Section: 1, Line: "measure network round trips and compare them",
		Doc: "bench " + about + "\n\n" + about2, Exit: codes, SeeAlso: []string{"rebound-watch(5)", "responder(8)", "simnic(1)"}}
	for _, c := range commands() {
		m := manual.Command{Name: c.name, Args: c.args, Doc: c.line, Folders: c.name == "compare" || c.name == "report"}
		if !slices.Contains([]string{"version", "manual", "completion", "config"}, c.name) { // these take no flags
			c.run(&env{describe: func(fs *flag.FlagSet, text string) {
				_, doc, _ := strings.Cut(text, "\n\n") // the first line is the usage, which is above already
				m.Flags, m.Doc = fs, m.Doc+"\n\n"+doc
			}}, nil)
		}
		p.Commands = append(p.Commands, m)
	}
	return p
}

func manualCommand(e *env, args []string) error {
	if len(args) == 1 && args[0] == "watch" {
		return watchManual(e)
	}
	if len(args) > 0 {
		return exit.Usagef("%q is left over", args[0])
	}
	v, day := version.Stamp()
	return described().WriteMan(e.stdout, v, day)
}

func completionCommand(e *env, args []string) error {
	if len(args) > 0 {
		return exit.Usagef("%q is left over", args[0])
	}
	return described().WriteBash(e.stdout)
}
