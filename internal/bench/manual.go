package bench

import (
	"errors"
	"flag"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/version"
)

// described is this program for its manual page. Each command describes its own arguments.
func described() *manual.Program {
	p := &manual.Program{Name: "rebound-bench", Section: 1, Values: values(), Line: "measure network round trips and compare them",
		Doc: "rebound-bench " + about + "\n\n" + about2, Exit: codes, SeeAlso: []string{"rebound-watch(5)", "rebound-responder(8)", "rebound-simnic(1)"}}
	for _, c := range commands() {
		m := manual.Command{Name: c.name, Args: c.args, Doc: c.line, Folders: slices.Contains([]string{"compare", "report", "history"}, c.name)}
		if !slices.Contains([]string{"version", "manual", "completion", "config"}, c.name) { // these take no flags
			c.run(&env{describe: func(fs *flag.FlagSet, text string) {
				_, doc, _ := strings.Cut(text, "\n\n") // the first line is the usage, which is already printed above
				m.Flags, m.Doc = fs, m.Doc+"\n\n"+doc
			}}, nil)
		}
		switch c.name {
		case "completion":
			m.Words = manual.Shells
		case "manual":
			m.Words = []string{"watch"}
		}
		p.Commands = append(p.Commands, m)
	}
	return p
}

// values are the values of flags that are not settings.
func values() map[string][]string {
	return map[string][]string{"ab": {"name=", "target="}, "size": {"rfc2544"}}
}

func manualCommand(e *env, args []string) error {
	if len(args) == 1 && args[0] == "watch" {
		return watchManual(e)
	}
	if len(args) > 0 {
		return exit.Usagef("unexpected argument %q", args[0])
	}
	v, day := version.Stamp()
	return described().WriteMan(e.stdout, v, day)
}

func completionCommand(e *env, args []string) error {
	shell := "bash"
	switch {
	case len(args) == 1:
		shell = args[0]
	case len(args) > 1:
		return exit.Usagef("unexpected argument %q", args[1])
	}
	err := described().WriteCompletion(e.stdout, shell)
	if errors.Is(err, manual.ErrShell) {
		return exit.Usagef("%w", err)
	}
	return err
}
