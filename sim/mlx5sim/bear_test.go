package mlx5sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// rdma-core and other drivers sign neither the command's entry nor its mailboxes, which cmdif_checksum permits.
func TestUnsignedCommand(t *testing.T) {
	x := newRig(t, Options{})
	x.address()
	x.sums = false
	unsigned := func(in []byte, outLen int) ([]byte, uint8) {
		x.entry(in, outLen)[61] = 0
		return x.ring(in, outLen)
	}
	if out, d := unsigned(dwords(16, 0, 0x104<<16), 16); d != 0 || out[0] != 0 {
		t.Errorf("ENABLE_HCA without a signature: delivery status %xh, status %xh", d, out[0])
	}
	caps, d := unsigned(dwords(16, 0, 0x100<<16, 4, 1), 4112)
	if d != 0 || caps[0] != 0 {
		t.Fatalf("QUERY_HCA_CAP without signatures: delivery status %xh, status %xh", d, caps[0])
	}
	x.Clean()
	caps[16+0x42] |= 0xc0 // cmdif_checksum
	x.sums = true
	x.do(setCaps(caps[16:]), 16)
	if _, d := unsigned(dwords(16, 0, 0x80d<<16), 16); d != deliverySignature {
		t.Errorf("NOP without a signature, cmdif_checksum is set: delivery status %xh, expected %xh", d,
			deliverySignature)
	}
	x.ExpectViolation("signature is 00")
}

// The command queue keeps its address when a driver resets the function after setting the address.
func TestResetKeepsCommandQueue(t *testing.T) {
	for _, again := range []bool{false, true} {
		x := newRig(t, Options{})
		x.address()
		x.wr(0x14, 7<<8)
		if v := x.rd(0x14); v>>8&7 != 1 || v&^0xfff != uint32(x.cmd.IOVA) || x.rd(0x10) != uint32(x.cmd.IOVA>>32) {
			t.Errorf("after the reset, 10h and 14h read %08x and %08x", x.rd(0x10), v)
		}
		if again {
			x.wr(0x14, x.rd(0x14)&^0x700)
		}
		x.do(dwords(16, 0, 0x104<<16), 16)
		x.Clean()
	}
}

// Ringing the doorbell of the last WQE again sends nothing twice: cards tolerate it.
func TestLastDoorbellAgain(t *testing.T) {
	x := openRig(t, Options{})
	f := toPeer(34)
	w := x.wqe(0, f, 34)
	for range 2 {
		x.Must(x.Port.WriteBAR(0, uint64(x.uar)*4096+0x800, w[:8]))
		x.Port.Settle(1000)
	}
	if x.Far.Recv(0) == nil || x.Far.Recv(0) != nil {
		t.Error("one doorbell, rung twice, did not send one frame")
	}
	x.ExpectWarning("the doorbell for WQE 0x0 is rung again")
	x.Must(x.Port.WriteBAR(0, uint64(x.uar)*4096+0x800, x.wqe(1, f, 34)[:8]))
	x.Port.Settle(1000)
	if x.Far.Recv(0) == nil {
		t.Error("the next doorbell sent nothing")
	}
}

// Cards accept these, which is no reason to send them.
func TestAcceptedWithWarning(t *testing.T) {
	x := openRig(t, Options{})
	x.do(dwords(16, 0, 0x802<<16, 12, 1), 16)
	x.ExpectWarning("reserved bits 00000001 set in the dword at 0ch")

	sq := x.createSQ() // one page of 4096 bytes, aligned to 4096, although log_wq_pg_sz says 64 KiB
	binary.BigEndian.PutUint32(sq[0x70:], 6<<16|4<<8|testLogSQ)
	binary.BigEndian.PutUint32(sq[0x114:], uint32(x.fb.IOVA)&^0xffff|0x1000)
	x.do(sq, 16)
	x.ExpectWarning("is aligned to 4096 bytes and not to 65536")

	entry := dwords(0x344, 0, 0x936<<16, 0x14, x.table, 0x20, 1, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340, 2<<24|x.tirn)
	x.do(entry, 16)
	x.ExpectWarning("the last has one dword of its two")
	entry[0x23] = 2
	x.fails(entry[:0x340], 16, stInLen, "1 destinations in 0 bytes")

	w := x.wqe(0, toPeer(64), 64)
	w[9] = 1 // reserved
	copy(x.sq.Bytes, w)
	x.push(0, w)
	if e := x.cqe(); e == nil || e[63]>>4 != cqeRequest || x.Far.Recv(0) == nil {
		t.Errorf("completion %x", e)
	}
	x.ExpectWarning("reserved bits have to be zero")
}

func TestShortOutputs(t *testing.T) {
	x := openRig(t, Options{})
	caps := x.do(dwords(16, 0, 0x100<<16, 4, 1), 4112)
	for _, n := range []int{16, 32, 272, 8192} {
		want := append(append([]byte(nil), caps...), make([]byte, 4096)...)[:n]
		if got := x.do(dwords(16, 0, 0x100<<16, 4, 1), n); !bytes.Equal(got, want) {
			t.Errorf("QUERY_HCA_CAP, %d bytes: %x", n, got)
		}
	}
	x.do(dwords(32, 0, 0x0805_0000, 8, regPMTU, 16, 1<<16, 24, 9000<<16), 16)
	if out := x.do(dwords(32, 0, 0x805<<16, 4, 1, 8, regPMTU, 16, 1<<16), 28); w32(out, 24)>>16 != 9000 {
		t.Errorf("PMTU after a write with an output of 16 bytes: %x", out)
	}
}

// A send queue may be created with min_wqe_inline_mode 0; the device's mode determines what its WQEs must contain
// inline.
func TestInlineMode(t *testing.T) {
	tagged := append(append(append([]byte(nil), toPeer(12)...), 0x81, 0, 0, 5), toPeer(80)[12:]...)
	for _, c := range []struct {
		name    string
		profile Profile
		frame   []byte
		inl     int
		synd    uint8 // 0 if sent
		told    string
	}{
		{"none, needed", ConnectX4, toPeer(64), 0, syndLocalLength, "inline_hdr_sz is 0"},
		{"none, not needed", ConnectX5, toPeer(64), 0, 0, ""},
		{"Ethernet's header", ConnectX4, toPeer(64), 14, 0, ""},
		{"13 bytes", ConnectX4, toPeer(64), 13, syndLocalLength, "inline_hdr_sz is 13"},
		{"a tag and 16 bytes", ConnectX4, tagged, 16, 0, "warning: SQ"},
		{"a tag and 18 bytes", ConnectX4, tagged, 18, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := openRig(t, Options{Profile: c.profile})
			in := x.createSQ()
			binary.BigEndian.PutUint32(in[0x20:], 0)
			x.sqn = w32(x.do(in, 16), 8)
			x.do(dwords(0x110, 0, 0x905<<16, 8, x.sqn, 0x20, 1<<20), 16)
			x.push(0, x.wqe(0, c.frame, c.inl)[:8])
			if e := x.cqe(); c.synd != 0 {
				x.failed("no header", e, cqeRequestErr, c.synd)
			} else if got := x.Far.Recv(0); e == nil || e[63]>>4 != cqeRequest || !bytes.Equal(got, c.frame) {
				t.Errorf("completion %x, the wire has %x", e, got)
			}
			if c.told != "" {
				x.ExpectViolation(c.told)
			}
		})
	}
}

// The vport counts the frames that arrive at it, from the wire and by loopback, whether or not a queue receives them.
func TestVportCounters(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	counts := func(what string, rx, tx uint64) {
		t.Helper()
		out := x.do(dwords(32, 0, 0x770<<16), 528)
		check.Equal(t, binary.BigEndian.Uint64(out[0x90:]), rx, what+": %d unicast frames received")
		check.Equal(t, binary.BigEndian.Uint64(out[0xa0:]), tx, what+": %d unicast frames sent")
	}
	x.post(1)
	x.Arrive(frameOf(64), frameOf(64))
	counts("one received, one without a WQE", 2, 0)
	if k := x.m.Counters(); k.Taken != 1 || k.TakenBytes != 64 || k.OutOfBuffer != 1 {
		t.Errorf("a queue received %d of them (%d bytes), and %d found no WQE", k.Taken, k.TakenBytes, k.OutOfBuffer)
	}
	x.sendTo(0, testMAC) // loopback, blocked from its own transport domain
	counts("one looped back", 3, 1)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	x.Arrive(frameOf(64))
	counts("one without a flow table entry", 4, 1)
	check.Equal(t, x.m.count.missed, 1, "%d frames without an entry")
}

// page_offset is in 64ths of a page, whatever the page size.
func TestPageOffset(t *testing.T) {
	x := newRig(t, Options{})
	for _, logPage := range []int{0, 1, 9} {
		pas := dwords(16, 0, 1<<8, 4, 0)
		if b, r := x.m.newBuffer(pas, logPage, 3, 6, 2); r != nil || b.at(1) != 1<<40+3<<(12+logPage)/64+64 {
			t.Errorf("log_page_size %d: entry 1 is at %#x, %v", logPage, b.at(1), r)
		}
	}
}

// Flow control is kept and does nothing, which is a warning as soon as it is on.
func TestPauseHasNoEffect(t *testing.T) {
	x := openRig(t, Options{})
	pfcc := func(op, tx, rx uint32) []byte {
		return x.do(dwords(48, 0, 0x805<<16, 4, op, 8, regPFCC, 16, 1<<16, 24, tx, 28, rx), 48)
	}
	pfcc(0, 0, 0)
	pfcc(0, 1<<31, 1<<16)
	x.ExpectWarning("PFCC: accepted without effect: a card with pptx")
	if out := pfcc(1, 0, 0); w32(out, 24) != 1<<31 || w32(out, 28) != 1<<16 {
		t.Errorf("PFCC reads %x", out[16:])
	}
	x.do(dwords(32, 0, 0x805<<16, 8, regHostEndianness, 16, 0x80<<24), 32)
	x.ExpectWarning("HOST_ENDIANNESS: accepted without effect")
}
