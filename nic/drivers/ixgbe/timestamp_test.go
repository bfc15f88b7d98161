package ixgbe_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

var _ nic.CardClock = (*ixgbe.Device)(nil)

// stampPort is the port whose datagrams are timestamped.
const stampPort = 50000

// datagram is a UDP datagram to a port. event makes it a Sync message of PTP version 2.
func datagram(port uint16, event bool) []byte { return sized(100, port, event) }

func sized(size int, port uint16, event bool) []byte {
	f := nictest.Kind{Name: "udp", Size: size, Batch: 1}.Frame()
	copy(f, mac[:])
	binary.BigEndian.PutUint16(f[36:], port)
	f[42], f[43] = 0, 1
	if event {
		f[43] = 2
	}
	return f
}

// sends returns what the device sends at the other end.
func sends(t *testing.T, d *ixgbe.Device, far *sim.Cable, f []byte) {
	t.Helper()
	must.OK(t, d.Send(f))
	await.Until(t, "the frame on the wire", func() bool {
		return bytes.HasPrefix(far.Recv(0), f)
	}, func() string { return "it is not there" })
}

// receives sends frames to the device and returns the timestamps with which they arrive.
func receives(t *testing.T, d *ixgbe.Device, far *sim.Cable, frames ...[]byte) (stamps []nic.Timestamp) {
	t.Helper()
	for _, f := range frames {
		far.Send(0, f)
	}
	buf := make([]byte, 2048)
	await.Until(t, "the frames", func() bool {
		for n := 1; n > 0; {
			var err error
			if n, _, err = d.Recv(buf); err != nil {
				t.Fatal(err)
			} else if n > 0 {
				stamps = append(stamps, d.RxTimestamp())
			}
		}
		return len(stamps) == len(frames)
	}, func() string { return fmt.Sprintf("%d of %d arrived", len(stamps), len(frames)) })
	return stamps
}

// sentAt returns the next timestamp of a sent frame.
func sentAt(t *testing.T, d *ixgbe.Device) (id uint32, at nic.Timestamp) {
	t.Helper()
	await.Until(t, "a transmit timestamp", func() bool {
		var ok bool
		var err error
		id, at, ok, err = d.TxTimestamp()
		must.OK(t, err)
		return ok
	}, func() string { return "there is none" })
	return id, at
}

// inNanoseconds compares the clock with SYSTIM (82599 datasheet §8.2.3.26), whose lower shift bits are below a
// nanosecond.
func inNanoseconds(t *testing.T, d *ixgbe.Device, w *mmio.Window, shift int) {
	t.Helper()
	before := must.Get(d.ReadClock())(t)
	low := uint64(w.Read32(0x8c0c)) // holds the upper half
	systim := int64((uint64(w.Read32(0x8c10))<<32 | low) >> shift)
	if after := must.Get(d.ReadClock())(t); systim < before || systim > after {
		t.Errorf("SYSTIM is %d ns, between readings of %d and %d ns", systim, before, after)
	}
}

func stamped(t *testing.T, k ixgbesim.Kind) (*ixgbe.Device, *sim.Cable) {
	p, fn := host(t, ixgbesim.New(ixgbesim.Options{Kind: k}))
	far := wire(p)
	d := open(t, fn, nic.Options{RingSize: 128})
	awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
	must.OK(t, d.TimestampPort(stampPort))
	check.Equal(t, must.Get(d.EnableTimestamps(true))(t),
		nic.Timestamping{RxHardware: true, TxHardware: true, RxPTP: true}, "active %+v")
	inNanoseconds(t, d, must.Get(fn.BAR(0))(t), map[ixgbesim.Kind]int{ixgbesim.SFP: 21, ixgbesim.X540: 28}[k])
	return d, far
}

// TestTimestamps: sent frames and PTP messages to the port have timestamps of one clock, and other frames have none.
func TestTimestamps(t *testing.T) {
	for _, kind := range []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.X540} {
		d, far := stamped(t, kind)
		last := int64(0)
		for n := range uint32(50) {
			sends(t, d, far, datagram(7, false))
			id, tx := sentAt(t, d)
			rx := receives(t, d, far, datagram(stampPort, false), datagram(stampPort+1, true),
				datagram(stampPort, true))
			if id != n || !tx.Hardware || tx.Nanoseconds <= last || rx[0] != (nic.Timestamp{}) || rx[1] != rx[0] ||
				!rx[2].Hardware || rx[2].Nanoseconds < tx.Nanoseconds {
				t.Fatalf("after %d ns, frame %d: sent as %d at %+v, replies at %+v", last, n, id, tx, rx)
			}
			last = rx[2].Nanoseconds
		}
		if _, _, ok, err := d.TxTimestamp(); ok || err != nil {
			t.Errorf("a timestamp of nothing: %v, %v", ok, err)
		}
	}
}

// TestTimestampPort: messages to the port that was selected last have timestamps, if they have a whole header.
func TestTimestampPort(t *testing.T) {
	d, far := stamped(t, ixgbesim.SFP)
	const other = stampPort + 1
	must.OK(t, d.TimestampPort(other))
	for _, c := range []struct {
		size int
		port uint16
		want bool
	}{{100, stampPort, false}, {100, other, true}, {75, other, false}, {76, other, true}} {
		at := receives(t, d, far, sized(c.size, c.port, true))
		check.Equal(t, at[0].Hardware, c.want, fmt.Sprintf("%d bytes to port %d have a timestamp: %%v", c.size, c.port))
	}
}

// TestReadClock: the card's clock is that of the timestamps, and never goes back, although its halves are read one
// after the other.
func TestReadClock(t *testing.T) {
	for _, kind := range []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.X540} {
		d, far := stamped(t, kind)
		read := func() int64 { return must.Get(d.ReadClock())(t) }
		for range 20 {
			before := read()
			sends(t, d, far, datagram(7, false))
			_, tx := sentAt(t, d)
			rx := receives(t, d, far, datagram(stampPort, true))
			if after := read(); tx.Nanoseconds < before || rx[0].Nanoseconds > after || after == before {
				t.Fatalf("sent at %d, received at %d, between %d and %d", tx.Nanoseconds, rx[0].Nanoseconds, before,
					after)
			}
		}
		last := read()
		for range 20_000 {
			now := read()
			if now < last {
				t.Fatalf("%d ns after %d", now, last)
			}
			last = now
		}
	}
}

// TestOneTimestampAtATime: the registers have room for one frame, and other frames are not given its timestamp.
func TestOneTimestampAtATime(t *testing.T) {
	d, far := stamped(t, ixgbesim.SFP)
	for range 3 {
		sends(t, d, far, datagram(7, false))
	}
	if id, _ := sentAt(t, d); id != 0 {
		t.Errorf("the timestamp is of frame %d", id)
	}
	sends(t, d, far, datagram(7, false))
	if id, _ := sentAt(t, d); id != 3 {
		t.Errorf("the next timestamp is of frame %d", id)
	}
	for range 200 { // more than the ring has, and nobody asks
		sends(t, d, far, datagram(7, false))
	}
	if id, at := sentAt(t, d); id < 4+128 || at.Nanoseconds == 0 {
		t.Errorf("the last timestamp is of frame %d", id)
	}
}

// TestLostTimestamp: a frame that was dropped keeps RXSTMP until the driver releases it.
func TestLostTimestamp(t *testing.T) {
	d, far := stamped(t, ixgbesim.SFP)
	event, other := datagram(stampPort, true), datagram(stampPort, false)
	for range 127 { // the ring
		far.Send(0, other)
	}
	far.Send(0, event)
	var st nic.Stats
	await.Until(t, "the drop", func() bool { must.OK(t, d.ReadStats(&st)); return st.RxDropped == 1 },
		func() string { return fmt.Sprintf("%+v", st) })
	buf := make([]byte, 2048)
	for range 127 {
		_, _, err := d.Recv(buf)
		must.OK(t, err)
	}
	lacking := 0
	for range 5 {
		for _, at := range receives(t, d, far, slices.Repeat([][]byte{event}, 64)...) {
			if at.Nanoseconds == 0 {
				lacking++
			} else if lacking < 2*128-127 {
				t.Fatalf("a timestamp after %d frames: the register may be that of a frame in the ring", lacking)
			}
		}
	}
	if at := receives(t, d, far, event)[0]; at.Nanoseconds == 0 {
		t.Errorf("no timestamp after %d frames", lacking)
	}
}

// TestTimestampsAfterARestart: a reset turns the clock off, and a restart turns it on again.
func TestTimestampsAfterARestart(t *testing.T) {
	m := ixgbesim.New(ixgbesim.Options{})
	p, fn := host(t, m)
	wire(p)
	d := open(t, fn, nic.Options{})
	awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
	must.Get(d.EnableTimestamps(true))(t)
	defer keepReceiving(t, d)()
	w := must.Get(fn.BAR(0))(t)
	w.Write32(0x3000, 0) // RXCTRL: what another process's reset leaves
	await.Until(t, "the clock", func() bool {
		return w.Read32(0x3000)&1 != 0 && w.Read32(0x5188)&^1 == 1<<4|5<<1 && w.Read32(0x8c14) != 0
	},
		func() string { return fmt.Sprintf("TSYNCRXCTL %x, TIMINCA %x", w.Read32(0x5188), w.Read32(0x8c14)) })
}

// TestClockFollowsTheLink: the clock is set for the link's speed, which may become known later.
func TestClockFollowsTheLink(t *testing.T) {
	p, fn := host(t, ixgbesim.New(ixgbesim.Options{Module: ixgbesim.Gigabit}))
	d := must.Get(ixgbe.OpenWith(fn, nic.Options{MAC: mac}, ixgbe.Options{LinkMode: "0"}))(t)
	t.Cleanup(func() { must.Close(t, d) })
	must.Get(d.EnableTimestamps(true))(t)
	w := must.Get(fn.BAR(0))(t)
	check.Equal(t, w.Read32(0x8c14), 1<<24|0xcccccc, "without a link TIMINCA is %#x")
	defer keepReceiving(t, d)()
	wire(p)
	await.Until(t, "the increment for 1 Gb/s", func() bool { return w.Read32(0x8c14) == 1<<24|0x800000 },
		func() string { return fmt.Sprintf("TIMINCA %#x", w.Read32(0x8c14)) })
	inNanoseconds(t, d, w, 17)
}
