// Command init is the appliance's only program: the first process, and under other names the responder and the bench.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rebound-nic/rebound/fleet"
	"github.com/rebound-nic/rebound/internal/bench"
	"github.com/rebound-nic/rebound/internal/responder"
)

// programs are the names under which this program is another one. prepare makes a hard link for each, so that a process
// that starts itself again (/proc/self/exe) keeps its name.
var programs = map[string]func([]string) int{
	"rebound-responder": responder.Main,
	"rebound-bench":     bench.Main,
	"rebound-watch":     fleet.Main,
}

// watchCommand starts mode "watch".
var watchCommand = []string{"/bin/rebound-watch"}

func main() {
	self, _ := os.Executable() // fails in the first process: /proc is not mounted yet
	if run, ok := programs[filepath.Base(self)]; ok {
		os.Exit(run(os.Args[1:]))
	}
	switch {
	case len(os.Args) == 2 && os.Args[1] == "config":
		os.Exit(printDefault())
	case len(os.Args) == 4 && os.Args[1] == "interference":
		os.Exit(printInterference(os.Args[2:]))
	case os.Getpid() == 1:
		boot()
	default:
		fmt.Fprintln(os.Stderr, "init: this is the first process of Rebound's appliance; `init config` prints rebound.toml")
		os.Exit(2)
	}
}
