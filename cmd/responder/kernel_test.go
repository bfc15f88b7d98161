package main

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel answers while the process keeps no core: ping and UDP over both IP versions, its host's own kernel goes on
// answering, the summary counts, and nothing is left. At the generic hook the peer needs no program of its own.
func TestAnswersInKernel(t *testing.T) {
	w := newWire(t)
	p := w.start(t, nil, "nic.driver=xdp", "nic.generic_xdp=true")
	if !strings.HasPrefix(p.ready, "ready driver=xdp device=port mac=") {
		t.Errorf("ready line %q", p.ready)
	}
	w.run(t, "ping", "-c", "20", "-i", "0.01", "-W", "60", "-s", "1000", ours4)
	w.run(t, "ping", "-6", "-c", "20", "-i", "0.01", "-W", "60", ours6)
	w.run(t, "ping", "-c", "5", "-i", "0.01", "-W", "60", kernels4)
	sent4 := echoUDP(t, w.dial(t, ours4+":7"))
	sent6 := echoUDP(t, w.dial(t, "["+ours6+"]:7"))
	if err := p.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	s := p.summary(t)
	for name, want := range map[string]int{"icmpv4": 20, "icmpv6": 20, "udpv4": sent4, "udpv6": sent6} {
		if got := count(t, s, name); got != want {
			t.Errorf("%s: counted %d, want %d\n%s", name, got, want, s)
		}
	}
	if count(t, s, "arp") == 0 || count(t, s, "nd") == 0 || count(t, s, "turnaround") != count(t, s, "answered") {
		t.Errorf("no ARP or ND was answered, or a reply is not in the histogram:\n%s", s)
	}
	last, code := p.stop(t, unix.SIGTERM)
	if code != exitDone || count(t, last, "icmpv4") != 20 {
		t.Errorf("exit %d\n%s%s", code, last, p.stderr)
	}
	if id := w.xdp(t); id != 0 {
		t.Errorf("XDP program %d is left", id)
	}
}

// What this driver cannot do is refused by name, and an interface that goes ends the process.
func TestKernelFails(t *testing.T) {
	w := newWire(t)
	for _, set := range []string{"stats.listen=127.0.0.1:0", "stats.report=/nowhere"} {
		key, _, _ := strings.Cut(set, "=")
		c := exec.Command(program(t), "-set", "nic.device="+port, "-set", "respond.addresses="+ours4+"/24", "-set", "nic.driver=xdp", "-set", set)
		var out []byte
		var err error
		w.here.do(t, func() { out, err = c.CombinedOutput() })
		if err == nil || !strings.Contains(string(out), key+": driver xdp") {
			t.Errorf("%s: %v\n%s", set, err, out)
		}
	}
	p := w.start(t, nil, "nic.driver=xdp", "nic.generic_xdp=true")
	w.here.do(t, func() {
		if out, err := exec.Command("ip", "link", "del", port).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	if summary, code := p.end(t); code != exitFailed || !strings.Contains(p.stderr.String(), "no start helps") {
		t.Errorf("exit %d\n%s%s", code, summary, p.stderr)
	}
}
