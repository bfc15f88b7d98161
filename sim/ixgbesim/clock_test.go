package ixgbesim

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
)

func (r *rig) clock() uint64 { return uint64(r.rd(0x8c0c)) | uint64(r.rd(0x8c10))<<32 }

// SYSTIM advances by the increment value in each period of 6.4 ns.
func TestClock(t *testing.T) {
	r := openRig(t, Options{})
	if r.clock() != r.clock() || r.clock() != 0 {
		t.Error("SYSTIM runs without an increment")
	}
	r.wr(0x8c14, 1<<24|0xcccccc) // Linux's at 10 Gb/s: 2^21 for a nanosecond
	steps := func() uint64 {
		before := r.clock()
		for range 64 {
			r.Port.Step()
		}
		return (r.clock() - before) >> 13 // in units of 2^-8 ns
	}
	const elapsed = 64 * uint64(sim.Tick)
	if got := steps(); got>>8 < elapsed-1 || got>>8 > elapsed {
		t.Errorf("SYSTIM advanced by %d ns of %d", got>>8, elapsed)
	}
	r.wr(0x8c14, 2<<24|0xcccccc)
	if got := steps(); got>>8 < elapsed/2-7 || got>>8 > elapsed/2 {
		t.Errorf("with twice the period SYSTIM advanced by %d ns of %d", got>>8, elapsed/2)
	}
	r.wr(0x8c0c, 5)
	r.wr(0x8c10, 7)
	check.Equal(t, r.clock(), 7<<32|5, "SYSTIM was written, and is %#x")
}

// ptp returns a message of PTP, over UDP or in Ethernet.
func ptp(t testing.TB, port uint16, version, typ byte) []byte {
	t.Helper()
	m := make([]byte, 44)
	m[0], m[1] = typ, version
	if port != 0 {
		return build(t, false, &layers.UDP{SrcPort: 319, DstPort: layers.UDPPort(port)}, m)
	}
	f := append(frame(14), m...)
	binary.BigEndian.PutUint16(f[12:], 0x88f7)
	return f
}

// The register keeps the first stamp until its upper half is read.
func TestReceiveStamps(t *testing.T) {
	r := openRig(t, Options{})
	r.wr(0x8c14, 1<<24|0xcccccc)
	r.fill(40)
	at := 0
	arrives := func(what string, f []byte, want bool) {
		t.Helper()
		before := r.clock()
		r.Arrive(f)
		status := binary.LittleEndian.Uint32(r.rxDesc(at)[8:])
		at++
		got := r.rd(0x5188)&1 != 0
		if v := uint64(r.rd(0x51e8)) | uint64(r.rd(0x51a4))<<32; got && (v <= before || v > r.clock()) {
			t.Errorf("%s: stamp %#x after %#x", what, v, before)
		}
		if got != want || status>>16&1 != 0 != want || r.rd(0x5188)&1 != 0 {
			t.Errorf("%s is stamped: %v, in the descriptor %08x", what, got, status)
		}
	}
	event := ptp(t, 319, 2, 0)
	arrives("without TSYNCRXCTL.EN", event, false)
	r.wr(0x5188, 1<<4|5<<1)
	arrives("a Sync", event, true)
	arrives("the next", event, true)
	arrives("a Follow_Up", ptp(t, 319, 2, 8), false)
	arrives("another port", ptp(t, 320, 2, 0), false)
	arrives("version 1", ptp(t, 319, 1, 0), false)
	arrives("Ethernet without a filter", ptp(t, 0, 2, 1), false)
	r.wr(0x5128, 1<<31|1<<30|0x88f7)
	arrives("Ethernet", ptp(t, 0, 2, 1), true)
	r.wr(0x5188, 1<<4|1<<1)
	arrives("version 1 of the control field", ptp(t, 319, 1, 0), true)
	r.wr(0x5188, 1<<4|2<<1)
	r.wr(0x5120, 319<<16|1<<8)
	arrives("another type", event, false)
	arrives("the type", ptp(t, 319, 2, 1), true)

	r.wr(0x5188, 1<<4|5<<1)
	r.Arrive(event)
	first := r.rd(0x51e8)
	r.Arrive(event)
	if status := binary.LittleEndian.Uint32(r.rxDesc(at + 1)[8:]); r.rd(0x51e8) != first || status>>16&1 != 0 {
		t.Errorf("the second message replaced the stamp: %08x", status)
	}
}

func TestTransmitStamps(t *testing.T) {
	r := openRig(t, Options{})
	r.wr(0x8c14, 1<<24|0xcccccc)
	f := frame(60)
	send := func() {
		r.desc(r.load(int(r.txT), f), uint32(len(f))|advData|eop|rs|1<<19, uint32(len(f))<<14)
		r.kick()
	}
	send()
	r.ExpectViolation("without TSYNCTXCTL.EN")
	r.wr(0x8c00, 1<<4)
	before := r.clock()
	send()
	low := r.rd(0x8c04)
	send()
	if r.rd(0x8c00)&1 == 0 || r.rd(0x8c04) != low {
		t.Errorf("TSYNCTXCTL %x, stamp %x after the second frame, %x before", r.rd(0x8c00), r.rd(0x8c04), low)
	}
	if v := uint64(low) | uint64(r.rd(0x8c08))<<32; v <= before || v > r.clock() || r.rd(0x8c00)&1 != 0 {
		t.Errorf("stamp %#x after %#x", v, before)
	}
}
