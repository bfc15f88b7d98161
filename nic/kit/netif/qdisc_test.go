package netif

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

func TestTrafficControl(t *testing.T) {
	needs.Root(t, "a network namespace")
	needs.Programs(t, "tc", "ip")
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must.OK(t, unix.Unshare(unix.CLONE_NEWNET))
	run := func(line string) (string, error) {
		args := strings.Fields(line)
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("ip link add one numtxqueues 2 type veth peer name two"); err != nil {
		t.Fatal(out, err)
	}
	const root, all = "tc qdisc add dev one root ", " protocol ip u32 match u32 0 0 flowid 1:1"
	for _, c := range []struct {
		commands        string // separated by ";"
		egress, ingress string
	}{
		{"", "", ""},
		{root + "pfifo_fast", "", ""},
		{root + "pfifo", "pfifo", ""},
		{root + "netem delay 1ms", "netem", ""},
		{root + "tbf rate 200kbit burst 2k latency 500ms", "tbf", ""},
		{root + "htb default 1", "htb", ""},
		{root + "fq_codel", "", ""},
		{root + "handle 1: mq", "", ""},
		{root + "handle 1: mq; tc qdisc add dev one parent 1:2 handle 2: tbf rate 200kbit burst 2k latency 500ms", "tbf", ""},
		{"tc qdisc add dev one clsact", "", ""},
		{"tc qdisc add dev one clsact; tc filter add dev one egress" + all, "clsact", ""},
		{"tc qdisc add dev one clsact; tc filter add dev one ingress" + all, "", "clsact"},
		{"tc qdisc add dev one ingress; tc filter add dev one ingress" + all, "", "ingress"},
		{root + "pfifo; tc qdisc add dev one clsact; tc filter add dev one egress" + all + "; tc filter add dev one ingress" + all, "pfifo, clsact", "clsact"},
	} {
		for line := range strings.SplitSeq(c.commands, ";") {
			if line == "" {
				continue
			}
			if out, err := run(line); err != nil && strings.Contains(out, "unknown") {
				t.Logf("%s: %s", line, out) // the kernel lacks it
				c.egress = ""
			} else if err != nil {
				t.Error(line, out, err)
			}
		}
		egress, ingress, err := TrafficControl("one")
		must.OK(t, err)
		check.Equal(t, egress, c.egress, c.commands+": egress %q")
		check.Equal(t, ingress, c.ingress, c.commands+": ingress %q")
		_, _ = run("tc qdisc del dev one root")
		_, _ = run("tc qdisc del dev one ingress")
		_, _ = run("tc qdisc del dev one clsact")
	}
	_, _, err := TrafficControl("none")
	check.Fails(t, "an interface that does not exist", err, nil)
}
