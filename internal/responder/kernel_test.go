package responder

import (
	"encoding/json"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// Without a core, and without zero copy on the interface, auto selects the program in the kernel, and logs the reason.
func TestAutoInKernel(t *testing.T) {
	for core, why := range map[string]string{"": "no core is dedicated to it",
		"cpu.cores=0": "shares no memory with AF_XDP sockets"} {
		w := newWire(t)
		// of a loop on a core, which the program in the kernel does not have
		sets := []string{"nic.driver=auto", "cpu.priority=50"}
		if core != "" {
			sets = append(sets, core)
		}
		p := w.start(t, nil, sets...)
		if !strings.HasPrefix(p.Ready, "ready driver=xdp ") || !p.logs("driver chosen") || !p.logs(why) ||
			!p.logs("has no effect with driver xdp") || !p.logs("setting=cpu.priority") {
			t.Errorf("%s: %s\n%s", core, p.Ready, p.Log)
		}
		w.run(t, "ping", "-c", "3", "-i", "0.01", "-W", "60", ours4)
		p.stop(t, unix.SIGTERM)
	}
}

// check reports where the kernel answers and the driver's features, and nothing about a polling core.
func TestCheckInKernel(t *testing.T) {
	w := newWire(t)
	out, _, _ := w.responder(t, append([]string{"check"}, set("cpu.priority=50", "nic.driver=xdp",
		"nic.device="+port)...)...)
	check.Contains(t, out, "no core polls: the kernel answers on CPU", "cpu.priority: has no effect with driver xdp",
		"XDP features of port, driver veth: basic", "the peer of port has no XDP program")
	if strings.Contains(out, "isolated") {
		t.Errorf("a polling core's findings:\n%s", out)
	}
	p := w.start(t, nil, "nic.driver=xdp")
	if out, _, code := w.responder(t, "check", "-set", "nic.driver=auto", "-set",
		"nic.device="+port); code != exitFailed || !strings.Contains(out, "another responder or bench uses it") {
		t.Errorf("exit %d with a responder on the interface\n%s", code, out)
	}
	p.stop(t, unix.SIGTERM)
}

// A pinned program still answers after SIGKILL; status finds and describes it, a responder joins it, unpin ends it.
func TestPinned(t *testing.T) {
	nictest.NeedBPFFS(t)
	w := newWire(t)
	ping := func(n int) {
		t.Helper()
		w.run(t, "ping", "-c", fmt.Sprint(n), "-i", "0.01", "-W", "60", ours4)
	}
	p := w.start(t, nil, "nic.driver=xdp", "nic.pin=lab-1", "respond.stamp_base=true")
	ping(10)
	p.Process.Kill()
	p.Wait()
	ping(10)

	var s struct {
		Pin, Device, Mode string
		Attached, Running bool
		Answered          uint64
		Verdicts          map[string]uint64
		Addresses         []string
		Ports             []uint16 `json:"udp_ports"`
	}
	status := func(pings uint64) { // waits until that many are counted: ping may exit before
		t.Helper()
		await.Holds(func() bool {
			out, stderr, code := w.responder(t, "status", "-json", "lab-1")
			s.Verdicts = nil
			if err := json.Unmarshal([]byte(out), &s); err != nil || code != exitDone {
				t.Fatalf("status: exit %d, %v\n%s%s", code, err, out, stderr)
			}
			return s.Verdicts["icmpv4"] >= pings
		})
	}
	status(20)
	if s.Pin != "lab-1" || s.Device != port || s.Mode != "strict" || !s.Attached || s.Running ||
		s.Verdicts["icmpv4"] != 20 || s.Answered < 20 ||
		len(s.Addresses) != 2 || len(s.Ports) != 1 {
		t.Errorf("%+v", s)
	}
	if out, _, code := w.responder(t, "status"); code != exitDone ||
		!strings.Contains(out, "answers without a process") || !regexp.MustCompile(`icmpv4 +20`).MatchString(out) {
		t.Errorf("status: exit %d\n%s", code, out)
	}
	// A start without the pin reports it.
	_, stderr, code := w.responder(t, set("nic.device="+port, "respond.addresses="+ours4+"/24", "nic.driver=xdp")...)
	if code != exitFailed || !strings.Contains(stderr, `nic.pin = "lab-1"`) {
		t.Errorf("without the pin: exit %d\n%s", code, stderr)
	}
	p = w.start(t, nil, "nic.driver=auto", "nic.pin=lab-1")
	ping(10)
	status(30)
	if !s.Running || s.Verdicts["icmpv4"] != 30 {
		t.Errorf("joined: %+v", s)
	}
	check.Equal(t, count(t, p.stop(t, unix.SIGTERM), "icmpv4"), 30, "%d pings in the summary")
	ping(10)
	p = w.start(t, nil, "nic.driver=xdp", "nic.pin=lab-1")
	if out, stderr, code := w.responder(t, "unpin", "lab-1"); code != exitDone || out != "" {
		t.Errorf("unpin: exit %d\n%s%s", code, out, stderr)
	}
	p.end(t, exitFailed)
	check.Contains(t, p.Log.String(), "taken off by somebody")
	check.Equal(t, w.xdp(t), 0, "XDP program %d is left")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"status"}, exitDone, "nothing is pinned"},
		{[]string{"status", "lab-1"}, exitFailed, `pin "lab-1": no such pin`},
		{[]string{"unpin", "lab-1"}, exitFailed, `no such pin (pins: none)`},
		{[]string{"unpin"}, exitUsage, "needs the name"},
		{[]string{"unpin", "a/b"}, exitUsage, "cannot name a pin"},
		{[]string{"status", "-x"}, exitUsage, "-x"},
		{set("nic.device=port", "respond.addresses="+ours4, "nic.driver=afxdp", "nic.pin=x"), exitUsage, "nic.pin"},
		{set("nic.device=port", "respond.addresses="+ours4, "nic.pin=x.y"), exitUsage, "cannot name a pin"},
	} {
		if out, stderr, code := w.responder(t, c.args...); code != c.code || !strings.Contains(out+stderr, c.says) {
			t.Errorf("%v: exit %d\n%s%s", c.args, code, out, stderr)
		}
	}
}

// On the host's own address, and without the interface's name, the program answers test packets and UDP echo. TCP,
// other UDP ports, and replies to the host's own requests reach the kernel.
func TestOwnAddress(t *testing.T) {
	w := newWire(t)
	p := w.start(t, nil, "nic.driver=xdp", `nic.device=""`, "respond.addresses="+kernels4)
	if !strings.HasPrefix(p.Ready, "ready driver=xdp device=port mac=") {
		t.Errorf("ready line %q", p.Ready)
	}
	sent := echoUDP(t, w.dial(t, kernels4+":7"))
	w.run(t, "ping", "-c", "20", "-i", "0.01", "-W", "60", kernels4)
	tcp := in(t, w.here, func() (net.Listener, error) { return net.Listen("tcp", kernels4+":7") })
	other := in(t, w.here, func() (net.PacketConn, error) { return net.ListenPacket("udp", kernels4+":4789") })
	defer tcp.Close()
	defer other.Close()
	in(t, w.there, func() (net.Conn, error) { return net.Dial("tcp", kernels4+":7") }).Close()
	c := w.dial(t, kernels4+":4789")
	c.SetDeadline(time.Now().Add(time.Minute))
	other.SetDeadline(time.Now().Add(time.Minute))
	must.Get(c.Write([]byte("question")))(t)
	b := make([]byte, 100)
	n, from, err := other.ReadFrom(b)
	if err != nil || string(b[:n]) != "question" {
		t.Fatalf("another port: %q, %v", b[:n], err)
	}
	must.Get(other.WriteTo([]byte("answer"), from))(t)
	if n, err = c.Read(b); err != nil || string(b[:n]) != "answer" {
		t.Errorf("another port: %q, %v", b[:n], err)
	}
	p.counted(t, map[string]int{"icmpv4": 20, "udpv4": sent})
	p.stop(t, unix.SIGTERM)
	check.Equal(t, w.xdp(t), 0, "XDP program %d is left")
	// Without the responder's program the kernel has no echo service.
	u := w.dial(t, kernels4+":7")
	u.SetDeadline(time.Now().Add(time.Minute))
	u.Write([]byte("anyone"))
	if n, err := u.Read(b); err == nil {
		t.Errorf("echo from the kernel: %q", b[:n])
	}
}
