package endtoend

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Each case ends with one clear message and the right exit code, and leaves no report.
func TestBadInput(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "never")
	good := filepath.Join(dir, "good")
	n.bench(quick("-target", far4, "-count", "200", "-out", good)...).prints(t)
	spoilt := func(name, file string, change func([]byte) []byte) string {
		to := filepath.Join(dir, name)
		must.OK(t, os.CopyFS(to, os.DirFS(good)))
		b := must.Get(os.ReadFile(filepath.Join(to, file)))(t)
		must.OK(t, os.WriteFile(filepath.Join(to, file), change(b), 0o644))
		return to
	}
	newer := spoilt("newer", "report.json", func(b []byte) []byte {
		return bytes.Replace(b, []byte(`"schema": 3`), []byte(`"schema": 99`), 1)
	})
	cut := spoilt("cut", "rtt.hlog", func(b []byte) []byte { return b[:len(b)-len(b)/3] })
	notJSON := spoilt("notjson", "report.json", func(b []byte) []byte { return b[:len(b)/2] })
	file := filepath.Join(dir, "file")
	must.OK(t, os.WriteFile(file, nil, 0o644))
	run := func(args ...string) []string { return quick(append([]string{"-out", out, "-count", "20"}, args...)...) }
	t.Run("cases", func(t *testing.T) {
		for _, c := range []struct {
			name string
			args []string
			code int
			says string
		}{
			{"no command", nil, 2, "bench run"},
			{"unknown command", []string{"measure"}, 2, `"measure": want a target or one of compare, completion, demo, explain, history, manual, report, run, version`},
			{"no target", run(), 2, "-target"},
			{"a target that is no address", run("-target", "example"), 2, "example"},
			{"a key that others may read", run("-target", far4, "-proto", "stamp", "-stamp-key", file), 2, "mode 0644: it has a key"},
			{"authenticated without a key", run("-target", far4, "-proto", "stamp", "-stamp-mode", "authenticated"), 2, "needs a key: -stamp-key FILE"},
			{"an HMAC without a key", run("-target", far4, "-proto", "stamp", "-stamp-tlv", "time+hmac"), 2, "-stamp-tlv hmac needs a key"},
			{"TLVs of a ping", run("-target", far4, "-stamp-tlv", "time"), 2, "probes of icmp are not test packets"},
			{"a TLV twice", run("-target", far4, "-proto", "stamp", "-stamp-tlv", "time+time"), 2, "time is given twice"},
			{"a TLV that there is not", run("-target", far4, "-proto", "stamp", "-stamp-tlv", "times"), 2, "want time, location"},
			{"an SSID of 17 bits", run("-target", far4, "-proto", "stamp", "-stamp-ssid", "65536"), 2, "is not 1 to 65535"},
			{"stop at no SSID", run("-target", far4, "-proto", "stamp", "-stamp-zero-ssid", "stop"), 2, "set -stamp-ssid"},
			{"a clock without error", run("-target", far4, "-proto", "stamp", "-clock-error", "0s"), 2, "want the maximum error of this host's clock, above zero"},
			{"a frame too short for its TLVs", run("-target", far4, "-proto", "stamp", "-stamp-tlv", "location", "-size", "100"), 2, "146 to 1514"},
			{"messages without an EFA", run("-target", far4, "-proto", "srd"), 2, "messages need an EFA"},
			{"UDP on an EFA", run("-target", far4, "-driver", "efa", "-iface", "vfio-user:/x", "-proto", "udp"), 2, "use ud, srd, stamp-ud or stamp-srd"},
			{"messages on a card for frames", run("-target", far4, "-driver", "ena", "-iface", "vfio-user:/x", "-proto", "srd"), 2, "ena carries frames"},
			{"a message too short", run("-target", far4, "-driver", "efa", "-iface", "vfio-user:/x", "-size", "7"), 2, "have 8 to 65473 bytes"},
			{"a VLAN of messages", run("-target", far4, "-driver", "efa", "-iface", "vfio-user:/x", "-vlan", "5"), 2, "a message has none of these"},
			{"a multicast target", run("-target", "224.0.0.1"), 2, "224.0.0.1"},
			{"no such flag", run("-target", far4, "-colour"), 2, "colour"},
			{"an argument left over", append(run("-target", far4), "fast"), 2, "fast"},
			{"missing interface", run("-target", far4, "-iface", "nosuch0"), 2, "nosuch0"},
			{"core that does not exist", run("-target", far4, "-core", "4000"), 2, "4000"},
			{"negative core", run("-target", far4, "-core", "-2"), 2, "-core -2"},
			{"both loops", run("-target", far4, "-closed", "-rate", "10"), 2, "-rate"},
			{"rate of nothing", run("-target", far4, "-rate", "0"), 2, "rate"},
			{"rate that is no number", run("-target", far4, "-rate", "fast"), 2, "fast"},
			{"size below the smallest", run("-target", far4, "-size", "59"), 2, "60 to 1514"},
			{"size below the smallest of IPv6", run("-target", far6, "-size", "69"), 2, "70 to 1514"},
			{"size above the MTU", run("-target", far4, "-size", "1515"), 2, "60 to 1514"},
			{"unknown protocol", run("-target", far4, "-proto", "sctp"), 2, "sctp"},
			{"unknown driver", run("-target", far4, "-driver", "ne2000", "-iface", nearIface, "-source", near4), 2, "ne2000"},
			{"an MTU that is none", run("-target", far4, "-mtu", "20"), 2, "68 to 65535"},
			{"unknown push mode", run("-target", far4, "-push", "blue"), 2, `"blue" is not one of auto, `},
			{"rings of an odd size", run("-target", far4, "-ring-size", "100"), 2, "power of two"},
			{"port -1", run("-target", far4, "-proto", "udp", "-port", "-1"), 2, "is not 1 to 65535"},
			{"port 70000", run("-target", far4, "-proto", "udp", "-port", "70000"), 2, "70000"},
			{"one -ab", run("-target", far4, "-ab", "size=60"), 2, "-ab"},
			{"-ab with an unknown key", run("-target", far4, "-ab", "size=60", "-ab", "colour=red"), 2, "colour"},
			{"a second variant that cannot be reached", run("-ab", "target="+far4, "-ab", "target=127.0.0.1"), 2, "loopback"},
			{"no run", run("-target", far4, "-runs", "0"), 2, "-runs"},
			{"source of the other family", run("-target", far4, "-source", near6), 2, near6},
			{"socket from an address that is not ours", run("-target", far4, "-transport", "socket", "-source", "10.98.0.200"), 2, "10.98.0.200"},
			{"the loopback", run("-target", "127.0.0.1"), 2, "-transport socket"},
			{"no route", run("-target", "203.0.113.9"), 2, "route"},
			{"nobody there", run("-target", "10.98.0.250", "-timeout", "100ms"), 1, "10.98.0.250"},
			{"nobody there for an address of our own", run("-target", "10.98.0.250", "-driver", "afpacket", "-source", "10.98.0.77", "-timeout", "100ms"), 1, "ARP"},
			{"nobody there by neighbour discovery", run("-target", "fd98::250", "-driver", "afpacket", "-source", "fd98::77", "-timeout", "100ms"), 1, "neighbour discovery"},
			{"closed port", run("-target", far4, "-proto", "udp", "-port", "9", "-timeout", "50ms"), 1, "port unreachable"},
			{"closed port of IPv6", run("-target", far6, "-proto", "udp", "-port", "9", "-timeout", "50ms"), 1, "port unreachable"},
			{"closed port by a socket", run("-target", far4, "-proto", "udp", "-port", "9", "-timeout", "50ms", "-transport", "socket"), 1, "the kernel reports: connection refused"},
			{"-out is a file", quick("-target", far4, "-count", "20", "-out", file), 2, "not a folder"},
			{"-out below a file", quick("-target", far4, "-count", "20", "-out", file+"/r"), 2, "not a folder"},
			{"-out in a folder of something else", quick("-target", far4, "-count", "20", "-out", dir), 1, "something else"},
			{"-out holds a report", quick("-target", far4, "-count", "20", "-out", good), 2, "-replace"},
			{"one -ab without its command", run("-target", far4, "-ab", "name=a,do=true", "-ab", "size=60"), 2, "every variant"},
			{"-ab with an empty command", run("-target", far4, "-ab", "do=", "-ab", "do=true"), 2, "needs a command"},
			{"source ports of ICMP", run("-target", far4, "-source-ports", "4"), 2, "no ports"},
			{"a DSCP of seven bits", run("-target", far4, "-dscp", "64"), 2, "0 to 63"},
			{"a VLAN on a socket", run("-target", far4, "-transport", "socket", "-vlan", "7"), 2, "-vlan"},
			{"a duration without a unit", run("-target", far4, "-duration", "5"), 2, `"5" has no unit: 5s`},
			{"a time-out without a unit", run("-target", far4, "-timeout", "2.5"), 2, "2.5s"},
			{"a slice that is no time", run("-target", far4, "-slice", "short"), 2, "like 300ms"},
			{"a name that nobody knows", run("-target", "host.invalid"), 2, "host.invalid"},
			{"report of something as JSON", []string{"report", "-json", filepath.Join(dir, "nosuch")}, 1, "nosuch"},
			{"compare one", []string{"compare", good}, 2, "two"},
			{"compare with a bad limit", []string{"compare", "-fail-if", "p99", good, good}, 2, "p99"},
			{"compare with nothing there", []string{"compare", good, filepath.Join(dir, "nosuch")}, 1, "nosuch"},
			{"report of a newer schema", []string{"report", newer}, 1, "99"},
			{"truncated hlog", []string{"report", cut}, 1, "rtt.hlog"},
			{"truncated hlog in a comparison", []string{"compare", good, cut}, 1, "rtt.hlog"},
			{"truncated report.json", []string{"report", notJSON}, 1, "report.json"},
			{"report of nothing", []string{"report"}, 2, "folder"},
			{"demo without rounds", []string{"demo", "-rounds", "0"}, 2, "round"},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel() // most of them wait
				run := n.bench
				if c.code == process.Usage { // it ends before it measures
					run = n.inside
				}
				lost := strings.HasPrefix(c.name, "closed port") // a run without replies is a run
				if lost {
					c.args = append(slices.Clone(c.args), "-out", filepath.Join(t.TempDir(), "lost"))
				}
				r := run(c.args...)
				r.fails(t, c.code, c.says)
				if strings.Contains(r.errors, "goroutine ") {
					t.Error("it crashed")
				}
				lines := 0
				for line := range strings.Lines(r.errors) {
					// Ignore progress, and the note about a silent target, which appear if a test takes long.
					if !strings.HasPrefix(line, "time=") || !strings.Contains(line, " part=") &&
						!strings.Contains(line, "does not answer") {
						lines++
					}
				}
				if c.args != nil && c.name != "unknown command" && lines > 1 {
					t.Errorf("more than one line:\n%s", r.errors)
				}
				if exists(out) {
					t.Error("a report was written")
					os.RemoveAll(out)
				} else if lost {
					check.Contains(t, r.out, "no round trip was measured; ")
				}
			})
		}
	})
	left, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A STAMP reflector whose replies are shorter than the probes gives no round trip: all are rejected.
func TestShortReflector(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.udpServer(862, func(b []byte) []byte {
		copy(b[24:], b[:4]) // the sender's number, as TWAMP-Light's reflector repeats it (RFC 5357 §4.2.1)
		return b[:38]
	})
	for _, transport := range []string{"raw", "socket"} {
		dir := filepath.Join(t.TempDir(), "r")
		r := n.bench(quick("-target", far4, "-proto", "stamp", "-transport", transport, "-count", "20", "-timeout",
			"200ms", "-out", dir)...)
		r.fails(t, 1, "no usable reply", "38 bytes")
		if rep := must.Get(report.Read(dir))(t); rep.Measured() || rep.Counts.CorruptOnly != 20 {
			t.Errorf("%s: %+v\n%s", transport, rep.Counts, r.out)
		}
	}
}

// An earlier report is replaced only if that was requested; reports of a sweep count as reports, too.
func TestReplace(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	dir := filepath.Join(t.TempDir(), "r")
	args := quick("-target", far4, "-count", "20", "-size", "60,100", "-out", dir)
	n.bench(args...).prints(t)
	n.bench(args...).fails(t, 2, "01-size-60")
	n.bench(append(args, "-replace")...).prints(t)
}

// As an ordinary user, the bench reports the missing privileges, and the socket transport works.
func TestNoRights(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.udpEcho(7, 0)
	program, dir := forNobody(t)
	asNobody := func(args ...string) result {
		c := n.prepare(args...)
		c.Path = program
		c.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		return c.begin().wait()
	}
	for _, driver := range []string{"afpacket", "afxdp", "auto"} {
		asNobody(quick("-target", far4, "-count", "10", "-driver", driver, "-out",
			filepath.Join(dir, driver))...).fails(t, 1, "CAP_")
	}
	for _, proto := range []string{"udp", "icmp"} {
		to := filepath.Join(dir, proto)
		read(t, to, asNobody(quick("-target", far6, "-count", "50", "-proto", proto, "-transport", "socket", "-out",
			to)...))
	}
}
