package mlx5sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/must"
)

// Error completions have the same content as those of real cards: causes next to the syndrome, the opcode of the failed
// send before the queue's number, a signature, and more than the owner bit in the last byte.
func TestErrorCompletion(t *testing.T) {
	x := openRig(t, Options{})
	x.store(0, x.wqe(0, toPeer(64), 0)[:8]) // as on a ConnectX-4 Lx: inline_hdr_sz is 0
	x.Port.Settle(10)
	x.ExpectViolation("inline_hdr_sz is 0")
	e := x.cqe()
	want := dwords(0x3c, 0x34, 0x60106801, 0x38, 0x0a<<24|x.sqn)
	if e == nil || !bytes.Equal(e[:0x3c], want) || e[63] != 0xd2 || e[0x3e] == 0 {
		t.Errorf("send: %x, expected %x, d2 at the end, and a signature", e, want)
	}
	x.post(1)
	x.rq.Bytes[7]++ // lkey
	x.Arrive(frameOf(64))
	x.ExpectViolation("lkey")
	e = x.cqe()
	want = dwords(8, 0, 0xa9005604, 4, x.rqn)
	if e == nil || !bytes.Equal(e[0x34:0x3c], want) || e[63] != 0xe2 {
		t.Errorf("receive: %x, expected %x at 34h, and e2 at the end", e, want)
	}
}

func TestSeenOnCards(t *testing.T) {
	for _, c := range []struct {
		p             Profile
		hwID, version uint32
		kHz           uint32
	}{
		{ConnectX4, 0x209, 0xe00c04c4, 0},
		{ConnectX4Lx, 0x20b, 0xe02003f2, 156250},
		{ConnectX5, 0x20d, 0x102307d0, 156250},
		{ConnectX5Ex, 0x20d, 0x102307d0, 78125},
		{ConnectX6Dx, 0x212, 0x162403f2, 1000000},
	} {
		x := newRig(t, Options{Profile: c.p})
		x.boot()
		if id, v, kHz := x.rd(0x234), x.rd(0x230), w32(x.caps(capGeneral), 0x9c); id != c.hwID || v != c.version ||
			kHz != c.kHz {
			t.Errorf("%04x: hw_id %x, fw_ver %08x, device_frequency_khz %d, expected %+v", c.p.Device(), id, v, kHz, c)
		}
	}
}

// A virtual function has no power management, and no ConnectX has a serial number; one was observed with 12 vectors.
func TestConfigurationSpace(t *testing.T) {
	for _, c := range []struct {
		p       Profile
		vectors int
		pm      bool
	}{{ConnectX4, 64, true}, {ConnectX5VF, 64, false}, {ConnectXVF, 12, false}, {ConnectX7, 64, true}} {
		x := newRig(t, Options{Profile: c.p})
		at := func(id pci.CapID) int { return must.Get(pci.Capability(x.Fn, id))(t) }
		control := must.Get(pci.Read32(x.Fn, at(pci.CapMSIX)))(t) >> 16
		pm, express, serial := at(pci.CapPower), at(pci.CapExpress),
			must.Get(pci.ExtCapability(x.Fn, pci.ExtCapSerial))(t)
		if n := int(control&0x7ff) + 1; n != c.vectors || (pm != 0) != c.pm || express == 0 || serial != 0 {
			t.Errorf("%04x: %d vectors, power management at %x, PCI Express at %x, serial number at %x", c.p.Device(),
				n, pm, express, serial)
		}
		x.open()
		in := x.createEQ()
		binary.BigEndian.PutUint32(in[0x5c:], 0)
		binary.BigEndian.PutUint32(in[0x24:], uint32(c.vectors))
		x.fails(in, 16, stBadParam, "vectors")
	}
}

func TestRefusedRegister(t *testing.T) {
	x := openRig(t, Options{RefuseRegister: func(id uint32, write bool) bool { return id == regPPCNT && !write }})
	if out := x.exec(dwords(272, 0, 0x805<<16, 4, 1, 8, regPPCNT, 16, 1<<16), 272); out[0] != stBadRes ||
		w32(out, 4) != 0x305684 {
		t.Errorf("PPCNT: status %xh, syndrome %x", out[0], w32(out, 4))
	}
	x.do(dwords(32, 0, 0x805<<16, 4, 1, 8, regPMTU, 16, 1<<16), 32)
}

// An interrupt may be lost. Its event is written, and the next interrupt comes when the driver has read it and armed
// again.
func TestLostInterrupt(t *testing.T) {
	lose := 1
	x := openRig(t, Options{LoseInterrupt: func(int) bool { lose--; return lose >= 0 }})
	arm := func(ci uint32) { x.wr(uint64(x.uar)*4096+uarEQArm, x.eqn<<24|ci) }
	arm(0)
	for n := range uint64(2) {
		before := x.Port.Counts().Interrupts
		x.m.RequestPages(1)
		if x.eq.Bytes[64*n+63] != 0 {
			t.Fatalf("event %d was not written", n)
		}
		if got := x.Port.Counts().Interrupts - before; got != n {
			t.Errorf("event %d: %d interrupts", n, got)
		}
		arm(uint32(n) + 1)
	}
}
