package observe

import (
	"bufio"
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"

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
