package endtoend

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
)

// impairment is what the target does to a probe or its reply.
type impairment int

const (
	intact impairment = iota
	lost
	twice
	late
	reordered
	otherIdentifier // ICMP identifier, or UDP port of the bench
	otherSource
	otherSequence
	truncated
	flipped   // a bit of the payload, with a correct checksum
	badSum    // the checksum
	impairing // number of them
)

// reasons are why a bench rejects an impaired reply.
var reasons = map[impairment]outcome.Reason{otherIdentifier: outcome.Identifier, otherSource: outcome.Source,
	otherSequence: outcome.Sequence,
	truncated:     outcome.Length, flipped: outcome.Payload, badSum: outcome.Checksum}

// impairedTarget is an address in the target's namespace that its kernel does not have, and otherAddress one that no
// probe is sent to.
const impairedTarget, otherAddress, lateBy = "10.98.0.3", "10.98.0.77", 500

// of says what happens to the probe with a number: of each twenty probes one suffers each impairment. A late reply
// comes when lateBy more probes have arrived.
func (p impairedProto) of(seq uint32) impairment {
	if k := seq % 20; k%2 == 1 {
		switch i := impairment(k/2 + 1); {
		case i != late || seq < 120:
			return i
		}
	}
	return intact
}

type impairedProto struct {
	name          string
	seqAt, flipAt int // in the ICMP or UDP payload; the sequence that is impaired is also at copyAt
	copyAt        int
}

// ICMP: in the header
var impairedProtos = []impairedProto{{"icmp", 4, 20, -2}, {"udp", 4, 20, 4}, {"stamp", 0, 30, 24}}

// reflector answers probes to impairedTarget on the far interface, and impairs the replies.
type reflector struct {
	p     impairedProto
	fd    int
	done  sync.WaitGroup
	count [impairing]int64
	got   int64
	held  [][]byte
	late  map[int64][]byte // by the number of probes that have arrived when it is sent
}

func (n *network) newReflector(p impairedProto) *reflector {
	r := &reflector{p: p, late: map[int64][]byte{}}
	n.link(n.far, farIface, func(l netlink.Link) (err error) {
		const all = unix.ETH_P_IP&0xff<<8 | unix.ETH_P_IP>>8 // in network byte order
		if r.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		_ = unix.SetsockoptInt(r.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		tv := unix.NsecToTimeval(int64(50 * time.Millisecond))
		if err := unix.SetsockoptTimeval(r.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		return unix.Bind(r.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	})
	return r
}

// serve answers until stop is closed.
func (r *reflector) serve(stop <-chan struct{}) {
	r.done.Go(func() {
		defer unix.Close(r.fd)
		buf := make([]byte, 1<<12)
		target := netip.MustParseAddr(impairedTarget).As4()
		for {
			select {
			case <-stop:
				return
			default:
			}
			k, from, err := unix.Recvfrom(r.fd, buf, 0)
			if l, ok := from.(*unix.SockaddrLinklayer); err != nil || !ok || l.Pkttype == unix.PACKET_OUTGOING ||
				k < 60 || [4]byte(buf[30:34]) != target {
				continue
			}
			if protocol := buf[23]; (r.p.name == "icmp") != (protocol == unix.IPPROTO_ICMP) ||
				protocol == unix.IPPROTO_ICMP && buf[34] != 8 {
				continue
			}
			r.answer(bytes.Clone(buf[:k]))
		}
	})
}

func (r *reflector) send(b []byte) { _, _ = unix.Write(r.fd, b) }

func (r *reflector) answer(b []byte) {
	be := binary.BigEndian
	r.got++
	seq := be.Uint32(b[42+r.p.seqAt:])
	what := r.p.of(seq)
	r.count[what]++
	mac := [6]byte(b)
	copy(b, b[6:12])
	copy(b[6:], mac[:])
	src := [4]byte(b[26:])
	copy(b[26:], b[30:34])
	copy(b[30:], src[:])
	switch r.p.name {
	case "icmp":
		b[34] = 0
	case "stamp":
		body := b[42:]
		copy(body[24:38], bytes.Clone(body[:14]))
		now := engine.NTP(time.Now())
		be.PutUint64(body[4:], now)
		be.PutUint64(body[16:], now)
		body[40] = b[22]
		fallthrough
	default:
		port := [2]byte(b[34:])
		copy(b[34:], b[36:38])
		copy(b[36:], port[:])
	}
	switch what {
	case lost:
		return
	case otherIdentifier:
		if r.p.name == "icmp" {
			b[38] ^= 0x55
		} else {
			b[36] ^= 0x15
		}
	case otherSource:
		other := netip.MustParseAddr(otherAddress).As4()
		copy(b[26:], other[:])
	case otherSequence:
		at := 42 + r.p.copyAt
		if r.p.name == "icmp" {
			b[at] ^= 0x40
		} else {
			be.PutUint32(b[at:], seq+1<<20)
		}
	case truncated:
		b = b[:len(b)-4]
		be.PutUint16(b[16:], uint16(len(b)-14))
		if r.p.name != "icmp" {
			be.PutUint16(b[38:], uint16(len(b)-34))
		}
	case flipped:
		b[42+r.p.flipAt] ^= 8
	}
	sums(b)
	if what == badSum {
		at := 40
		if r.p.name == "icmp" {
			at = 36
		}
		b[at] ^= 0x55
	}
	switch what {
	case twice:
		r.send(b)
	case late:
		r.late[r.got+lateBy] = b
		return
	case reordered:
		r.held = append(r.held, b)
		return
	}
	r.send(b)
	for _, h := range r.held {
		r.send(h)
	}
	r.held = nil
	if h := r.late[r.got]; h != nil {
		r.send(h)
	}
}

// sums sets the checksums of a frame.
func sums(b []byte) {
	be := binary.BigEndian
	add := func(sum uint32, b []byte) uint32 {
		for ; len(b) > 1; b = b[2:] {
			sum += uint32(be.Uint16(b))
		}
		if len(b) > 0 {
			sum += uint32(b[0]) << 8
		}
		return sum
	}
	fold := func(sum uint32) uint16 {
		for sum > 0xffff {
			sum = sum&0xffff + sum>>16
		}
		return ^uint16(sum)
	}
	b[24], b[25] = 0, 0
	be.PutUint16(b[24:], fold(add(0, b[14:34])))
	at, pseudo := 36, uint32(0)
	if b[23] == unix.IPPROTO_UDP {
		at, pseudo = 40, add(uint32(len(b)-34)+unix.IPPROTO_UDP, b[26:34])
	}
	b[at], b[at+1] = 0, 0
	be.PutUint16(b[at:], fold(add(pseudo, b[34:])))
}

// unseen lists the impaired replies that a transport does not show, because the kernel rejects them.
func unseen(transport, proto string) []impairment {
	switch {
	case transport == "afpacket":
		return nil
	case transport == "afxdp":
		return []impairment{otherIdentifier, otherSource}
	case proto == "icmp":
		return []impairment{otherIdentifier, badSum}
	}
	return []impairment{otherIdentifier, otherSource, badSum}
}

// Every transport and protocol reports the same outcomes of the same impairments. If the kernel rejects replies before
// a transport sees them, their outcome is unknown, and the headline says so.
func TestOutcomesOfEveryTransport(t *testing.T) {
	for _, p := range impairedProtos {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			var far net.HardwareAddr
			n.link(n.far, farIface, func(l netlink.Link) error { far = l.Attrs().HardwareAddr; return nil })
			n.link(n.near, nearIface, func(l netlink.Link) error {
				return netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
					IP: net.ParseIP(impairedTarget), HardwareAddr: far})
			})
			for _, transport := range []string{"afpacket", "afxdp", "socket"} {
				t.Run(transport, func(t *testing.T) { n.outcomes(t, p, transport) })
			}
		})
	}
}

func (n *network) outcomes(t *testing.T, p impairedProto, transport string) {
	const probes = 1000
	args := []string{"-target", impairedTarget, "-proto", p.name, "-count", fmt.Sprint(probes), "-runs", "1", "-rate",
		"2000", "-warmup", "0s", "-timeout", "150ms", "-size", "100"}
	if p.name == "udp" {
		args = append(args, "-port", "9000")
	}
	if transport == "socket" {
		args = append(args, "-transport", "socket")
	} else {
		args = append(args, "-driver", transport, "-ring-size", "2048")
	}
	var rep *report.Report
	var r result
	var far *reflector
	// a busy machine may drop replies itself
	for tries := 0; tries == 0 || (rep.Counts.DroppedHere > 0 || rep.Counts.SendFailed > 0) && tries < 10; tries++ {
		dir := filepath.Join(t.TempDir(), "out")
		far = n.newReflector(p)
		stop := make(chan struct{})
		far.serve(stop)
		r = n.bench(slices.Concat([]string{"run", "-self-test", "0s", "-out", dir}, args)...)
		close(stop)
		far.done.Wait()
		if r.code != 0 {
			t.Fatalf("exit %d: %s", r.code, r.errors)
		}
		rep = must.Get(report.Read(dir))(t)
	}
	c, did := rep.Counts, far.count
	want := report.Counts{Sent: probes, Lost: did[lost], Duplicates: did[twice], Reordered: did[reordered] + did[late],
		CorruptOnly: 0}
	byReason := map[string]int64{}
	for i, why := range reasons {
		switch unmatched := i == otherSequence && p.name != "icmp"; {
		case slices.Contains(unseen(transport, p.name), i):
			want.Unknown += did[i]
		default:
			byReason[why.String()] += did[i]
			want.Corrupt += did[i]
			if unmatched { // its number says nothing about the probe
				want.Unknown += did[i]
			} else {
				want.CorruptOnly += did[i]
			}
		}
	}
	want.LostUncertain, want.UnknownUncertain, want.UnknownCounted, want.DroppedHereCounted = want.Unknown,
		want.Unknown, true, true
	want.Lost += want.Unknown
	want.Received, want.Late = c.Received, c.Late // a busy machine may make replies late
	got := c
	if got != want || c.Received+c.Late != did[intact]+did[twice]+did[late]+did[reordered] || did[late] == 0 ||
		// A bench that is behind may wait longer.
		c.Late < did[late] && !strings.Contains(r.out, "could not keep the requested rate") {
		t.Errorf("got  %+v\nwant %+v\nthe target did %v", got, want, did)
	}
	seen := map[string]int64{}
	for _, x := range rep.Rejected {
		seen[x.Reason] = x.Frames
	}
	if fmt.Sprint(seen) != fmt.Sprint(byReason) {
		t.Errorf("rejected %v, want %v", seen, byReason)
	}
	headline, _, _ := strings.Cut(r.out, "\n")
	if says := strings.Contains(headline, "unknown"); says != (want.Unknown > 0) {
		t.Errorf("headline %q, %d unknown", headline, want.Unknown)
	}
	if t.Failed() {
		t.Logf("%s\n%+v", r.out, rep.Drops)
	}
}

// A watch over sockets rejects replies from another address than the target's, and says why, for each protocol.
func TestWatchRejectsOtherSources(t *testing.T) {
	n := newNetwork(t)
	var far net.HardwareAddr
	n.link(n.far, farIface, func(l netlink.Link) error { far = l.Attrs().HardwareAddr; return nil })
	n.link(n.near, nearIface, func(l netlink.Link) error {
		return netlink.NeighAdd(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.ParseIP(impairedTarget), HardwareAddr: far})
	})
	for i, p := range impairedProtos {
		t.Run(p.name, func(t *testing.T) {
			stop := make(chan struct{})
			r := n.newReflector(p)
			r.serve(stop)
			defer r.done.Wait()
			defer close(stop)
			target := p.name + ":" + impairedTarget
			if p.name == "udp" {
				target += ":9000"
			}
			w := n.watch(9560+i, "-transport", "socket", "-target", target, "-rate", "100", "-timeout", "500ms",
				"-size", "100")
			w.until("replies from another address are rejected", func(v map[string]float64) bool {
				for name, count := range v {
					if strings.HasPrefix(name, "rebound_replies_rejected_total{") &&
						strings.Contains(name, fmt.Sprintf("reason=%q", outcome.Source)) && count >= 3 {
						return true
					}
				}
				return false
			})
			w.end()
		})
	}
}
