package responder

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
)

func echoUDP(t *testing.T, c *net.UDPConn) int {
	t.Helper()
	n := 0
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	for size := 0; size <= 1452; size += 121 {
		out := bytes.Repeat([]byte{byte(size), 0xa5}, size/2+1)[:size]
		in := make([]byte, 2048)
		must.Get(c.Write(out))(t)
		if got, err := c.Read(in); err != nil || !bytes.Equal(in[:got], out) {
			t.Fatalf("%d bytes to %v came back as %d others, %v", size, c.RemoteAddr(), got, err)
		}
		n++
	}
	return n
}

// The responder answers ping, ping -6 and a kernel's UDP socket; its host's kernel still answers; SIGUSR1 prints the
// counters; SIGTERM ends it with a summary and a report. Driver xdp needs no core; with the generic hook its peer needs
// no program.
func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		driver, queue, push string
		shows               []string // on the metrics page
		absent              string
	}{
		{"afpacket", "0", "", []string{`rebound_wait_seconds{queue="0",quantile="0.99"} `, `rebound_collections_total 0`}, "go_gc"},
		{"afxdp", "0", "", []string{`rebound_wait_seconds{queue="0",quantile="0.99"} `, `rebound_collections_total 0`}, "go_gc"},
		{"xdp", "all", "xdp-generic", []string{`rebound_device_frames_total{direction="tx"} `,
			`rebound_device_own_total{counter="interface_rx_dropped"} `,
			// a counter that it does not have
			`rebound_device_own_total{counter="interface_tx_fifo_errors"} `}, `kind="rx_dropped"`},
	} {
		t.Run(c.driver, func(t *testing.T) {
			w := newWire(t)
			folder, anonymous := filepath.Join(t.TempDir(), "report"), c.driver == "afpacket"
			p := w.start(t, nil, "nic.driver="+c.driver, "nic.generic_xdp="+strconv.FormatBool(c.driver == "xdp"),
				"stats.report="+folder,
				"stats.anonymous="+strconv.FormatBool(anonymous), "stats.listen=127.0.0.1:0")
			want := regexp.MustCompile(`^ready driver=` + c.driver +
				` device=port mac=([0-9a-f]{2}:){5}[0-9a-f]{2} addresses=10\.77\.0\.2/24,fd77::2/64\n$`)
			if !want.MatchString(p.Ready) {
				t.Errorf("ready line %q", p.Ready)
			}

			w.run(t, "ping", "-c", "20", "-i", "0.01", "-W", "60", "-s", "1000", ours4)
			w.run(t, "ping", "-6", "-c", "20", "-i", "0.01", "-W", "60", ours6)
			w.run(t, "ping", "-c", "5", "-i", "0.01", "-W", "60", kernels4)
			sent4 := echoUDP(t, w.dial(t, ours4+":7"))
			sent6 := echoUDP(t, w.dial(t, "["+ours6+"]:7"))

			sent := map[string]int{"icmpv4": 20, "icmpv6": 20, "udpv4": sent4, "udpv6": sent6}
			s := p.counted(t, sent)
			for name, want := range sent {
				check.Equal(t, count(t, s, name), want, name+": counted %d")
			}
			if count(t, s, "arp") == 0 || count(t, s, "nd") == 0 || count(t, s, "turnaround") == 0 ||
				count(t, s, "turnaround") > count(t, s, "answered") {
				t.Errorf("no ARP or ND was answered, or the histogram is wrong:\n%s", s)
			}

			metrics := w.metrics(t, p)
			check.Contains(t, metrics, append(c.shows, fmt.Sprintf(`rebound_answered_total{kind="icmpv4",queue=%q} 20`,
				c.queue),
				fmt.Sprintf(`rebound_answered_total{kind="udpv6",queue=%q} %d`, c.queue, sent6),
				fmt.Sprintf(`rebound_refused_total{queue=%q,reason="port"} 0`, c.queue),
				fmt.Sprintf(`rebound_turnaround_seconds_count{queue=%q} `, c.queue))...)
			if strings.Contains(metrics, c.absent) { // reading the Go collector's stops the world
				t.Errorf("metrics have %q:\n%s", c.absent, metrics)
			}

			w.run(t, "ping", "-c", "1", "-W", "60", ours4)
			last := p.stop(t, unix.SIGTERM)
			check.Equal(t, count(t, last, "icmpv4"), 21, "%d pings in the summary")
			rep := must.Get(report.Read(folder))(t)
			if rep.Metric != report.Turnaround || rep.Main() == nil ||
				rep.Main().Summary.Count != int64(count(t, last, "turnaround")) ||
				(rep.Find(latency.GapSeries) != nil) != (c.driver != "xdp") || rep.Device.Driver != c.driver ||
				rep.Device.Backend != "socket" ||
				c.push != "" && rep.Device.Push != c.push || rep.Counts.Sent != int64(count(t, last, "answered")) {
				t.Errorf("report: %+v", rep)
			}
			if named := rep.Host.Hostname != "" && rep.Device.MAC != "" && len(rep.Args) > 0; named == anonymous {
				t.Errorf("%s: host %q, MAC %q, command line %q", c.driver, rep.Host.Hostname, rep.Device.MAC, rep.Args)
			}
			check.Equal(t, w.xdp(t), 0, "XDP program %d is left")
		})
	}
}

// With its own MAC the responder answers from that one, including ARP and ND, and the kernel continues with the
// interface's.
func TestOwnMAC(t *testing.T) {
	for _, driver := range socketDrivers {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			p := w.start(t, nil, "nic.driver="+driver, `nic.mac="02:52:62:6e:64:01"`)
			if !strings.Contains(p.Ready, " mac=02:52:62:6e:64:01 ") {
				t.Errorf("ready line %q", p.Ready)
			}
			w.run(t, "ping", "-c", "5", "-i", "0.01", "-W", "60", ours4)
			w.run(t, "ping", "-6", "-c", "5", "-i", "0.01", "-W", "60", ours6)
			w.run(t, "ping", "-c", "5", "-i", "0.01", "-W", "60", kernels4)
			echoUDP(t, w.dial(t, ours4+":7"))
		})
	}
}

// client returns an HTTP client in the responder's namespace.
func (w *wire) client(t *testing.T) *http.Client {
	dial := func(_ context.Context, network, address string) (c net.Conn, err error) {
		w.here.do(t, func() { c, err = net.Dial(network, address) })
		return c, err
	}
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
}

func (p *child) metricsURL(t *testing.T) string {
	t.Helper()
	p.logs("/metrics")
	m := regexp.MustCompile(`url=(http://\S+?/metrics)`).FindStringSubmatch(p.Log.String())
	if m == nil {
		t.Fatalf("no URL in the log:\n%s", p.Log)
	}
	return m[1]
}

func (w *wire) metrics(t *testing.T, p *child) string {
	t.Helper()
	r := must.Get(w.client(t).Get(p.metricsURL(t)))(t)
	defer r.Body.Close()
	return string(must.Get(io.ReadAll(r.Body))(t))
}

func TestKillLeavesNothing(t *testing.T) {
	for _, driver := range socketDrivers {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			for range 2 {
				p := w.start(t, nil, "nic.driver="+driver)
				w.run(t, "ping", "-c", "2", "-i", "0.01", "-W", "60", ours4)
				if driver == "afxdp" && w.xdp(t) == 0 {
					t.Fatal("no XDP program is attached while it runs: the test would see none left whatever happens")
				}
				p.Process.Kill()
				p.Wait()
				await.Until(t, "the kernel removes the XDP program", func() bool { return w.xdp(t) == 0 })
			}
		})
	}
}

// While the loop polls, the Go runtime does not use its core: no collection, no other thread, and not one voluntary
// context switch of the polling thread, which would be a yield to the scheduler.
func TestRuntimeStaysAway(t *testing.T) {
	w := newWire(t)
	core := lastOfTwoCPUs(t)
	started := time.Now()
	p := w.start(t, []string{"GODEBUG=gctrace=1", "GOGC=1"}, "nic.driver=afpacket", "cpu.cores="+core)
	ready := time.Since(started).Seconds()
	// A collection is identified by its start, in seconds since the process started. The runtime logs it when it ends,
	// and the line of the last one before the loop may arrive after the ready line, on another pipe.
	collections := func() (before, since []string) {
		for _, m := range regexp.MustCompile(`(?m)^gc \d+ @([0-9.]+)s.*$`).FindAllStringSubmatch(p.Log.String(), -1) {
			if at, err := strconv.ParseFloat(m[1], 64); err != nil || at > ready {
				since = append(since, m[0])
			} else {
				before = append(before, m[0])
			}
		}
		return before, since
	}
	w.run(t, "ping", "-c", "1", "-W", "60", ours4) // after the first answer, start-up is complete
	thread, switches := pollingThread(t, p, core)
	// a second, in which the monitor would request 100 yields
	w.run(t, "ping", "-c", "100", "-i", "0.01", "-W", "60", ours4)
	if same, after := pollingThread(t, p, core); same != thread || after != switches {
		t.Errorf("the polling thread %d gave its core away: %s times, %s before", thread, after, switches)
	}
	// waits for up to a minute: by then all earlier requests are answered
	w.run(t, "ping", "-c", "1", "-W", "60", ours4)
	before, since := collections()
	if len(before) == 0 {
		t.Error("gctrace shows nothing: the test would see no collection whatever happens")
	}
	if len(since) > 0 {
		t.Errorf("collections while serving: %q", since)
	}
	p.counted(t, map[string]int{"icmpv4": 102})
	check.Equal(t, count(t, p.stop(t, unix.SIGINT), "icmpv4"), 102, "%d pings in the summary")
}

// pollingThread finds the only thread that may run on core, and its number of voluntary context switches.
func pollingThread(t *testing.T, p *child, core string) (tid int, switches string) {
	t.Helper()
	tid = p.only(t, "may run on core "+core, func(status map[string]string) bool {
		return slices.Contains(must.Get(isolate.ParseCPUs(status["Cpus_allowed_list"]))(t),
			must.Get(strconv.Atoi(core))(t))
	})
	return tid, threads(t, p.Process.Pid)[tid]["voluntary_ctxt_switches"]
}

// An interface that is set down, or that vanishes, ends the responder with one message, exit code 1 and the summary.
func TestInterfaceFails(t *testing.T) {
	for _, driver := range []string{"afpacket", "afxdp", "xdp"} {
		for name, c := range map[string]struct {
			what func(netlink.Link) error
			want string
		}{
			"down": {netlink.LinkSetDown, "interface is down"},
			"gone": {netlink.LinkDel, "starting again does not help"},
		} {
			if driver == "xdp" && name == "down" {
				continue // its program answers again when the interface is up
			}
			t.Run(driver+" "+name, func(t *testing.T) {
				w := newWire(t)
				p := w.start(t, nil, "nic.driver="+driver, "nic.generic_xdp=true", "nic.down_limit=0s")
				w.run(t, "ping", "-c", "1", "-W", "60", ours4)
				w.here.do(t, func() { must.OK(t, c.what(must.Get(netlink.LinkByName(port))(t))) })
				check.Equal(t, count(t, p.end(t, exitFailed), "icmpv4"), 1, "%d pings in the summary")
				if lines := problems(p.Log.String()); len(lines) != 1 || !strings.Contains(lines[0], c.want) {
					t.Errorf("messages %q, want one with %q", lines, c.want)
				}
				check.Equal(t, w.xdp(t), 0, "XDP program %d is left")
			})
		}
	}
}

// problems returns the lines of stderr that are not from the log.
func problems(stderr string) (out []string) {
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "time=") {
			out = append(out, strings.TrimSuffix(line, "\n"))
		}
	}
	return out
}

// Ways to fail before it answers that need an interface or a user: the exit code, one message, no ready line, nothing
// attached.
func TestExitCodes(t *testing.T) {
	w := newWire(t)
	good := set("nic.driver=afpacket", "nic.device="+port, "respond.addresses="+ours4+"/24")
	for _, c := range []struct {
		name string
		args []string
		user uint32
		code int
		want string
	}{
		{name: "no device", args: []string{}, code: 2, want: "nic.device: is empty"},
		{name: "no interface", args: append(good, "-set", "nic.device=nowhere"), code: 1, want: "interface nowhere: no such device"},
		{name: "no interface, auto", args: append(good, "-set", "nic.driver=auto", "-set", "nic.device=nowhere"), code: 1, want: "interface nowhere: no such device"},
		{name: "loopback, in the kernel", args: append(good, "-set", "nic.device=lo", "-set", "nic.driver=xdp"), code: 1, want: "lo has no Ethernet address"},
		{name: "probe no interface", args: []string{"probe", "nowhere"}, code: 1, want: "interface nowhere: no such device"},
		{name: "loopback", args: append(good, "-set", "nic.device=lo"), code: 1, want: "lo has no Ethernet address"},
		{name: "no function", args: append(good, "-set", "nic.driver=auto", "-set", "nic.device=00ff:1f:1f.7"), code: 1, want: "no such device"},
		{name: "the kernel's address", args: append(good, "-set", "respond.addresses="+kernels4), code: 1, want: "the kernel owns it on port"},
		{name: "no rights", args: good, user: 65534, code: 1, want: "not allowed"},
		{name: "no rights, auto", args: append(good, "-set", "nic.driver=auto"), user: 65534, code: 1, want: "not allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(program(t), c.args...)
			if c.user != 0 {
				cmd.Path = filepath.Join(programs.ForOthers(t, "responder"), "responder")
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.user, Gid: c.user}}
			}
			stdout, stderr, code := w.here.outcome(t, cmd)
			lines := problems(stderr)
			if code != c.code || len(lines) == 0 || !strings.HasPrefix(lines[0], "rebound-responder: ") ||
				!strings.Contains(lines[0], c.want) {
				t.Errorf("exit %d, want %d with %q\n%s", code, c.code, c.want, stderr)
			}
			if len(lines) != 1 {
				t.Errorf("%d messages:\n%s", len(lines), stderr)
			}
			if c.user != 0 && strings.Count(stderr, "\n") != 1 {
				t.Errorf("more than one line without the rights:\n%s", stderr)
			}
			for _, hint := range []string{"MEMLOCK", "mmapable"} {
				if strings.Contains(stderr, hint) {
					t.Errorf("a hint of the eBPF library (%s):\n%s", hint, stderr)
				}
			}
			if n := strings.Count(stderr, "finding="); n > 0 {
				t.Errorf("the problem stands behind %d findings about the host:\n%s", n, stderr)
			}
			check.Equal(t, stdout, "", "on stdout: %q")
			check.Equal(t, w.xdp(t), 0, "XDP program %d is left")
		})
	}
}

// A STAMP test packet comes back with its sequence number, and with timestamps that agree with this machine's clock.
func TestSTAMP(t *testing.T) {
	for _, driver := range []string{"afpacket", "xdp"} {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			w.start(t, nil, "nic.driver="+driver, "nic.generic_xdp=true")
			c := w.dial(t, ours4+":862")
			c.SetDeadline(time.Now().Add(time.Minute))
			out, in := make([]byte, 44), make([]byte, 100)
			binary.BigEndian.PutUint32(out, 0xcafe)
			before := time.Now()
			must.Get(c.Write(out))(t)
			n, err := c.Read(in)
			after := time.Now()
			if err != nil || n != 44 {
				t.Fatalf("%d bytes, %v", n, err)
			}
			if seq := binary.BigEndian.Uint32(in[24:]); seq != 0xcafe {
				t.Errorf("sequence number of the sender is %#x", seq)
			}
			sent, received := binary.BigEndian.Uint64(in[4:]), binary.BigEndian.Uint64(in[16:])
			// a millisecond, for two clocks that are compared by reading one after the other
			const slack = 1 << 32 / 1000
			if received > sent || received+slack < ntp(before) || sent > ntp(after)+slack {
				t.Errorf("received at %#x, sent at %#x, asked between %#x and %#x", received, sent, ntp(before),
					ntp(after))
			}
		})
	}
}
