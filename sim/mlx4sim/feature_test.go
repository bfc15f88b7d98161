package mlx4sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
)

func TestBusCost(t *testing.T) {
	x := openRig(t, Options{})
	before := x.Port.Counts()
	x.send(opSend, sendFlags, inline(16, toPeer(64)))
	d := x.Port.Counts().Since(before)
	check.Equal(t, d, (sim.Counts{MMIOWrite: 1, DMARead: 1, DMAWrite: 1}), "a frame inline by doorbell: %+v")
}

func TestStatistics(t *testing.T) {
	x := openRig(t, Options{})
	x.post(0, 2)
	x.Far.Send(0, frameOf(64))
	x.Arrive(tagged(frameOf(600)), frameOf(1600))
	x.sendFrame()
	x.do(0x049, 0, 1|1<<8, nil, true)
	for _, c := range []struct {
		at   int
		want uint64
		what string
	}{{8 * (1*9 + 8), 1, "R127 novlan"}, {8 * (4*9 + 3), 1, "R1023 prio 3"}, {8 * (12*9 + 8), 1, "unicast novlan"},
		{8 * (9*9 + 8), 1, "giant"},
		{8 * (13*9 + 3*8 + 2), 68, "octets novlan"}, {8 * (13*9 + 27 + 3*3 + 1), 1, "tagged prio 3"}, {8 * (179 + 1*10 + 8), 1, "T127 novlan"},
		{8*(179+13*10+30+30) + 4*6, 1<<32 | 2, "dropped for length"}} {
		if got := be.Uint64(x.out.Bytes[c.at:]); got != c.want {
			t.Errorf("%s (%xh) is %d, expected %d", c.what, c.at, got, c.want)
		}
	}
	x.do(0x049, 0, 1, nil, true)
	check.Equal(t, be.Uint64(x.out.Bytes[8*(9+8):]), 0, "after a read that clears: %d")
}

// A frame whose WQE contains an address of this port is looped back, and never sent to the wire.
func TestLoopback(t *testing.T) {
	x := openRig(t, Options{})
	x.post(0, 1)
	x.wqe(opSend, sendFlags|0x0200<<16, x.data(128<<10, frameOf(64)))
	binary.BigEndian.PutUint32(x.sq.Bytes[12:], 1)
	x.ring()
	if f := x.Far.Recv(0); f != nil {
		t.Errorf("%x was sent", f)
	}
	x.cqe()
	x.received()
	if k := x.m.Counters(); k.Looped != 1 || k.RxFrames != 0 {
		t.Errorf("%+v", k)
	}
}

// Faults that tests request: errors in completions, stuck and failing commands, a lost interrupt, a catastrophic error,
// a link that goes down.
func TestFaults(t *testing.T) {
	stuck, lost := false, false
	x := newRig(t, Options{Withhold: func(op uint16) bool { return stuck && op == 0x31 },
		Status:        func(op uint16) uint8 { return map[bool]uint8{true: 1}[op == 0x43] },
		LoseInterrupt: func(int) bool { return lost }})
	x.open()
	if s, _ := x.exec(0x043, 0, 1, nil, true); s != 1 {
		t.Errorf("a failing command: status %d", s)
	}
	x.eqe()
	x.Vectors = nil
	lost = true
	x.Far.SetUp(false)
	x.Port.Settle(5)
	if e := x.eqe(); e == nil || e[1] != 9 || e[3] != 1 || len(x.Vectors) > 0 {
		t.Errorf("event %x, interrupts %v", e, x.Vectors)
	}
	x.Far.SetUp(true)
	x.Port.Settle(5)
	x.eqe()
	x.m.FailNextSend(0x15)
	x.sendFrame()
	x.failed(0x15)
	x.post(0, 1)
	x.m.FailNextReceive(0x11)
	x.Arrive(frameOf(64))
	if e := x.cqe(); e == nil || e[0x1b] != 0x11 || e[31]&0x40 != 0 {
		t.Errorf("completion %x", e)
	}
	stuck = true
	x.issue(0x31, 0, 0, 0, 0)
	x.Port.Settle(5)
	if x.rd(0x80698)>>23&1 == 0 {
		t.Error("a stuck command is done")
	}
	x.Clean()
	x.m.Catastrophe(0xdead)
	x.Port.Settle(5)
	check.Equal(t, x.rd(regCatas), 0xdead, "the error buffer begins with %x")
	x.wr(regReset, 1)
	x.restore()
	stuck, x.toggle = false, 0
	check.Equal(t, x.rd(regCatas), 0, "after a reset the error buffer begins with %x")
	x.do(0x031, 0, 0, nil, false)
}

func TestWitnesses(t *testing.T) {
	for _, p := range []Profile{ConnectX3, ConnectX3Pro} {
		x := newRig(t, Options{Profile: p})
		if c := x.m.Config(); c.Device != p.Device() || c.MSIXTable != 0x7c000 || c.MSIXPBA != 0x7d000 ||
			c.MSIXVectors != 128 || c.BARs[0].Size != 1<<20 || c.BARs[2].Size != 8<<20 {
			t.Errorf("%+v", c)
		}
		x.firmware()
		x.do(0x003, 0, 0, nil, true)
		d := as(x.out.Bytes, devCap)
		for name, want := range map[string]uint64{"log_max_cq": 16, "log_max_cq_sz": 22, "log_max_qp_sz": 14,
			"log_max_d_mpts": 19, "log2_rsvd_mrws": 8, "max_sg_sq": 32,
			"log_pg_sz": 9, "num_rsvd_uars": 8, "uar_sz": 2, "log_max_gid": 7, "log_max_pkey": 7, "log2_rsvd_mtts": 6} {
			if d.U(name) != want {
				t.Errorf("%s is %d, real cards showed %d", name, d.U(name), want)
			}
		}
		x.do(0x006, 0, 0, nil, true)
		var board []byte
		for i := 0; i < 16; i += 4 {
			v := binary.LittleEndian.Uint32(x.out.Bytes[0x20+0xd0+i:])
			board = binary.BigEndian.AppendUint32(board, v)
		}
		check.Equal(t, string(bytes.TrimRight(board, "\x00")), profiles[p].board, "board %q")
		x.do(0x043, 0, 1, nil, true)
		if o := as(x.out.Bytes, portOut); o.U("eth_mtu") != 9600 || o.U("eth_link_speed") != 0xf ||
			o.U("log_max_mac") != 7 || !o.Is("eth") || o.Is("ib") {
			t.Errorf("port %x", x.out.Bytes[:0x20])
		}
	}
}
