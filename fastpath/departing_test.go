package fastpath

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
)

// All test packets of one pass have the time of its Departing. If there are more than can wait, Slow answers the rest,
// and writes the time immediately. Until Departing nothing is written after a frame's end, and a second Departing
// changes nothing.
func TestDeparting(t *testing.T) {
	c := config(Strict)
	base := polling.TSC()
	c.Clock.Store(&Clock{TSC: base, NTP: 1 << 40, Rate: 1 << 32}) // one unit per tick
	r := responder(t, c)
	for _, n := range []int{1, 2, maxStamps, maxStamps + 3} {
		var frames [][]byte
		start := r.Loop.Begin()
		for i := range n {
			from, to := hosts(i%3 == 1)
			f := inBuffer(toUs(i%2, udp(from, to, 40000, 862, testPacket(44+i))))
			h := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(f)))
			if fast := r.Reply(h, len(f)); fast != (i < maxStamps) || !fast && r.Slow(h, len(f)) == 0 {
				t.Fatalf("packet %d of %d: by Reply %v", i, n, fast)
			}
			frames = append(frames, f)
		}
		before := polling.TSC()
		r.Departing()
		after := polling.TSC()
		same := uint64(0)
		for i, f := range frames {
			d := f[14+4*(i%2)+20:]
			if i%3 == 1 {
				d = d[20:]
			}
			at := func(off int) uint64 { return be.Uint64(d[off:]) - 1<<40 + base }
			t3, t2 := at(8+4), at(8+16)
			if i >= maxStamps {
				if t2 < start || t3 < t2 || t3 > before {
					t.Errorf("packet %d, Slow's: T2 %d, T3 %d, the pass began at %d and ended at %d", i, t2, t3, start,
						before)
				}
				continue
			}
			if t2 != start || t3 < before || t3 > after || same != 0 && t3 != same {
				t.Errorf("packet %d of %d: T2 %d, T3 %d, the pass began at %d, Departing was called from %d to %d, other packets have %d", i, n, t2, t3, start, before, after, same)
			}
			same = t3
			if want := bytes.Repeat([]byte{0xa5}, 64); !bytes.Equal(f[len(f):cap(f)][:64], want) {
				t.Errorf("packet %d: written behind its end", i)
			}
			from, to := hosts(i%3 == 1)
			check.Equal(t, l4sum(to.AsSlice(), from.AsSlice(), 17, d), 0xffff, "a reply sums to %#04x")
		}
		was := bytes.Clone(frames[0])
		if r.Departing(); !bytes.Equal(was, frames[0]) {
			t.Error("a second Departing changed a reply")
		}
	}
}

// Verified is trusted for long datagrams, and for nothing else.
func TestVerified(t *testing.T) {
	c := config(Strict)
	c.ChecksumBytes = DefaultChecksumBytes
	for _, k := range kinds {
		for _, n := range []int{50, wideBytes - 1, wideBytes, 1400} {
			for tags := range 3 {
				f := toUs(tags, k.packet(data(n)))
				f[len(f)-2] ^= 4
				r := responder(t, c)
				r.Verified = true
				want := n >= wideBytes && tags < 2 && k.kind != AnsweredICMPv4 && k.kind != AnsweredICMPv6
				if got := poll(r, inBuffer(f)) != 0; got != want || !want && r.Stats()[RefusedChecksum] != 1 {
					t.Errorf("%s with %d bytes under %d tags, one of them wrong: answered %v, counted %v", k.kind, n,
						tags, got, r.Stats())
				}
			}
		}
	}
}

// The relation of the clocks is replaced between reception and departure, as it is ten times a second: T3 is later than
// T2 by the time that passed, whatever the correction.
func TestDepartingWithAnotherClock(t *testing.T) {
	for _, step := range []uint64{1 << 30, ^uint64(1<<30) + 1} {
		c := config(Strict)
		base := polling.TSC()
		c.Clock.Store(&Clock{TSC: base, NTP: 1 << 40, Rate: 1 << 32}) // one unit per tick
		r := responder(t, c)
		start := r.Loop.Begin()
		f := inBuffer(toUs(0, udp(their4, our4, 40000, 862, testPacket(44))))
		if !r.Reply((*[64]byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)) {
			t.Fatal("not answered by Reply")
		}
		c.Clock.Store(&Clock{TSC: base, NTP: 1<<40 + step, Rate: 1 << 32})
		r.Departing()
		took := be.Uint64(f[34+8+4:]) - be.Uint64(f[34+8+16:])
		if most := polling.TSC() - start; took > most {
			t.Errorf("T3 is %d ticks after T2, at most %d passed", int64(took), most)
		}
		check.Equal(t, l4sum(our4.AsSlice(), their4.AsSlice(), 17, f[34:]), 0xffff, "the reply sums to %#04x")
	}
}
