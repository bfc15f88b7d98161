package responder

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// What each command prints and returns, with wrong arguments and without. The file has the commands (add one, and write
// it), and the start of their output; docs have the rest.
func TestCommands(t *testing.T) {
	const file = "testdata/commands.txt"
	defer scheduled(t)()
	dir := t.TempDir()
	_, _, frames := served(t, ixgbesim.New(ixgbesim.Options{MAC: plantMAC}))
	_, _, messages := served(t, efasim.New(efasim.Options{MAC: plantMAC}))
	names := strings.NewReplacer(frames, "FRAMES", messages, "MESSAGES", dir, "DIR",
		strings.TrimPrefix(frames, "vfio-user:"), "SOCKET")
	varies := regexp.MustCompile(`(online: |-\w+-|revision |go1\.|succeeded in )[\w./-]+( linux/\w+)?`)
	skipped := regexp.MustCompile(`^(self-test|note|kernel|\d|- .*(function is reset|firmware or|at the end))`)
	real := strings.NewReplacer("FRAMES", frames, "MESSAGES", messages, "DIR", dir)
	var text strings.Builder
	run := func(line string) {
		args := strings.Fields(real.Replace(line))
		var stdout, stderr bytes.Buffer
		code := command(args, &stdout, &stderr)
		fmt.Fprintf(&text, "$ %s\n  exit %d\n", line, code)
		lines := strings.SplitAfter(names.Replace(stderr.String()+stdout.String()), "\n")
		for i, l := range lines[:len(lines)-1] {
			if i == 3 && args[0] != "probe" {
				fmt.Fprintf(&text, "  ...\n")
				break
			}
			if !skipped.MatchString(l) {
				text.WriteString("  " + varies.ReplaceAllString(l, "${1}X"))
			}
		}
	}
	for line := range strings.Lines(string(must.Get(os.ReadFile(file))(t))) {
		if line, ok := strings.CutPrefix(line, "$"); ok {
			run(strings.TrimSpace(line))
		}
	}
	golden.Equal(t, file, text.String())
}
