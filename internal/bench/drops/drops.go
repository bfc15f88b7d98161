// Package drops reads what this host says it dropped: the counters of rings, sockets, NICs and the kernel.
package drops

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

// Source is what a bench sends and receives through: a device or a socket, and the kernel's interface below it.
type Source struct {
	Device    nic.Port // nil for a socket
	Socket    Socket   // nil for a device
	Interface string
	Responder string // URL of the responder's metrics, "" if it is not known
}

// Socket counts its own drops.
type Socket interface{ Drops() (uint64, error) }

// Reading is what the counters have so far.
type Reading struct {
	Drops       []report.Drop
	Here, There Life // of this host's device, and of the responder
}

// sendResets is the counter of a card that restarts its send queue alone.
const sendResets = "send_queue_resets"

// Life tells whether a device or a process was restarted between two readings. What was on a device's rings then is lost, and no counter
// has it; those of a process are lost as well.
type Life struct{ resets, start float64 }

// Restarted reports whether there was a restart since an earlier reading.
func (l Life) Restarted(since Life) bool {
	return l.resets > since.resets || l.start != since.start && l.start != 0 && since.start != 0
}

// Read returns what this host and the responder have dropped so far, by counter. Counters that cannot be read are
// left out. The error is that of the responder's, which a user requested.
func (from Source) Read() (r Reading, err error) {
	out := &r.Drops
	add := func(place report.Place, by string, n uint64, ours bool) {
		*out = append(*out, report.Drop{Place: place, By: by, Frames: int64(n), Ours: ours})
	}
	if from.Socket != nil {
		if n, err := from.Socket.Drops(); err == nil {
			add(report.DroppedHere, "socket: sk_drops", n, true)
		}
		if n, err := queueDropped(from.Interface); err == nil {
			add(report.NotSent, "interface "+from.Interface+": qdisc dropped", n, false)
		}
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
			// A card may count frames here that it would have filtered out next. What a ring of the kernel drops passed its filter.
			if !from.Uncounted() {
				add(report.DroppedHere, by+"rx_dropped", s.RxDropped, kernel)
			}
			add(report.NotSent, by+"tx_errors", s.TxErrors, true)
			r.Here.resets = float64(s.Resets + s.Extra[sendResets])
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

// Counted reports whether counters among these have all frames that are dropped at a place.
func Counted(all []report.Drop, place report.Place) bool {
	return slices.ContainsFunc(all, func(d report.Drop) bool {
		switch place {
		case report.DroppedHere:
			return d.By == "socket: sk_drops" || d.By == "ring: rx_dropped" || d.By == "NIC: rx_dropped"
		case report.RefusedThere:
			return d.Place == place && reader(d) == "responder"
		case report.DroppedThere:
			return d.By == "responder: rx_dropped" || d.By == "responder: interface_rx_dropped"
		}
		return false
	})
}

// Uncounted reports whether the device may drop replies that no counter has.
func (from Source) Uncounted() bool { return from.Device != nil && from.Device.Info().NoDropCounter }

// kernelCounters reads what the kernel dropped below the sockets: for lack of receive buffers of the NIC, or of room
// in a CPU's backlog. They count all traffic.
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
		out = append(out, report.Drop{Place: report.DroppedHere, By: "kernel backlog: softnet_stat dropped", Frames: softnetDropped(b)})
	}
	return out
}

// queueDropped returns how many frames an interface's queueing discipline has dropped. A socket's sender sees no error, and the
// interface's own counters do not have them. Raw frames bypass it.
func queueDropped(iface string) (uint64, error) {
	l, err := netlink.LinkByName(iface)
	if err != nil {
		return 0, err
	}
	all, err := netlink.QdiscList(l)
	for _, q := range all {
		if a := q.Attrs(); a.Parent == netlink.HANDLE_ROOT && a.Statistics != nil && a.Statistics.Queue != nil {
			return uint64(a.Statistics.Queue.Drops), nil // the root has those of its children, too
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

// redirected takes out of the interface's drops what a veth pair's driver counts there again: frames that the XDP program gave
// to a socket whose ring was full.
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

// Grown returns by how much each counter grew from one reading to the next. One that was reset in between starts again from 0. What
// the first reading has nothing of, because it failed, is left out: its counters have the time before, too.
func (from Source) Grown(before, after Reading) []report.Drop {
	var out []report.Drop
	for _, d := range after.Drops {
		known := false
		for _, b := range before.Drops {
			known = known || reader(b) == reader(d)
			if b.Place == d.Place && b.By == d.By && b.Frames <= d.Frames && (reader(d) != "responder" || after.There.start == before.There.start) {
				d.Frames -= b.Frames
			}
		}
		if known {
			out = append(out, d)
		}
	}
	from.redirected(out)
	return out
}

// reader names what was read for a counter: "responder" of "responder: rate".
func reader(d report.Drop) string {
	name, _, _ := strings.Cut(d.By, ": ")
	return name
}
