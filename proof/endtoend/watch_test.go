package endtoend

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/echohost"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/programs"
)

// watched is a watch running as a process.
type watched struct {
	*programs.Running
	n      *network
	listen string
}

func (n *network) watch(port int, args ...string) *watched {
	n.t.Helper()
	w := &watched{n: n, listen: fmt.Sprintf("127.0.0.1:%d", port)}
	c := child(append([]string{"watch", "-v", "-listen", w.listen}, args...)...)
	if n.user != 0 {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: n.user, Gid: n.user}
	}
	return w.begin(c)
}

func (w *watched) begin(c *exec.Cmd) *watched {
	w.n.t.Helper()
	if w.Running = programs.Start(w.n.t, c, w.n.near.Do); !strings.HasPrefix(w.Ready, "watching ") {
		w.n.t.Fatalf("%q\n%s", w.Ready, w.Log)
	}
	return w
}

func (w *watched) end() {
	w.n.t.Helper()
	w.n.must(w.Process.Signal(syscall.SIGTERM))
	io.Copy(io.Discard, w.Lines)
	if err := w.Wait(); err != nil {
		w.n.t.Errorf("%v\n%s", err, w.Log)
	}
}

func (w *watched) page() map[string]float64 {
	values := map[string]float64{}
	err := w.n.near.Do(func() error {
		c, err := net.Dial("tcp", w.listen)
		if err != nil {
			return err
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK { // the page's rate limit was exceeded
			return errors.New(r.Status)
		}
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			if at := strings.LastIndexByte(lines.Text(), ' '); at > 0 && lines.Text()[0] != '#' {
				values[lines.Text()[:at]], _ = strconv.ParseFloat(lines.Text()[at+1:], 64)
			}
		}
		return lines.Err()
	})
	if err != nil {
		return nil // the rate limit may have been exceeded: request it again
	}
	return values
}

func (w *watched) until(what string, good func(map[string]float64) bool) map[string]float64 {
	w.n.t.Helper()
	var v map[string]float64
	await.Until(w.n.t, what, func() bool {
		v = w.page()
		return len(v) > 0 && good(v)
	}, func() string {
		maps.DeleteFunc(v, func(name string, _ float64) bool { return strings.Contains(name, "_bucket{") })
		return fmt.Sprint(v)
	}, w.Log.String)
	return v
}

func (w *watched) says(what string) {
	w.n.t.Helper()
	await.Until(w.n.t, fmt.Sprintf("%q in the log", what), func() bool {
		return strings.Contains(w.Log.String(), what)
	}, w.Log.String)
}

func of(metric, target string, more ...string) string {
	proto, _, _ := strings.Cut(target, ":")
	return metric + "{" + strings.Join(append(more, `proto="`+proto+`"`, `target="`+target+`"`), ",") + "}"
}

// replaceFile replaces a file at once, so that a watch does not read a part of it.
func (n *network) replaceFile(file, text string) {
	n.t.Helper()
	n.must(os.WriteFile(file+".new", []byte(text), 0o644))
	n.must(os.Rename(file+".new", file))
}

// stampReply is the reply of a stateful STAMP reflector that has sent count replies in this session.
func stampReply(request []byte, count uint32) []byte {
	out := echohost.Reflect(request)
	now := uint64(time.Now().Unix()+2208988800) << 32
	binary.BigEndian.PutUint32(out, count)
	binary.BigEndian.PutUint64(out[4:], now)
	binary.BigEndian.PutUint64(out[16:], now)
	return out
}

// reflector is a stateful STAMP reflector that ignores every ninth packet, and does not send every seventh reply.
func (n *network) reflector(address string) (lostThere, lostBack *atomic.Int64) {
	n.t.Helper()
	lostThere, lostBack = new(atomic.Int64), new(atomic.Int64)
	i, count := 0, uint32(0)
	serveUDP(n.t, n.far, address, func(b []byte, _ netip.AddrPort) []byte {
		if i++; i%9 == 0 {
			lostThere.Add(1)
			return nil
		}
		reply := stampReply(b, count)
		if count++; i%7 == 0 {
			lostBack.Add(1)
			return nil
		}
		return reply
	})
	return lostThere, lostBack
}

// A watch probes the targets in its sources, follows changes and keeps its targets if a source is wrong, determines the
// direction of loss, and continues with the hour's log after a restart.
func TestWatch(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	there, back := n.reflector(far4 + ":862")
	dir := t.TempDir()
	sd, list, logs := filepath.Join(dir, "sd.yml"), filepath.Join(dir, "list"), filepath.Join(dir, "logs")
	write := n.replaceFile
	write(sd, "- targets: ["+far4+"]\n  labels: {site: ams}\n")
	write(list, "icmp:"+far6+"\nstamp:"+far4+"\n")
	args := []string{"-driver", "afpacket", "-file", list, "-file-sd", sd, "-dir", logs, "-interval", "1s", "-rate",
		"50"}
	w := n.watch(9470, args...)
	icmp4, icmp6, stamp := `rebound_probes_total{proto="icmp",site="ams",target="icmp:`+far4+`"}`,
		of("rebound_probes_total", "icmp:["+far6+"]"), "stamp:"+far4+":862"
	forward, backward := of("rebound_lost_oneway_total", stamp, `direction="forward"`),
		of("rebound_lost_oneway_total", stamp, `direction="backward"`)
	trips6, trips := of("rebound_rtt_seconds_count", "icmp:["+far6+"]"), of("rebound_rtt_seconds_count", stamp)
	v := w.until("each target has replies, and loss of both directions is shown", func(v map[string]float64) bool {
		return v[icmp4] > 40 && v[icmp6] > 40 && v[trips6] >= 20 && v[trips] >= 20 &&
			v[of("rebound_target_ready", stamp)] == 1 && v[of("rebound_target_up", stamp)] == 1 && v[forward] > 3 &&
			v[backward] > 3
	})
	if v["rebound_watch_targets"] != 3 {
		t.Errorf("%v", v)
	}
	w.says(`msg="target is up" target=` + stamp)
	write(sd, "- targets: ["+far4+"]\n- targets: [10.0.0]\n")
	w.says("sd.yml:2: target")
	if v := w.until("the failure is counted", func(v map[string]float64) bool {
		return v["rebound_watch_source_failures_total"] == 1
	}); v["rebound_watch_targets"] != 3 {
		t.Errorf("what the file had is not kept: %v", v["rebound_watch_targets"])
	}
	write(sd, "- targets: []\n")
	w.until("the target is gone", func(v map[string]float64) bool {
		_, has := v[icmp4]
		return !has &&
			v["rebound_watch_targets"] == 2
	})
	w.until("the log is written", func(v map[string]float64) bool { return v["rebound_watch_disk_bytes"] > 1000 })
	w.end()
	// Losses before the last reply are reported; later ones are not.
	if f, b := int64(v[forward]), int64(v[backward]); f > there.Load() || b > back.Load()+2 ||
		float64(f) < 0.5*float64(b) {
		t.Errorf("lost on the way there %d of %d, on the way back %d of %d", f, there.Load(), b, back.Load())
	}

	before := logged(t, logs, "stamp-10-98-0-2-862-")
	w = n.watch(9470, args...)
	w.until("there is more for the log", func(v map[string]float64) bool { return v[trips] >= 20 })
	w.end()
	if after := logged(t, logs, "stamp-10-98-0-2-862-"); before < 20 || after < before+20 {
		t.Errorf("%d round trips of STAMP in the logs, then %d", before, after)
	}
}

// A target's labels have the key and the session identifier of its test packets, which take effect when the key
// changes: with the wrong key nothing is answered.
func TestWatchAuthenticated(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	key := keyFile(t)
	n.startResponder(t, "afpacket", "10.98.0.3/24", "fd98::3/64", "respond.stamp_mode=stateful",
		"respond.stamp_auth_ports=863", "respond.stamp_key="+key)
	list := filepath.Join(t.TempDir(), "list")
	write := func(key string) {
		t.Helper()
		n.replaceFile(list, "stamp:10.98.0.3:863 __param_stamp_ssid=7 __param_stamp_key="+key+
			"\nstamp:[fd98::3] site=ams\n")
	}
	write(key)
	w := n.watch(9471, "-driver", "afpacket", "-file", list, "-rate", "50", "-timeout", "20s")
	sealed, plain := "stamp:10.98.0.3:863",
		`rebound_rtt_seconds_count{proto="stamp",site="ams",target="stamp:[fd98::3]:862"}`
	v := w.until("both modes have replies", func(v map[string]float64) bool {
		return v[of("rebound_rtt_seconds_count", sealed)] > 20 && v[plain] > 20
	})
	if n := v[of("rebound_replies_trouble_total", sealed, `kind="corrupt"`)]; n != 0 {
		t.Errorf("%v replies are not authentic", n)
	}
	write(keyFile(t))
	// The watch decides when the new key takes effect: from then on nothing is answered, however many probes are sent.
	trips, probes, since := of("rebound_rtt_seconds_count", sealed), of("rebound_probes_total", sealed), v
	w.until("100 probes in a row have no reply", func(v map[string]float64) bool {
		if v[trips] != since[trips] {
			since = v
		}
		return v[probes] > since[probes]+100
	})
	w.end()
}

// logged returns the number of round trips in the logs whose tag begins with a text.
func logged(t *testing.T, dir, tag string) (trips int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.hlog"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no log in %s: %v", dir, err)
	}
	for _, f := range files {
		if !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d\.hlog$`).MatchString(filepath.Base(f)) {
			t.Errorf("%s is no hour", f)
		}
		_, series, err := report.ReadHlog(strings.NewReader(content(t, f)), f)
		must.OK(t, err)
		for _, s := range series {
			if strings.HasPrefix(s.Name, tag) {
				trips += s.Total.Count
			}
		}
	}
	return trips
}

// Through the kernel's sockets, and from an address that the kernel does not have: each finds its path, and a target
// without a host is reported as unreachable.
func TestWatchTransports(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.reflector(far4 + ":862")
	for i, c := range []struct {
		name string
		args []string
	}{
		{"socket", []string{"-transport", "socket"}},
		{"afpacket, its own address", []string{"-driver", "afpacket", "-iface", nearIface, "-source", "10.98.0.77", "-source", "fd98::77"}},
		{"afxdp, its own address", []string{"-driver", "afxdp", "-iface", nearIface, "-source", "10.98.0.78", "-source", "fd98::78", "-idle", "poll"}},
	} {
		w := n.watch(9471+i, append(c.args, far4, far6, "-target", "stamp:"+far4, "-rate", "50", "10.98.0.99")...)
		w.until(c.name, func(v map[string]float64) bool {
			for _, target := range []string{"icmp:" + far4, "icmp:[" + far6 + "]", "stamp:" + far4 + ":862"} {
				if v[of("rebound_rtt_seconds_count", target)] < 10 {
					return false
				}
			}
			return v[of("rebound_rtt_seconds_count", "icmp:10.98.0.99")] == 0
		})
		if !strings.Contains(c.name, "socket") {
			w.says("no MAC address of 10.98.0.99 on ")
		}
		w.end()
	}
}

func TestWatchBadInput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		f := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(f, []byte(text), 0o644))
		return f
	}
	toml, sd := file("w.toml", "[probe]\nrate = \"0\"\n"), file("x.json", "[\n{\"targets\": [7]}]")
	empty := file("empty", "# nothing\n")
	fifo := filepath.Join(dir, "fifo")
	must.OK(t, syscall.Mkfifo(fifo, 0o600))
	in, out, err := os.Pipe() // as the shell's <(...)
	must.OK(t, err)
	defer in.Close()
	_, err = out.WriteString("[probe]\nrate = \"0\"\n")
	must.OK(t, errors.Join(err, out.Close()))
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "there is no target"},
		{[]string{"-config", fifo}, "fifo is a pipe that no process writes to"},
		{[]string{"-config", fmt.Sprint("/proc/self/fd/", in.Fd())}, ":2: probe.rate"},
		{[]string{"10.0.0.2", "-stamp-key", fifo}, "fifo is not a regular file"},
		{[]string{"-file", fifo}, "fifo is not a file"},
		{[]string{"-target", "10.0.0.2", "-peers", "0x"}, "must be an integer"},
		{[]string{"-target", "10.0.0.2", "-source-ports", "4", "-transport", "socket"}, "icmp has no ports to send from"},
		{[]string{"-target", "10.0.0.2", "-peers", "1001"}, "1 to 1000"},
		{[]string{"-peers", "5"}, "there is no target"},
		{[]string{"-target", "10.0.0"}, `-target: targets.list: target "10.0.0"`},
		{[]string{"-target", "10.0.0.2", "-rate", "x"}, `-rate: probe.rate: "x": want probes a second`},
		{[]string{"-config", toml}, "w.toml:2: probe.rate"},
		{[]string{"-config", file("u.toml", "[probe]\n\nrat = 1\n")}, "u.toml:3: probe.rat: unknown key"},
		{[]string{"-file-sd", sd}, "x.json:2: a target is 7"},
		{[]string{"-file", empty}, "there is no target"},
		{[]string{"-file", filepath.Join(dir, "none")}, "no such file"},
		{[]string{"-target", "10.0.0.2", "-interval", "7m"}, "does not divide an hour"},
		{[]string{"-target", "10.0.0.2", "-bytes", "1k"}, "a mebibyte or more"},
		{[]string{"-target", "10.0.0.2", "-driver", "xdp"}, "answers in the kernel"},
		{[]string{"-target", "10.0.0.2", "-driver", "ixgbe"}, "needs its device"},
		{[]string{"-target", "10.0.0.2", "-driver", "efa"}, "carries messages"},
		{[]string{"-target", "10.0.0.2", "-source", "10.0.0.1", "-source", "10.0.0.3"}, "one address of each family"},
		{[]string{"-target", "10.0.0.2", "-core", "9999"}, "-core 9999"},
		{[]string{"-dns", "tcp:x"}, "targets.dns"},
		{[]string{"10.0.0.2", "10.0.0"}, `-target: targets.list: target "10.0.0"`},
	} {
		r := inProcess(append([]string{"watch"}, c.args...)...)
		r.fails(t, process.Usage, c.says)
		if r.out != "" || strings.Count(r.errors, "\n") != 1 {
			t.Errorf("%q: %s%s", c.args, r.out, r.errors)
		}
	}
}

// A watch in a fleet probes its peers only, follows changes of the fleet, says who it is, and gives each target the
// interval, size and DSCP of its labels.
func TestWatchFleet(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	marks := n.markServer(4100)
	sd := filepath.Join(t.TempDir(), "fleet.yml")
	write := func(members int) {
		t.Helper()
		text := "- {targets: ['" + near4 + "'], labels: {node: h0, zone: a, rack: r1}}\n" +
			"- {targets: ['udp:" + far4 +
			":4100'], labels: {node: h1, zone: b, __param_interval: 20ms, __param_size: '500', __param_dscp: '46'}}\n" +
			"- {targets: ['udp:[" + far6 + "]:4100'], labels: {node: h2, zone: b}}\n"
		for i := range members {
			text += fmt.Sprintf("- {targets: [10.98.0.%d], labels: {node: p%d, zone: c%d}}\n", 100+i, i, i%2)
		}
		n.replaceFile(sd, text)
	}
	write(0)
	for i, transport := range [][]string{{"-driver", "afpacket"}, {"-transport", "socket"}} {
		w := n.watch(9495+i, append(transport, "-file-sd", sd, "-peers", "8", "-self", "h0", "-rate", "5")...)
		often := `rebound_probes_total{node="h1",proto="udp",target="udp:` + far4 + `:4100",zone="b"}`
		seldom := `rebound_probes_total{node="h2",proto="udp",target="udp:[` + far6 + `]:4100",zone="b"}`
		first := w.until("both are probed", func(v map[string]float64) bool { return v[often] > 0 && v[seldom] > 0 })
		v := w.until("both have 20 more probes", func(v map[string]float64) bool {
			return v[seldom] > first[seldom]+20
		})
		if a, b := v[often]-first[often], v[seldom]-first[seldom]; a < 7*b || a > 13*b {
			t.Errorf("%v: 50 and 5 probes a second: %v and %v were sent", transport, a, b)
		}
		if v[`rebound_fleet_self_info{node="h0",rack="r1",zone="a"}`] != 1 || v["rebound_fleet_members"] != 3 ||
			v["rebound_watch_targets"] != 2 {
			t.Errorf("%v: %v", transport, v)
		}
		write(60)
		w.until("8 of 63 are probed", func(v map[string]float64) bool {
			return v["rebound_fleet_members"] == 63 && v["rebound_watch_targets"] >= 8 &&
				v["rebound_watch_targets"] < 12
		})
		write(0)
		gone := `rebound_target_up{node="p`
		w.until("the fleet is small again", func(v map[string]float64) bool {
			return v["rebound_fleet_members"] == 3 && v["rebound_watch_targets"] == 2
		})
		for name := range w.page() {
			if strings.HasPrefix(name, gone) {
				t.Errorf("a target that left has a state: %s", name)
			}
		}
		w.end()
		marks.mu.Lock()
		if marks.tos[46<<2] < 50 || marks.tos[0] < 10 || len(marks.tos) != 2 {
			t.Errorf("%v: the targets saw TOS %v", transport, marks.tos)
		}
		clear(marks.tos)
		marks.mu.Unlock()
	}
	w := n.watch(9497, "-driver", "afpacket", "-file-sd", sd, "-peers", "2", "-self", "elsewhere")
	w.says("no target is this host")
	if v := w.page(); len(v) > 0 && !strings.Contains(fmt.Sprint(v), `rebound_fleet_self_info{node="elsewhere"`) {
		t.Errorf("%v", v)
	}
	w.end()
}

// A watch whose interface goes down does not claim that its target is up: its probes are not sent, which its metrics
// and its log say, through a socket and through a device.
func TestWatchCannotSend(t *testing.T) {
	for i, how := range [][]string{{"-transport", "socket"}, {"-driver", "afpacket", "-iface", nearIface}} {
		t.Run(how[1], func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			w := n.watch(9461+i, append([]string{far4, "-rate", "20", "-timeout", "500ms"}, how...)...)
			target := "icmp:" + far4
			w.until("up", func(v map[string]float64) bool {
				return v[of("rebound_target_up", target)] == 1 && v[of("rebound_target_ready", target)] == 1
			})
			n.link(n.near, nearIface, netlink.LinkSetDown)
			w.until("not up", func(v map[string]float64) bool {
				_, known := v[of("rebound_target_up", target)]
				return !known && v[of("rebound_target_ready", target)] == 0 &&
					(i > 0 || v[of("rebound_replies_trouble_total", target, `kind="send_failed"`)] > 0) // a device fails as a whole
			})
			n.link(n.near, nearIface, netlink.LinkSetUp)
			w.until("up again", func(v map[string]float64) bool { return v[of("rebound_target_up", target)] == 1 })
			if text := w.Log.String(); !strings.Contains(text, "probes cannot be sent") &&
				!strings.Contains(text, "target cannot be probed") {
				t.Error(text)
			}
			w.end()
		})
	}
}
