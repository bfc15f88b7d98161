package responder

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// What each command prints and returns, with wrong arguments and without. The start of the output is recorded; docs
// have the rest.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	_, _, frames := served(t, ixgbesim.New(ixgbesim.Options{MAC: plantMAC}))
	_, _, messages := served(t, efasim.New(efasim.Options{MAC: plantMAC}))
	names := strings.NewReplacer(frames, "FRAMES", messages, "MESSAGES", dir, "DIR",
		strings.TrimPrefix(frames, "vfio-user:"), "SOCKET")
	varies := regexp.MustCompile(`(online: |-\w+-|revision |go1\.|succeeded in )[\w./-]+( linux/\w+)?`)
	skipped := regexp.MustCompile(`^(self-test|note|kernel|\d|- .*(function is reset|firmware or|at the end))`)
	var text strings.Builder
	run := func(line string) {
		args := strings.Fields(strings.NewReplacer("FRAMES", frames, "MESSAGES", messages, "DIR", dir).Replace(line))
		var stdout, stderr bytes.Buffer
		code := command(args, &stdout, &stderr)
		fmt.Fprintf(&text, "%s: %d\n", line, code)
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
	for _, c := range commands() {
		run(c.name + " -h")
	}
	for _, line := range []string{"", "-h", "help", "-version x", "--version", "version all", "answer", "serv", "-port 7", "config all",
		"-config /nonexistent.toml", "-set nic.device=lo eth1", "-set nic.devcie=lo", "-set cpu.cores=4000",
		"-set nic.device=lo -set respond.addresses=224.0.0.1", "config", "manual", "manual config", "manual x", "completion",
		"completion fish", "completion tcsh", "completion bash x", "release all", "nics all", "bind", "bind lo", "bind 00ff:1f:1f.7 x",
		"bind -force -group nosuchgroup 00ff:1f:1f.7", "unbind", "unbind lo", "unbind -x", "status a b", "status a/b", "unpin", "unpin a/b", "unpin -help",
		"probe", "probe -stage x lo", "probe -peer 10.0.0.1 lo", "probe -stage loop -peer 10.0.0.1 -from x lo",
		"probe -stage loop -peer fd00::1 -from 10.0.0.1 lo", "probe -stage read -peer 10.0.0.1 -from 10.0.0.2 lo",
		"probe -set nic.driver=xdp lo", "probe -set nic.color=red lo", "probe 00ff:1f:1f.7", "check all", "check -set nic.color=red",
		"check -set cpu.cores=[0,0]", "check -set cpu.cores=4000",
		"-set nic.device=FRAMES", "-set nic.driver=efa -set nic.device=MESSAGES -set respond.addresses=10.0.0.2/24",
		"-set nic.device=lo -set respond.addresses=10.0.0.2/24 -set respond.handover=127.0.0.1:1",
		"-set nic.device=lo -set respond.addresses=10.0.0.2/24 -set respond.stamp_messages=true",
		"-set nic.device=MESSAGES -set respond.handover=0.0.0.0:18515", "-set nic.device=MESSAGES -set nic.qkey=0",
		"-set nic.driver=efa -set nic.device=eth0", "-set nic.pin=p -set nic.driver=afxdp -set nic.device=lo",
		"probe -stage loop -wait 10ms -o DIR/probes FRAMES", "probe -o /dev/null FRAMES",
		"probe -set nic.driver=virtio -o DIR/probes FRAMES", "probe -o DIR/probes vfio-user:DIR/none",
	} {
		run(line)
	}
	golden.Equal(t, "testdata/commands.txt", text.String())
}
