package mlx4

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// benchDatagrams is a queue pair of an InfiniBand port.
type benchDatagrams struct {
	*DatagramQueue
	bench
	payload []byte
	grh     []byte // before the payload, or nil
}

var (
	benchGID = ib.NewGID(0xFE80<<48, 0x0002C90300123457)
	farGID   = ib.NewGID(0xFE80<<48, 0x0002C90300ABCDE1)
)

func newBenchDatagrams(t testing.TB, payload []byte, push bool) *benchDatagrams {
	b := &benchDatagrams{payload: payload, DatagramQueue: &DatagramQueue{portPD: swap(1<<24 | 5), qkey: swap(0x0B1B),
		own: newStation(ib.Station(0, benchQPN)), self: uint64(newStation(ib.Station(2, benchQPN)))}}
	b.fill(t, &b.Queue, 67*64, 64, 180, push)
	b.size, b.rxQPN, b.txQPN = ib.HeaderSize+maxPayload-ib.EncapSize, benchQPN, benchQPN
	a := ib.NewAddress(benchQPN, benchGID)
	b.address.Store(&a)
	return b
}

// arrive receives the next n datagrams as the device does, from queue pair 0x49 at LID 3 with SL 5 over path bits 1. It
// also completes all sends.
func (b *benchDatagrams) arrive(n int) {
	for range n {
		slot := b.arrived & b.mask
		at := unsafe.Add(b.buf, slot*b.stride)
		copy(unsafe.Slice((*byte)(unsafe.Add(at, slotPayload)), len(b.payload)), b.payload)
		remote := uint32(1<<24 | 0x49)
		if b.grh != nil {
			remote |= 1 << 31
			copy(unsafe.Slice((*byte)(unsafe.Add(at, slotGRH)), 40), b.grh)
		}
		*b.completion(b.rxCQ, slot) = cqe{byteCount: swap(uint32(40 + len(b.payload))), remote: swap(remote),
			source: swap(5<<28 | 3),
			last:   done(1, b.arrived, b.arrived, b.shift)}
		b.arrived++
	}
	b.sendAll()
}

// packet4 is IPoIB's payload with an echo request of n bytes of IPv4.
func packet4(n int) []byte { return append([]byte{8, 0, 0, 0}, rig.Echo(n + 14)[14:]...) }

// arpRequest is IPoIB's payload with a question for 10.0.0.2 by 10.0.0.1.
func arpRequest() []byte {
	head := []byte{8, 6, 0, 0, 0, 32, 8, 0, 20, 4, 0, 1, 0x80, 0, 0, 0x49}
	return slices.Concat(head, farGID[:], []byte{10, 0, 0, 1}, make([]byte, 20), []byte{10, 0, 0, 2})
}

func subnetResponder(t testing.TB) *fastpath.Responder {
	return must.Get(fastpath.New(fastpath.Config{MAC: ib.Station(0, benchQPN), UDPPorts: []uint16{7},
		Addresses:     []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00::2/64")},
		ChecksumBytes: fastpath.DefaultChecksumBytes, Rate: fastpath.DefaultRate, Burst: 1 << 30,
		TicksPerSecond: 1 << 30}))(t)
}

// A reply's WQE has the device's format byte for byte, in the send queue and in BlueFlame. The reply goes back to the
// source of the request, with a GRH if the request had one.
func TestDatagramWQE(t *testing.T) {
	for _, global := range []bool{false, true} {
		b, r := newBenchDatagrams(t, packet4(84), true), subnetResponder(t)
		if global {
			b.grh = slices.Concat([]byte{6 << 4, 7: 0}, farGID[:], benchGID[:])
		}
		b.arrive(1)
		if b.Poll(r) != 1 {
			t.Fatalf("no reply: %v", r.Stats())
		}
		reply := unsafe.Slice((*byte)(unsafe.Add(b.buf, slotPayload)), 88)
		want := []byte{
			0, 0, 0, 0x0A, // owner 0, index 0, opcode: Send
			0, 3, 5, 10, // the QP, for BlueFlame; 10 units of 16 bytes: 64 + 64 + 4 + 28
			0, 0, 0, 0, // no completion requested, no event at the receiver
			0, 0, 0, 0,
			1, 0, 0, 5, // port 1, protection domain 5
			0, 1, 0, 3, // no GRH, path bits 1, LID 3
			0, 0, 0, 0, // our first GID, the port's own rate
			0x50, 0, 0, 0, // SL 5
			0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
			0, 0, 0, 0x49, 0, 0, 0x0B, 0x1B,
			0, 0, 0, 0, 0, 0, 0, 0,
			0x80, 0, 0, 60,
		}
		if global {
			want[21] |= 0x80
			want[27] = 0xFF
			copy(want[32:], farGID[:])
		}
		want = append(append(append(want, reply[:60]...), 0x80, 0, 0, 28), reply[60:]...)
		check.Same(t, b.wqe(0, 3)[:len(want)], want, "WQE\n% x")
		check.Same(t, b.flame[:192], b.wqe(0, 3), "BlueFlame holds\n% x")
		if reply[0] != 8 || reply[4+20] != 0 || !bytes.Equal(reply[16:20], []byte{10, 0, 0, 2}) ||
			!bytes.Equal(reply[32:], b.payload[32:]) {
			t.Errorf("% x is not the reply to\n% x", reply, b.payload)
		}
		check.Equal(t, b.doorbell, 0, "the doorbell was rung besides: %#x")
	}
}

func TestEveryDatagramLength(t *testing.T) {
	needs.Long(t)
	r := subnetResponder(t)
	for n := 28; n <= 240; n++ {
		b := newBenchDatagrams(t, packet4(n), n%3 != 0)
		for b.txTail < b.txMask+40 {
			start, slot := b.txTail, b.arrived
			b.arrive(1)
			if b.Poll(r) != 1 {
				t.Fatalf("%d bytes: no reply at block %d: %s, %v", n, start, b.faultText(), r.Stats())
			}
			w := b.wqe(start, b.txTail-start)
			reply := unsafe.Slice((*byte)(unsafe.Add(b.buf, slot&b.mask*b.stride+slotPayload)), n+4)
			must.Equal(t, uint32(w[0]>>7), start>>b.txShift&1, "owner bit %d")
			if n+4 > 180 {
				seg := *(*mlxkit.DataSegment)(unsafe.Pointer(&w[64]))
				if seg != mlxkit.NewData(uint32(n+4), 0x1200, 1<<32+uint64(slot&b.mask*b.stride)+slotPayload) ||
					w[7]&0x3F != 80/16 || len(w) != 128 {
					t.Fatalf("%d bytes: pointer %x, %d units in %d bytes", n, seg, w[7]&0x3F, len(w))
				}
				continue
			}
			if sent, blocks := decode(t, w, 64); !bytes.Equal(sent, reply) || int(blocks) != len(w)/64 {
				t.Fatalf("%d bytes: WQE of %d blocks at block %d holds\n% x\nwant\n% x", n, blocks, start, sent, reply)
			}
		}
	}
}

// ask returns the WQE of the answer to a payload: destination and payload, or nothing and the verdict.
func (b *benchDatagrams) ask(t *testing.T, r *fastpath.Responder, payload []byte, to [16]byte) (w []byte,
	why fastpath.Verdict) {
	t.Helper()
	before := r.Stats()
	start := b.txTail
	b.payload, b.grh = payload, slices.Concat(make([]byte, 8), farGID[:], to[:])
	b.arrive(1)
	n := b.Poll(r)
	after := r.Stats()
	counted := 0
	for v := range after {
		if after[v] != before[v] {
			why = fastpath.Verdict(v)
			counted++
		}
	}
	if counted != 1 || n == 1 != why.Answered() {
		t.Fatalf("%d replies, %d verdicts, %v", n, counted, why)
	}
	if n == 0 {
		return nil, why
	}
	return b.wqe(start, b.txTail-start), why
}

// Packets received through a group are answered if they are ARP or neighbour discovery, and refused otherwise, as on
// Ethernet. Packets that are not for us are refused, too.
func TestDatagramGuards(t *testing.T) {
	b, r := newBenchDatagrams(t, nil, false), subnetResponder(t)
	group := ib.BroadcastGroup(ib.ScopeLink, 0xFFFF)
	arp := arpRequest()
	w, why := b.ask(t, r, arp, group)
	if why != fastpath.AnsweredARP {
		t.Fatal(why)
	}
	own := ib.NewAddress(benchQPN, benchGID)
	want := slices.Concat(arp[:11], []byte{2}, own[:], arp[56:60], arp[12:32], arp[32:36])
	if !bytes.Equal(w[68:68+60], want) || w[21] != 0x81 || w[23] != 3 || w[51] != 0x49 {
		t.Errorf("% x\nwant % x", w, want)
	}
	change := func(p []byte, at int, v byte) []byte {
		c := bytes.Clone(p)
		c[at] = v
		return c
	}
	ping := packet4(84)
	ours := [16]byte(benchGID)
	for name, c := range map[string]struct {
		payload []byte
		to      [16]byte
		want    fastpath.Verdict
	}{
		"ping":                {ping, ours, fastpath.AnsweredICMPv4},
		"ping to a group":     {ping, group, fastpath.RefusedMAC},
		"reserved bits":       {change(ping, 3, 1), ours, fastpath.AnsweredICMPv4},
		"VLAN tag":            {change(change(ping, 0, 0x81), 1, 0), ours, fastpath.RefusedEtherType},
		"cut":                 {ping[:14], ours, fastpath.RefusedShort},
		"longer than it says": {append(bytes.Clone(ping), 0, 0, 0, 0), ours, fastpath.AnsweredICMPv4},
		"ARP for another":     {change(arp, 59, 3), group, fastpath.RefusedAddress},
		"ARP of Ethernet":     {change(arp, 5, 1), group, fastpath.RefusedARP},
		"cut ARP":             {arp[:59], group, fastpath.RefusedARP},
		"ARP reply":           {change(arp, 11, 2), group, fastpath.RefusedARP},
		"long ARP":            {append(bytes.Clone(arp), make([]byte, 500)...), group, fastpath.RefusedARP},
	} {
		if _, why := b.ask(t, r, c.payload, c.to); why != c.want {
			t.Errorf("%s: %v, want %v", name, why, c.want)
		}
	}
	b.self = uint64(newStation(ib.Station(3, 0x49))) // as if we had sent it
	if _, why := b.ask(t, r, ping, ours); why != fastpath.RefusedOwnSource {
		t.Errorf("from ourselves: %v", why)
	}
	for _, n := range []int{0, 39, 43, 40 + maxPayload + 1} {
		bad := b.badRx.Load()
		b.payload = nil
		b.arrive(1)
		b.completion(b.rxCQ, (b.arrived-1)&b.mask).byteCount = swap(uint32(n))
		if b.Poll(r) != 0 || b.badRx.Load() != bad+1 {
			t.Errorf("a datagram of %d bytes was not counted as broken", n)
		}
	}
}

func TestDatagramDuplicate(t *testing.T) {
	b, r := newBenchDatagrams(t, nil, false), subnetResponder(t)
	p := make([]byte, 4+40+24)
	copy(p, []byte{0x86, 0xDD, 0, 0, 0x60, 8: 0, 9: 24, 10: 58, 11: 255})
	copy(p[28:], []byte{0xFF, 2, 11: 1, 12: 0xFF, 15: 2})
	p[44] = 135
	copy(p[52:], []byte{0xFD, 15: 2})
	binary.BigEndian.PutUint16(p[46:], ^cksum.Sum(p[12:], 58+24))
	group, _ := ib.MulticastGroup(ib.ScopeLink, 0xFFFF, netip.MustParseAddr("ff02::1:ff00:2"))
	b.payload, b.grh = p, append(make([]byte, 24), group[:]...)
	b.arrive(1)
	check.Equal(t, b.Poll(r), 0, "%d replies while the all-nodes group is not known")
	all, _ := ib.MulticastGroup(ib.ScopeLink, 0xFFFF, allNodes)
	to := b.toGroup(ib.Group{MGID: all, MLID: 0xC005, SL: 2, HopLimit: 3, FlowLabel: 0xABCDE, TrafficClass: 7})
	b.DatagramQueue.group.Store(&to)
	start := b.txTail
	w, why := b.ask(t, r, p, group)
	if why != fastpath.AnsweredND {
		t.Fatal(why)
	}
	if av := w[16:56]; !bytes.Equal(av, append(append([]byte{1, 0, 0, 5, 0, 0x80, 0xC0, 5, 0, 0, 0, 3, 0x20, 0x7A, 0xBC,
		0xDE}, all[:]...), 0, 0xFF, 0xFF, 0xFF, 0, 0, 0x0B, 0x1B)) {
		t.Errorf("goes to % x", av)
	}
	if o := b.wqe(start+2, 1)[4+8:]; !bytes.Equal(o[:8], []byte{2, 3, 0, 0, 0, 0, 3, 5}) {
		t.Errorf("option % x in % x", o[:8], w)
	}
}

func TestDatagramPollAllocatesNothing(t *testing.T) {
	b, r := newBenchDatagrams(t, packet4(84), true), subnetResponder(t)
	arp := arpRequest()
	for _, p := range [][]byte{packet4(84), packet4(1000), arp, arp[:50]} {
		b.payload = p
		if n := testing.AllocsPerRun(1000, func() {
			b.arrive(3)
			if n := b.Poll(r); n != 3 && len(p) != 50 {
				t.Fatalf("answered %d of 3: %s, %v", n, b.faultText(), r.Stats())
			}
		}); n != 0 {
			t.Errorf("%v allocations a pass", n)
		}
	}
}

// BlueFlame is ordinary memory here, so the cost of stores on the bus is not included. size is that of the equivalent
// Ethernet frame, so that the figures compare with those of BenchmarkPoll.
func BenchmarkDatagramPoll(b *testing.B) {
	for _, bm := range []struct {
		size, batch int
		push        bool
	}{{64, 1, true}, {64, 32, true}, {190, 1, true}, {191, 1, true}, {64, 1, false}} {
		b.Run(fmt.Sprintf("size=%d/batch=%d/push=%v", bm.size, bm.batch, bm.push), func(b *testing.B) {
			q, r := newBenchDatagrams(b, packet4(bm.size-14), bm.push), subnetResponder(b)
			loop := q.DatagramQueue
			nictest.Cycles(b, r, bm.batch, q.arrive, func() int { return loop.Poll(r) })
		})
	}
}

func TestDatagramPollIsAHotLoop(t *testing.T) {
	const p = "github.com/rebound-nic/rebound/nic/drivers/mlx4"
	nictest.StackAccesses(t, p, "(*DatagramQueue).Poll", 60)
	nictest.StackAccesses(t, p, "(*DatagramQueue).post", 20)
	nictest.StackAccesses(t, p, "(*DatagramQueue).point", 30)
	nictest.HotLoop(t, p, "(*DatagramQueue).Poll", "mlx4.(*DatagramQueue).post", "mlx4.(*DatagramQueue).point",
		"mlx4.(*DatagramQueue).slow",
		"mlx4.(*Queue).reclaim", "mlx4.(*Queue).fail", "mmio.Store32")
	nictest.HotLoop(t, p, "(*DatagramQueue).post", "mmio.PushHeaded")
	nictest.HotLoop(t, p, "(*DatagramQueue).point", "mmio.Store32", "mmio.FenceWC", "mmio.CopyWC")
}
