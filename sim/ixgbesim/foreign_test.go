package ixgbesim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Register sequences of third-party drivers that run on real cards and differ from the datasheet's: the model may warn,
// but must work.

// exchange sends one frame each way: with a legacy descriptor, as simple drivers use them.
func (r *rig) exchange() {
	r.Helper()
	f := frame(200)
	r.Arrive(f)
	if d := r.rxDesc(0); d[12]&3 != 3 || !bytes.Equal(r.mem[rxBufs:rxBufs+200], f) {
		r.Errorf("nothing was received: descriptor %x", d)
	}
	at := r.desc(r.load(0, f), 200|1<<24|1<<25|1<<27, 0) // EOP, IFCS, RS
	r.kick()
	r.Sent(f, "a legacy descriptor")
	check.Equal(r, r.txDesc(int(at))[12]&1, 1, "DD is %d")
}

func (r *rig) rings() {
	for i, base := range []uint64{0x1000, 0x6000} {
		at := r.iova + []uint64{rxRing, txRing}[i]
		r.wr(base, uint32(at))
		r.wr(base+4, uint32(at>>32))
		r.wr(base+8, ringLen*16)
		r.wr(base+0x10, 0)
		r.wr(base+0x18, 0)
	}
}

// iPXE waits a fixed time after a reset, enables its rings first, then the transmitter and the buffer size, starts the
// receiver without halting the data path, and moves the tail immediately.
func TestAsIPXE(t *testing.T) {
	r := newRig(t, Options{})
	r.wr(0x0, r.rd(0x0)|1<<26|1<<3)
	r.settle() // 20 ms
	r.rings()
	for _, ctl := range []uint64{0x6028, 0x1028} {
		r.wr(ctl, r.rd(ctl)|1<<25)
	}
	r.wr(0xa200, 2)
	r.wr(0xa204, 1<<31|0x0100)
	r.wr(0x5400, 2)
	r.wr(0x900, 0x8180|1)
	r.set(0x4a80, 1)
	r.set(0x5080, 7<<8)
	r.wr(0x1014, r.rd(0x1014)&^0x1f|2)
	r.set(0x4240, 1<<2)
	r.wr(0x4268, 1522<<16)
	r.set(0x2f00, 1<<1)
	r.wr(0x100c, r.rd(0x100c)&^(1<<12))
	r.set(0x3000, 1)
	r.fill(8)
	r.exchange()
	check.Same(t, r.Port.Errors(), nil, "errors: %q")
	r.ExpectWarning("SECRXCTRL.RX_DIS")
}

// ixy waits for its resets, starts the receiver as iPXE does, and writes the unchanged heads of running queues.
func TestAsIxy(t *testing.T) {
	r := newRig(t, Options{})
	r.reset()
	r.wr(0x3000, 0)
	r.wr(0x3c00, 0x80000)
	r.set(0x4240, 1<<1)
	r.set(0x2f00, 1<<1)
	r.set(0x5080, 1<<10)
	r.wr(0x1014, r.rd(0x1014)&^(7<<25)|1<<25|1<<28)
	r.rings()
	r.set(0x18, 1<<16)
	r.wr(0x100c, r.rd(0x100c)&^(1<<12))
	r.set(0x3000, 1)
	r.set(0x4240, 1<<10|1)
	r.wr(0x8100, 0xffff) // reserved bits
	r.wr(0x6028, r.rd(0x6028)&^0x7f7f7f|36|8<<8|4<<16)
	r.wr(0x4a80, 1) // without the EtherType of VLAN tags, which it does not use
	r.set(0x1028, 1<<25)
	r.poll(0x1028, 1<<25, 1<<25)
	r.wr(0x1010, 0)
	r.fill(ringLen - 1)
	r.set(0x6028, 1<<25)
	r.poll(0x6028, 1<<25, 1<<25)
	r.wr(0x6010, 0)
	f := frame(200)
	r.Far.Send(0, f)
	for range 4 {
		r.send(f)
	}
	r.settle()
	if d := r.rxDesc(0); d[8]&3 != 3 {
		t.Errorf("nothing was received: descriptor %x", d)
	}
	if d := r.txDesc(3); d[12]&1 == 0 {
		t.Errorf("nothing was sent: descriptor %x", d)
	}
	check.Same(t, r.Port.Errors(), nil, "errors: %q")
	check.Contains(t, strings.Join(r.Port.Violations(), "\n"),
		"RXCTRL.RXEN", "RDH[0] = 0 while", "TDH[0] = 0 while", "DTXMXSZRQ", "changes the VLAN EtherType")
	r.Port.ForgetViolations()
	r.wr(0x1010, 5)
	r.ExpectError("RDH[0] = 5 while the queue is enabled")
}

// DPDK inserts a VLAN tag with a context without an L4 protocol. Requesting an L4 checksum with that context is
// refused.
func TestContextWithoutL4(t *testing.T) {
	r := openRig(t, Options{})
	f := frame(100)
	r.desc(0x2005<<16|14<<9, 2<<20|1<<29|3<<11, 0)
	r.desc(r.load(1, f), 100|advData|eop|rs|1<<30, 100<<14)
	r.kick()
	if got := r.Far.Recv(1 << 40); len(got) != 104 || !bytes.Equal(got[12:16], []byte{0x81, 0, 0x20, 5}) {
		t.Errorf("sent %x", got)
	}
	r.Clean()
	r.desc(r.load(1, f), 100|advData|eop|rs, 100<<14|1<<9) // TXSM
	r.kick()
	r.ExpectError("TXSM with L4T 3")
	if got := r.Far.Recv(1 << 40); got != nil {
		t.Errorf("sent %x", got)
	}
	r.desc(r.load(1, f), 60|advData|eop|rs|1<<31, 60<<14|1<<9) // TSE
	r.kick()
	r.ExpectError("TXSM with L4T 3")
}

func TestReservedDescriptorBits(t *testing.T) {
	r := openRig(t, Options{})
	for _, c := range []struct {
		w2, w3 uint32
		want   string
	}{{1 << 16, 0, "17:16"}, {1 << 26, 0, "reserved DCMD"}, {0, 1, "STA 1"}} {
		r.desc(r.load(1, frame(100)), 100|advData|eop|rs|c.w2, 100<<14|c.w3)
		r.kick()
		if got := r.Far.Recv(1 << 40); len(got) != 100 {
			t.Errorf("%s: sent %x", c.want, got)
		}
		r.ExpectWarning(c.want)
	}
}

// Linux and DPDK turn the laser off with SDP3 alone: the EEPROM made the pin an output.
func TestLaser(t *testing.T) {
	r := openRig(t, Options{})
	link := func(want uint32, when string) {
		t.Helper()
		check.Equal(t, r.rd(0x42a4)>>30&1, want, when+": link %d")
	}
	link(1, "laser on")
	r.set(0x20, 1<<3)
	link(0, "laser off")
	r.wr(0x20, r.rd(0x20)&^(1<<3))
	link(1, "laser on again")
}

func TestCountersOfMACsec(t *testing.T) {
	r := newRig(t, Options{})
	r.reset()
	for off := uint64(0x8a3c); off <= 0x8f80; off += 4 {
		if off <= 0x8a4c || off >= 0x8f40 {
			check.Equal(t, r.rd(off), 0, fmt.Sprintf("%05xh reads %%08x", off))
		}
	}
	r.wr(0x51b8, r.rd(0x51b8)|1<<9)
}

// Linux 5.15 may do this when a queue is given a zero-copy pool.
func TestReceiveTailOfADisabledQueueIsIgnored(t *testing.T) {
	r := openRig(t, Options{})
	r.wr(0x1058, ringLen-1)
	r.ExpectViolation("warning: write of 0000003f to RDT[1]")
	check.Equal(t, r.rd(0x1058), 0, "RDT reads %d")
	r.second(2 | 1<<25 | 1<<28)
}

func TestFiveTupleFilter(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(8)
	r.second(2 | 1<<25 | 1<<28) // used only for its counter: it drops for lack of descriptors
	r.wr(0x2300, 1<<8)          // queue 1 counts in counter 1
	try := func(name string, f []byte, want bool) {
		t.Helper()
		r.rd(0x1470)
		r.Arrive(f)
		check.Equal(t, r.rd(0x1470) == 1, want, name+": to queue 1: %v")
	}
	hit, miss := build(t, false, udp(), []byte("x")), build(t, false, &layers.UDP{SrcPort: 1001, DstPort: 7},
		[]byte("x"))
	reg32 := func(b []byte) uint32 { return binary.LittleEndian.Uint32(b) } // as in the packet
	r.wr(0xe000, reg32(hit[26:]))
	r.wr(0xe200, reg32(hit[30:]))
	r.wr(0xe400, reg32(hit[34:]))
	r.wr(0xe800, 1<<21|1<<12|0x80000)
	r.wr(0xe600, 1|1<<2|1<<30) // UDP, priority 1, all pools
	try("not enabled", hit, false)
	r.wr(0xe600, 1|1<<2|1<<30|1<<31)
	try("all five", hit, true)
	try("another port", miss, false)
	try("TCP", build(t, false, tcp(), []byte("x")), false)
	try("IPv6", build(t, true, udp(), []byte("x")), false)
	r.wr(0xe600, 1|1<<2|1<<30|1<<31|1<<27) // any source port
	try("any source port", miss, true)
	fragment := append([]byte(nil), hit...)
	fragment[20] |= 0x20
	try("a fragment has no ports", fragment, false)
	r.wr(0xe600, 1<<2|1<<30|1<<31|0x1c<<25) // addresses alone
	try("a fragment has addresses", fragment, true)
	// A second filter that leads to queue 0 wins by its priority.
	r.wr(0xe804, 0x80000)
	r.wr(0xe604, 2<<2|1<<30|1<<31|0x1f<<25)
	try("a higher priority", hit, false)
}

func TestProfiles(t *testing.T) {
	for _, o := range []Options{{}, {Port: 1, Dual: true}, {SharedLOM: true}, {BAR0: 128 << 10},
		{BAR0: 4 << 20, Pref: true}} {
		r := openRig(t, o)
		want := uint32(0x80000196)
		if !o.SharedLOM {
			want |= 1 << 18 << o.Port
		}
		check.Equal(t, r.rd(0x10110), want, "EEMNGCTL %08x")
		check.Equal(t, r.rd(0x8)>>2&3, uint32(o.Port), "LAN ID %d")
		check.Equal(t, r.rd(0x42a0), 0xc09c6084, "AUTOC %08x")
		check.Equal(t, r.rd(0x42a8), 0x000a0000, "AUTOC2 %08x")
		var b [64]byte
		for i := range b {
			must.OK(t, r.Fn.ReadConfig(i, b[i:i+1]))
		}
		if (b[0x0e] == 0x80) != o.Dual || b[0x3d] != byte(1+o.Port) || b[0x10]&8 != 0 != o.Pref {
			t.Errorf("%+v: configuration space %x", o, b)
		}
		if size := r.w.Size(); size != max(o.BAR0, 128<<10) && (o.BAR0 != 0 || size != 512<<10) {
			t.Errorf("%+v: BAR 0 has %#x bytes", o, size)
		}
		r.Clean()
	}
}
