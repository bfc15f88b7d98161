package mlx5sim

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// sendTo sends a frame to an address and returns whether it was sent on the wire and whether it was looped back.
func (x *rig) sendTo(idx uint32, to [6]byte) (out, round bool) {
	x.Helper()
	f := frameOf(64)
	copy(f, to[:])
	x.push(int(idx)&1, x.wqe(2*idx, f, 64))
	all := x.completions()
	if find(all, x.sqn, cqeRequest) == nil {
		x.Error("the send was not completed")
	}
	return x.Far.Recv(0) != nil, find(all, 0, cqeResponseSend) != nil
}

// Frames are looped back unless this is disabled in the vport, and reach a TIR of the sender's transport domain if it
// permits them.
func TestLoopback(t *testing.T) {
	group, stranger := [6]byte{0x33, 0x33, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 9}
	all := [6]byte{255, 255, 255, 255, 255, 255}
	for _, c := range []struct {
		name                 string
		o                    Options
		self                 uint32 // self_lb_en
		other                bool   // the TIR belongs to another transport domain
		uc, mc               bool   // frames that are looped back
		ucOnWire             bool
		ucBlocked, mcBlocked uint64
	}{
		{name: "as the firmware starts", o: Options{Profile: ConnectX5}, ucBlocked: 1, mcBlocked: 2},
		{name: "let in, unicast", o: Options{Profile: ConnectX5}, self: 1, uc: true, mcBlocked: 2},
		{name: "let in, multicast", o: Options{Profile: ConnectX5}, self: 2, mc: true, ucBlocked: 1},
		{name: "of another transport domain", o: Options{Profile: ConnectX5}, other: true, uc: true, mc: true},
		{name: "switched off", o: Options{Profile: ConnectX5, NoLoopback: true}, self: 3, ucOnWire: true},
		{name: "recorded card", self: 1, uc: true, mcBlocked: 2},
		{name: "virtual function", o: Options{Profile: ConnectX4VF}, self: 3, uc: true, mc: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newRig(t, c.o)
			x.self = c.self
			x.open()
			if c.other {
				td := w32(x.do(dwords(16, 0, 0x816<<16), 16), 8)
				x.m.obj.sqs.m[x.sqn].tis = w32(x.do(dwords(0xc0, 0, 0x912<<16, 0x44, td), 16), 8)
			}
			// subscribe to the group
			x.do(dwords(520, 0, 0x755<<16, 12, 1<<2, 0x1f0, 1<<24|1, 0x200, 0x3333, 0x204, 1), 16)
			x.post(16)
			if out, round := x.sendTo(0, stranger); !out || round {
				t.Error("a frame for another address has to reach the wire, and nobody else")
			}
			if out, round := x.sendTo(1, testMAC); out != c.ucOnWire || round != c.uc ||
				x.m.count.selfBlocked != c.ucBlocked {
				t.Errorf("to our own address: on the wire %v, came round %v, %d kept out", out, round,
					x.m.count.selfBlocked)
			}
			for i, to := range [][6]byte{group, all} {
				if out, round := x.sendTo(uint32(2+i), to); !out || round != c.mc {
					t.Errorf("to %x: on the wire %v, came round %v", to, out, round)
				}
			}
			if n := x.m.count.selfBlocked - c.ucBlocked; n != c.mcBlocked || x.m.count.missed != 0 {
				t.Errorf("%d copies for groups kept out, %d frames missed", n, x.m.count.missed)
			}
		})
	}
}

// A TIR drops only frames of queues that are older than its bits.
func TestLoopbackOfLaterQueues(t *testing.T) {
	for _, c := range []struct {
		o         Options
		refreshed bool
	}{{Options{}, false}, {Options{Profile: ConnectX5}, true}} {
		x := openRig(t, c.o)
		x.m.obj.sqs.m[x.sqn].made++ // as if it was created after the TIR
		x.m.sqsMade++
		x.post(16)
		if _, round := x.sendTo(0, testMAC); !round {
			t.Errorf("%v: a frame of a later queue was kept out", c.o.Profile)
		}
		x.do(dwords(0x110, 0, 0x901<<16, 8, x.tirn, 0x14, 0x10), 16)
		if _, round := x.sendTo(1, testMAC); round == c.refreshed {
			t.Errorf("%v: after MODIFY_TIR a frame came round: %v", c.o.Profile, round)
		}
	}
}

// Loopback is switched by MODIFY_NIC_VPORT_CONTEXT and MODIFY_TIR, if the capabilities permit it.
func TestLoopbackSwitch(t *testing.T) {
	vport := func(off uint32) []byte { return dwords(512, 0, 0x755<<16, 12, 3<<10, 0x100, off<<1) }
	x := openRig(t, Options{})
	x.fails(vport(3), 16, stBadParam, "cannot be switched")

	x = openRig(t, Options{Profile: ConnectX6Dx})
	tir := func(self uint32) {
		x.do(dwords(0x110, 0, 0x901<<16, 8, x.tirn, 0x14, 0x10, 0x44, self<<24), 16)
	}
	x.post(16)
	for i, c := range []struct {
		off, self  uint32
		out, round bool
	}{{3, 0, true, false}, {0, 0, false, false}, {0, 1, false, true}, {1, 1, true, false}, {2, 1, false, true},
		{2, 2, false, false}, {1, 2, true, false}} {
		x.do(vport(c.off), 16)
		tir(c.self)
		if got := w32(x.do(dwords(16, 0, 0x754<<16), 272), 16); got>>1&3 != c.off {
			t.Errorf("%+v: the vport says %08x", c, got)
		}
		if out, round := x.sendTo(uint32(2*i), testMAC); out != c.out || round != c.round {
			t.Errorf("%+v: on the wire %v, came round %v", c, out, round)
		}
		if out, round := x.sendTo(uint32(2*i+1), [6]byte{255, 255, 255, 255, 255, 255}); !out ||
			round != (c.off&2 == 0 && c.self&2 != 0) {
			t.Errorf("%+v: broadcast: on the wire %v, came round %v", c, out, round)
		}
	}
}

// Commands that a virtual function may not execute are rejected; it cannot change port settings that belong to its
// host.
func TestVirtualFunction(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectXVF})
	caps := x.caps(capGeneral)
	if v := w32(caps, 0x34); v>>30 != 0 || v>>24&1 != 0 || v>>25&1 != 1 {
		t.Errorf("vport_group_manager, vhca_group_manager, eswitch_manager or nic_flow_table: %08x", v)
	}
	if v := w32(caps, 0x48) >> 16 & 0x3f; x.m.Config().BARs[0].Size != 1<<20<<v {
		t.Errorf("uar_sz %d, BAR 0 of %d bytes", v, x.m.Config().BARs[0].Size)
	}
	for _, c := range []struct {
		in     []byte
		status uint8
		says   string
	}{
		{dwords(64, 0, 0x829<<16, 0x20, 0x200), stBadOp, "no L2 table"},
		{dwords(512, 0, 0x755<<16, 12, 1<<3), stBadParam, "the host's to set"},
		{dwords(32, 0, 0x805<<16, 8, 0x7004), stBadParam, "a virtual function has none"},
		{dwords(24, 0, 0x108<<16, 4, 1, 12, 1), stBadParam, "function_id is 0, the function is 3"},
	} {
		x.fails(c.in, 32, c.status, c.says)
	}
	x.do(dwords(32, 0, 0x805<<16, 8, 0x5003, 0x10, 1<<16, 0x18, 1522<<16), 32)
	out := x.do(dwords(32, 0, 0x805<<16, 4, 1, 8, 0x5003, 0x10, 1<<16), 32)
	if w32(out, 0x18)>>16 != maxMTU || x.m.Counters().PortWrites != 1 {
		t.Errorf("PMTU %08x, %d writes", w32(out, 0x18), x.m.Counters().PortWrites)
	}
	x.do(dwords(512, 0, 0x755<<16, 12, 1<<4, 0x1f0, 7<<29), 16) // promiscuous: accepted, but without effect
	x.post(1)
	f := frameOf(64)
	f[5] = 9
	x.Arrive(f)
	if x.cqe() != nil || x.m.count.filtered != 1 {
		t.Error("a virtual function got a frame for another address")
	}
}

// The timer in the initialization segment and completion timestamps use one clock, with the frequency that the
// capability reports.
func TestClock(t *testing.T) {
	for _, c := range []struct {
		p        Profile
		khz, mhz uint32
	}{{ConnectX4, 0, 275}, {ConnectX5, 156250, 156}, {ConnectX6Dx, 1000000, 1000}, {ConnectXVF, 1000000, 1000}} {
		x := newRig(t, Options{Profile: c.p})
		x.self = 1
		x.open()
		if caps := x.caps(capGeneral); w32(caps, 0x9c) != c.khz || w32(caps, 0x98) != c.mhz {
			t.Errorf("%04x: device_frequency_khz %d, _mhz %d", c.p.Device(), w32(caps, 0x9c), w32(caps, 0x98))
		}
		read := func() uint64 { return uint64(x.rd(0x1000))<<32 | uint64(x.rd(0x1004)) }
		cycles := func(ns uint64) uint64 { // since power-on
			if c.khz == 0 {
				return ns * uint64(c.mhz) / 1e3
			}
			return ns / 1e3 * uint64(c.khz) / 1e3
		}
		now := uint64(x.m.host.Now())
		if got := read(); got+2000 < cycles(now) || got > cycles(uint64(x.m.host.Now()))+2000 {
			t.Errorf("%04x: the timer reads %d at %d ns", c.p.Device(), got, now)
		}
		x.post(1)
		before := read()
		x.push(0, x.wqe(0, frameOf(64), 64))
		all, after := x.completions(), read()
		check.Equal(t, len(all), 2, "%d completions")
		for _, e := range all {
			if at := binary.BigEndian.Uint64(e[0x30:]); at < before || at > after {
				t.Errorf("%04x: a completion at %d, the timer went from %d to %d", c.p.Device(), at, before, after)
			}
		}
	}
}

// The gateway in configuration space works as Linux uses it: semaphore with a number from the counter, space, address.
// A virtual function has none.
func TestVendorSpecific(t *testing.T) {
	x := newRig(t, Options{Profile: ConnectX5})
	const at = 0xe8
	read := func(off int) uint32 {
		t.Helper()
		return must.Get(pci.Read32(x.Fn, at+off))(t)
	}
	write := func(off int, v uint32) {
		t.Helper()
		must.OK(t, x.Fn.WriteConfig(at+off, binary.LittleEndian.AppendUint32(nil, v)))
	}
	check.Equal(t, read(0), 0x0018_0009, "header %08x")
	id := read(8)
	if next := read(8); id == 0 || next == id {
		t.Errorf("counter %d, %d", id, next)
	}
	write(0xc, id)
	write(0xc, id+9)
	if v := read(0xc); v != id {
		t.Errorf("the semaphore is %d, %d took it first", v, id)
	}
	write(4, 7) // registers
	check.Equal(t, read(4), 7, "space 7: control %08x, which has to say that it is not there")
	write(0x10, 0)
	check.Equal(t, read(0x10), 3<<30, "read in a space that is not there: %08x")
	write(4, 0xa)
	check.Equal(t, read(4), 0x2000000a, "space ah: control %08x")
	for _, v := range []uint32{id, id + 1} { // the second one finds the semaphore taken
		write(0x14, v)
		write(0x10, 1<<31|0x20)
		check.Equal(t, read(0x10), 0x20, "after a write the address is %08x")
	}
	write(0x14, 0)
	write(0x10, 0x20)
	if a, v := read(0x10), read(0x14); a != 1<<31|0x20 || v != id {
		t.Errorf("semaphore 20h: address %08x, data %d, want %d", a, v, id)
	}
	write(0xc, 0)
	x.Clean()
	write(4, 0xa)
	x.ExpectWarning("without the semaphore")
	if c := New(Options{Profile: ConnectX5VF}).Config(); c.VendorSize != 0 || c.AER != 0 || c.VPD != nil || !c.ARI {
		t.Errorf("a virtual function: %+v", c)
	}
}

// Transport domain 0 is the card's own: a TIR is in it without ALLOC_TRANSPORT_DOMAIN, and receives frames from the
// wire and of queues in other domains. A domain that was not allocated is refused.
func TestOwnTransportDomain(t *testing.T) {
	tir := func(x *rig, td uint32) []byte { return dwords(0x110, 0, 0x900<<16, 0x3c, x.rqn, 0x44, td) }
	x := openRig(t, Options{Profile: ConnectX5})
	own := w32(x.do(tir(x, 0), 16), 8)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	x.do(dwords(0x348, 0, 0x936<<16, 0x14, x.table, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340, 2<<24|own), 16)
	x.post(16)
	x.Arrive(frameOf(64))
	if e := x.cqe(); e == nil || e[63]>>4 != cqeResponseSend {
		t.Error("a frame from the wire did not reach the TIR in domain 0")
	}
	if out, round := x.sendTo(0, testMAC); out || !round || x.m.count.selfBlocked != 0 {
		t.Errorf("a frame of a queue in another domain: on the wire %v, came round %v", out, round)
	}
	x.fails(dwords(16, 0, 0x817<<16), 16, stBadRes, "transport domain 0x0")
	x.fails(tir(x, 99), 16, stBadRes, "transport domain 0x63")
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	x.do(dwords(16, 0, 0x902<<16, 8, own), 16)
	check.Equal(t, x.m.obj.ownTD.held, 0, "%d TIRs are in domain 0 after the last was destroyed")
}
