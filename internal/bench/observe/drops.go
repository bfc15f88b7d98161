package observe

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
)

// Source is the device or socket that a bench sends and receives through, with the kernel's interface below it.
type Source struct {
	Device    nic.Port // nil for a socket
	Socket    Socket   // nil for a device
	Interface string
	Qdisc     bool   // the device sends through the interface's queueing discipline
	Responder string // URL of the responder's metrics, "" if unknown
	Rejects   Rejects
}

// Socket counts its own drops, and the messages that it delivered.
type Socket interface {
	Drops() (uint64, error)
	Messages() int64
}

// Reading has the values of the counters at a moment.
type Reading struct {
	Drops       []report.Drop
	Here, There Life // of this host's device, and of the responder
	delivered   int64
}

// sendResets is the counter of a card that restarts only its send queue.
const sendResets = "send_queue_resets"

// Life identifies restarts of a device or a process between two readings. Frames on a device's rings are then lost
// without being counted; the same is true for a process.
type Life struct {
	resets, start float64
	restarting    bool
}

// Restarted reports whether there was a restart, or a part of one, since an earlier reading.
func (l Life) Restarted(since Life) bool {
	return l.resets > since.resets || l.restarting || since.restarting || l.start != since.start && l.start != 0 &&
		since.start != 0
}

// Read returns what this host and the responder have dropped so far, by counter. Counters that cannot be read are left
// out. The error is about the responder's counters, which the user requested.
func (from Source) Read() (r Reading, err error) {
	out := &r.Drops
	add := func(place report.Place, by string, n uint64, ours bool) {
		*out = append(*out, report.Drop{Place: place, By: by, Frames: int64(n), Ours: ours})
	}
	if from.Socket != nil {
		if n, err := from.Socket.Drops(); err == nil {
			add(report.DroppedHere, "socket: sk_drops", n, true)
		}
	}
	if from.Socket != nil || from.Qdisc {
		if n, err := queueDropped(from.Interface); err == nil {
			add(report.NotSent, "interface "+from.Interface+": qdisc dropped", n, false)
		}
	}
	r.Drops = append(r.Drops, from.rejected()...)
	if from.Socket != nil {
		r.delivered = from.Socket.Messages()
	}
	kernel := from.Socket != nil
	if from.Device != nil {
		var s nic.Stats
		kernel = from.Device.Info().Backend == nic.Socket
		if err := from.Device.ReadStats(&s); err == nil {
			by := "NIC: "
			if kernel {
				by = "ring: "
			}
			// A card may count frames here that it would have filtered out later. Frames dropped by a kernel ring have
			// passed its filter.
			if !from.Uncounted() {
				add(report.DroppedHere, by+"rx_dropped", s.RxDropped, kernel)
			}
			add(report.NotSent, by+"tx_errors", s.TxErrors, true)
			r.Here.resets = float64(s.Resets + s.Extra[sendResets])
			finished, counted := s.Extra[nic.RestartsFinished]
			r.Here.restarting = counted && finished < s.Resets
		}
	}
	if kernel {
		*out = append(*out, kernelCounters(from.Interface)...)
	}
	if from.Responder != "" {
		var there []report.Drop
		there, r.There, err = ReadResponder(from.Responder)
		*out = append(*out, there...)
	}
	return r, err
}

// Counted reports whether these counters include all frames dropped at a place.
func Counted(all []report.Drop, place report.Place) bool {
	return slices.ContainsFunc(all, func(d report.Drop) bool {
		switch place {
		case report.DroppedHere:
			return d.By == "socket: sk_drops" || d.By == "ring: rx_dropped" || d.By == "NIC: rx_dropped"
		case report.RefusedThere:
			return d.Place == place && reader(d) == "responder"
		case report.DroppedThere:
			return d.By == "responder: rx_dropped" || d.By == "responder: interface_rx_dropped"
		case report.Unknown:
			return d.Place == place
		}
		return false
	})
}

// Uncounted reports whether the device may drop replies without counting them.
func (from Source) Uncounted() bool { return from.Device != nil && from.Device.Info().NoDropCounter }

// kernelCounters reads the kernel's drops below the sockets: missing receive buffers of the NIC, or a full CPU backlog.
// They include all traffic.
func kernelCounters(iface string) (out []report.Drop) {
	if l, err := netlink.LinkByName(iface); err == nil && l.Attrs().Statistics != nil {
		s := l.Attrs().Statistics
		for _, c := range []struct {
			place report.Place
			name  string
			n     uint64
		}{
			{report.DroppedHere, "rx_dropped", s.RxDropped}, {report.DroppedHere, "rx_missed_errors", s.RxMissedErrors},
			{report.DroppedHere, "rx_fifo_errors", s.RxFifoErrors}, {report.DroppedHere, "rx_over_errors", s.RxOverErrors},
			{report.NotSent, "tx_dropped", s.TxDropped}, {report.NotSent, "tx_errors", s.TxErrors},
		} {
			out = append(out, report.Drop{Place: c.place, By: "interface " + iface + ": " + c.name, Frames: int64(c.n)})
		}
	}
	if b, err := os.ReadFile("/proc/net/softnet_stat"); err == nil {
		out = append(out, report.Drop{Place: report.DroppedHere, By: "kernel backlog: softnet_stat dropped",
			Frames: softnetDropped(b)})
	}
	return out
}

// queueDropped returns how many frames an interface's queueing discipline has dropped. A socket's sender sees no error,
// and the interface's own counters do not include them. Raw frames bypass it unless
// the user chose otherwise.
func queueDropped(iface string) (uint64, error) {
	l, err := netlink.LinkByName(iface)
	if err != nil {
		return 0, err
	}
	all, err := netlink.QdiscList(l)
	for _, q := range all {
		if a := q.Attrs(); a.Parent == netlink.HANDLE_ROOT && a.Statistics != nil && a.Statistics.Queue != nil {
			return uint64(a.Statistics.Queue.Drops), nil // the root includes its children
		}
	}
	return 0, err
}

// softnetDropped sums the second column of /proc/net/softnet_stat over all CPUs.
func softnetDropped(b []byte) (sum int64) {
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if f := bytes.Fields(lines.Bytes()); len(f) > 1 {
			n, _ := strconv.ParseUint(string(f[1]), 16, 32)
			sum += int64(n)
		}
	}
	return sum
}

// redirected subtracts from the interface's drops the frames that a veth pair's driver counts there a second time:
// those that the XDP program redirected to a socket whose ring was full.
func (from Source) redirected(drops []report.Drop) {
	if from.Device == nil || from.Device.Info().Driver != "afxdp" || from.Device.Info().Model != "veth" {
		return
	}
	var ring int64
	for i := range drops {
		switch d := &drops[i]; {
		case d.By == "ring: rx_dropped":
			ring = d.Frames
		case d.Place == report.DroppedHere && strings.HasSuffix(d.By, ": rx_dropped"):
			d.Frames = max(d.Frames-ring, 0)
		}
	}
}

// Grown returns by how much each counter grew from one reading to the next. A counter that was reset in between starts
// again from 0. Counters that the first reading lacks, because it failed, are left out: they include the time before
// it.
func (from Source) Grown(before, after Reading) []report.Drop {
	var out []report.Drop
	for _, d := range after.Drops {
		known := false
		for _, b := range before.Drops {
			known = known || reader(b) == reader(d)
			if b.Place == d.Place && b.By == d.By && b.Frames <= d.Frames &&
				(reader(d) != "responder" || after.There.start == before.There.start) {
				d.Frames -= b.Frames
			}
		}
		if known {
			out = append(out, d)
		}
	}
	from.redirected(out)
	broken(out)
	others(out, after.delivered-before.delivered)
	return out
}

// reader returns the component that a counter was read from: "responder" for "responder: rate".
func reader(d report.Drop) string {
	name, _, _ := strings.Cut(d.By, ": ")
	return name
}

// Rejects selects the replies that the kernel may reject before they reach a Source: a socket, or an XDP program that
// passes everything but intact replies with our identifiers to the kernel. The zero value is for a transport that sees
// every frame.
type Rejects struct {
	Echo, UDP, V4, V6 bool

	// Identifiers is set to count intact echo replies that the Source did not get, because they have another
	// identifier. The Source must have received everything when it is read.
	Identifiers bool
}

// ipReasons are the kernel's counters of received packets that it rejected below ICMP and UDP, and echoReasons and
// udpReasons those above, by their names in /proc/net/snmp and netstat. Names starting with a minus are subtracted:
// they count frames that were intact, but had no room.
var (
	ipReasons   = []string{"Ip InHdrErrors", "Ip InAddrErrors", "IpExt InTruncatedPkts"}
	echoReasons = []string{"Icmp InErrors"}
	udpReasons  = []string{"Udp NoPorts", "Udp InErrors -RcvbufErrors -MemErrors"}

	// The same for IPv6, in /proc/net/snmp6.
	ip6Reasons   = []string{"Ip6InHdrErrors", "Ip6InAddrErrors", "Ip6InTruncatedPkts"}
	echo6Reasons = []string{"Icmp6InErrors"}
	udp6Reasons  = []string{"Udp6NoPorts", "Udp6InErrors -Udp6RcvbufErrors -Udp6MemErrors"}
)

// Intact echo replies, of which a ping socket gets those with its identifier.
const echoReplies, echoReplies6 = "Icmp InEchoReps", "Icmp6InEchoReplies"

// rejected reads how many packets the kernel of this thread's network namespace has rejected so far.
func (from Source) rejected() (out []report.Drop) {
	r := from.Rejects
	if !r.Echo && !r.UDP { // every frame is seen: nothing can be missing
		if from.Device != nil || from.Socket != nil {
			out = append(out, report.Drop{Place: report.Unknown, By: "none"})
		}
		return out
	}
	var names []string
	for _, g := range []struct {
		on    bool
		names []string
	}{{r.V4, ipReasons}, {r.V4 && r.Echo, echoReasons}, {r.V4 && r.UDP, udpReasons}, {r.V6, ip6Reasons},
		{r.V6 && r.Echo, echo6Reasons}, {r.V6 && r.UDP, udp6Reasons},
		{r.V4 && r.Identifiers, []string{echoReplies}}, {r.V6 && r.Identifiers, []string{echoReplies6}}} {
		if g.on {
			names = append(names, g.names...)
		}
	}
	all := map[string]int64{}
	for _, name := range []string{"snmp", "netstat", "snmp6"} {
		if b, err := os.ReadFile("/proc/thread-self/net/" + name); err == nil {
			maps.Copy(all, counters(b))
		}
	}
	for _, name := range names {
		parts := strings.Split(name, " -")
		n, ok := all[parts[0]]
		if !ok {
			continue
		}
		family, _, _ := strings.Cut(parts[0], " ")
		for _, less := range parts[1:] {
			n -= all[less] + all[family+" "+less]
		}
		out = append(out, report.Drop{Place: report.Unknown, By: "kernel: " + parts[0], Frames: max(n, 0)})
	}
	return out
}

// counters parses /proc/net/snmp and netstat, which have a line of names and one of values for each protocol ("Icmp
// InErrors"), or snmp6, which has a name and a value in each line.
func counters(b []byte) map[string]int64 {
	out := map[string]int64{}
	var names []string
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) == 2 && !strings.HasSuffix(f[0], ":"):
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				out[f[0]] = n
			}
		case len(f) > 1 && len(names) == len(f) && names[0] == f[0]:
			for i, text := range f[1:] {
				if n, err := strconv.ParseInt(text, 10, 64); err == nil {
					out[strings.TrimSuffix(f[0], ":")+" "+names[i+1]] = n
				}
			}
			names = nil
		default:
			names = f
		}
	}
	return out
}

// others takes the replies that a socket delivered out of the echo replies that the kernel received.
func others(drops []report.Drop, delivered int64) {
	for i := range drops {
		if d := &drops[i]; d.By == "kernel: "+echoReplies || d.By == "kernel: "+echoReplies6 {
			d.Frames = max(d.Frames-delivered, 0)
		}
	}
}

// broken takes the datagrams with a bad checksum out of the drops of a socket: it counts them together with those for
// which it had no room. The kernel's counter of rejected datagrams has them, too.
func broken(drops []report.Drop) {
	rejected := int64(0)
	for _, d := range drops {
		if d.By == "kernel: Udp InErrors" || d.By == "kernel: Udp6InErrors" {
			rejected += d.Frames
		}
	}
	if i := slices.IndexFunc(drops, func(d report.Drop) bool { return d.By == "socket: sk_drops" }); i >= 0 {
		drops[i].Frames -= min(rejected, drops[i].Frames)
	}
}

// pause is the Retry-After of a responder that was queried too often.
const pause = time.Second

var client = &http.Client{Timeout: 5 * time.Second}

// ReadResponder returns the refusals on a responder's metrics page, by reason, and its device's drops. The counters
// include the traffic of all its clients.
func ReadResponder(url string) (out []report.Drop, life Life, err error) {
	r, err := client.Get(url)
	// the page limits its rate
	for tries := 1; err == nil && r.StatusCode == http.StatusTooManyRequests && tries < 5; tries++ {
		r.Body.Close()
		time.Sleep(pause)
		r, err = client.Get(url)
	}
	if err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, life, fmt.Errorf("responder's metrics: %s: %s", url, r.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(r.Body, 16<<20))
	if err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %s: %w", url, err)
	}
	refused := families["rebound_refused_total"]
	if refused == nil {
		return nil, life, fmt.Errorf(
			"responder's metrics: %s: no rebound_refused_total (give the URL of a responder's metrics page)", url)
	}
	if out, err = sum(nil, refused, report.RefusedThere, "reason"); err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %s: %w", url, err)
	}
	if f := families["rebound_device_trouble_total"]; f != nil {
		life.resets, _ = valueOf(f, "kind", "resets")
		out, err = sum(out, f, report.DroppedThere, "kind", "rx_dropped", "tx_dropped", "tx_errors")
	}
	if f := families["process_start_time_seconds"]; f != nil && len(f.Metric) == 1 {
		life.start = f.Metric[0].GetGauge().GetValue()
	}
	if f := families["rebound_device_own_total"]; f != nil && err == nil {
		finished, counted := valueOf(f, "counter", nic.RestartsFinished)
		life.restarting = counted && finished < life.resets
		send, _ := valueOf(f, "counter", sendResets)
		life.resets += send
		out, err = sum(out, f, report.DroppedThere, "counter", "interface_rx_dropped", "interface_rx_missed_errors",
			"interface_rx_fifo_errors",
			"interface_rx_over_errors", "interface_tx_dropped", "interface_tx_errors", "interface_tx_fifo_errors")
	}
	if err != nil {
		return nil, life, fmt.Errorf("responder's metrics: %s: %w", url, err)
	}
	return out, life, nil
}

// valueOf is a family's counter with the given value of a label, and whether there is one.
func valueOf(f *dto.MetricFamily, label, value string) (n float64, ok bool) {
	for _, m := range f.Metric {
		for _, l := range m.Label {
			if l.GetName() == label && l.GetValue() == value {
				n, ok = n+m.GetCounter().GetValue(), true
			}
		}
	}
	return n, ok
}

// Limits for a page: a responder has a few dozen reasons.
const (
	maxReasons = 200
	maxReason  = 100 // bytes
)

// sum adds a family's counters by the value of one label, all or those named.
func sum(out []report.Drop, f *dto.MetricFamily, place report.Place, label string, only ...string) ([]report.Drop,
	error) {
	for _, m := range f.Metric {
		for _, l := range m.Label {
			value, n := l.GetValue(), m.GetCounter().GetValue()
			if l.GetName() != label || len(only) > 0 && !slices.Contains(only, value) {
				continue
			}
			if !(n >= 0 && n < 1<<53) {
				return nil, fmt.Errorf("%s{%s=%.100q} is %v: want a count", f.GetName(), label, value, n)
			}
			by := "responder: " + value
			i := slices.IndexFunc(out, func(d report.Drop) bool { return d.Place == place && d.By == by })
			if i < 0 {
				if i = len(out); i == maxReasons || len(value) > maxReason {
					return nil, fmt.Errorf("%s has more than %d values of %s, or one of more than %d bytes",
						f.GetName(), maxReasons, label, maxReason)
				}
				out = append(out, report.Drop{Place: place, By: by})
			}
			if out[i].Frames += int64(n); out[i].Frames >= 1<<53 {
				return nil, fmt.Errorf("%s{%s=%q} adds up to %d: want a count", f.GetName(), label, value,
					out[i].Frames)
			}
		}
	}
	return out, nil
}
