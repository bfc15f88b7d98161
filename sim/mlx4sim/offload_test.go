package mlx4sim

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/parts"
)

// udp is a UDP datagram over IPv4 with valid checksums, from a source port.
func udp(from uint16, n int) []byte {
	f := make([]byte, 42+n)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0xee, 1, 8, 0, 0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1,
		10, 9, 0, 2})
	binary.BigEndian.PutUint16(f[16:], uint16(28+n))
	binary.BigEndian.PutUint16(f[34:], from)
	binary.BigEndian.PutUint16(f[36:], 7)
	binary.BigEndian.PutUint16(f[38:], uint16(8+n))
	for i := range n {
		f[42+i] = byte(i * 7)
	}
	p := parts.ParseFrame(f)
	checksum(&p, ctrlIPSum|ctrlL4Sum)
	return f
}

// tcp is a TCP segment over IPv4 with options, to the peer.
func tcp(n int) []byte {
	f := make([]byte, 66+n)
	copy(f, []byte{2, 0, 0, 0, 0xee, 1, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 0, 0, 7, 0x40, 0, 64, 6, 0, 0, 10, 9, 0, 2,
		10, 9, 0, 1})
	binary.BigEndian.PutUint16(f[16:], uint16(52+n))
	copy(f[34:], []byte{0x30, 0x39, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x19})
	for i := range n {
		f[66+i] = byte(i * 3)
	}
	return f
}

func (x *rig) received() []byte {
	x.Helper()
	e := x.cqe()
	if e == nil || e[31]&0x5f != 1 {
		x.Fatalf("completion %x, expected one of a frame", e)
	}
	return e
}

// tagged is a frame with a VLAN tag: priority 3, VLAN 42.
func tagged(f []byte) []byte { return slices.Insert(f, 12, 0x81, 0, 0x60, 0x2a) }

func TestChecksums(t *testing.T) {
	x := openRig(t, Options{})
	want := udp(1000, 50)
	f := bytes.Clone(want)
	copy(f[24:26], "xx")
	copy(f[40:42], "yy")
	x.send(opSend, sendFlags|ctrlIPSum|ctrlL4Sum, x.data(0, f))
	x.Sent(want, "a frame")
	x.cqe()
	x.post(0, 4)
	for i, c := range []struct {
		spoil  int
		status uint16
		ok     byte
		sum    uint16
	}{{0, statusIPv4 | statusUDP | statusIPOK, 4, 0xffff}, {24, statusIPv4 | statusUDP, 4, 0xffff},
		{45, statusIPv4 | statusUDP | statusIPOK, 0, 0}} {
		f := bytes.Clone(want)
		if c.spoil > 0 {
			f[c.spoil] ^= 1
		}
		x.Arrive(f)
		e := x.received()
		if binary.BigEndian.Uint16(e[16:]) != c.status || e[19] != c.ok || c.sum != 0 &&
			binary.BigEndian.Uint16(e[26:]) != c.sum ||
			c.sum == 0 && binary.BigEndian.Uint16(e[26:]) == 0xffff {
			t.Errorf("case %d: completion %x", i, e)
		}
	}
}

func TestLSO(t *testing.T) {
	x := openRig(t, Options{})
	whole := tcp(3000)
	lso := make([]byte, 80)
	binary.BigEndian.PutUint32(lso, 1000<<16|66)
	copy(lso[4:], whole[:66])
	x.send(opLSO, sendFlags, lso, x.data(0, whole[66:]))
	var payload []byte
	for i := range 3 {
		p := parts.ParseFrame(x.Far.Recv(0))
		if !p.L3OK || !p.L4OK || len(p.B) != 1066 {
			t.Fatalf("frame %d: %x", i, p.B)
		}
		if id, seq := be.Uint16(p.B[18:]), be.Uint32(p.B[38:]); id != uint16(7+i) || seq != 0x01020304+uint32(1000*i) {
			t.Errorf("frame %d has ID %d and sequence number %x", i, id, seq)
		}
		if fin := p.B[47]&9 != 0; fin != (i == 2) {
			t.Errorf("frame %d: flags %02x", i, p.B[47])
		}
		payload = append(payload, p.B[66:]...)
	}
	if !bytes.Equal(payload, whole[66:]) {
		t.Error("the payload is another")
	}
}

// Tags are inserted and stripped, and reported in the completion; the filter drops other tags.
func TestVLAN(t *testing.T) {
	x := openRig(t, Options{})
	x.wqe(opSend, sendFlags, x.data(0, toPeer(64)))
	copy(x.sq.Bytes[4:], []byte{0x60, 0x2a, insertCVLAN})
	x.ring()
	x.Sent(tagged(toPeer(64)), "a frame")
	x.cqe()
	x.post(0, 4)
	f := tagged(frameOf(64))
	x.Arrive(f)
	if e := x.received(); w32(e, 0)>>29 != 1 || be.Uint16(e[12:]) != 0x602a || w32(e, 20) != 64 ||
		!bytes.Equal(x.fb.Bytes[:64], frameOf(64)) {
		t.Errorf("completion %x, frame %x", e, x.fb.Bytes[:64])
	}
	filter := make([]byte, 512)
	x.do(0x047, 0, 1, filter, false)
	x.Arrive(f)
	if e := x.cqe(); e != nil || x.m.Counters().Filtered != 1 {
		t.Errorf("a VLAN that is filtered: %x", e)
	}
	binary.BigEndian.PutUint32(filter[4*(127-0x2a/32):], 1<<(0x2a%32))
	x.do(0x047, 0, 1, filter, false)
	x.Arrive(f)
	x.received()
	x.do(0x01c, 0, testQP, with(x.qpContext(), 0, optVLANStrip, 8+0xc0, 1<<30), false)
	x.Arrive(f)
	if e := x.received(); w32(e, 20) != 68 {
		t.Errorf("stripping is off: completion %x", e)
	}
}

// A WQE that is pushed whole, by trapped stores or by pointer, causes no DMA read before the frame is sent; a torn one
// is a doorbell.
func TestBlueFlame(t *testing.T) {
	for _, trapped := range []bool{true, false} {
		x := openRig(t, Options{})
		next := func() []byte { // what a driver pushes
			idx := x.head
			x.wqe(opSend, sendFlags, inline(16, toPeer(90)))
			b := x.sq.Bytes[64*idx:][:128]
			binary.BigEndian.PutUint32(b, binary.BigEndian.Uint32(b)|idx<<8)
			binary.BigEndian.PutUint32(b[4:], binary.BigEndian.Uint32(b[4:])|testQP<<8)
			return b
		}
		for half := range 2 {
			b, before := next(), x.Port.Counts()
			at := uint64(uars+testUAR)*4096 + uint64(256*half)
			for i := uint64(0); i < 128; i += 8 {
				if trapped {
					x.Must(x.Port.WriteBAR(2, at+i, b[i:i+8]))
				} else {
					copy(x.m.host.Shadow(2)[at+i:], b[i:i+8])
				}
			}
			x.Port.Settle(20)
			x.Sent(toPeer(90), "trapped %v", trapped)
			d := x.Port.Counts().Since(before)
			if d.DMARead > 1 { // prefetch of the following WQEs
				t.Errorf("trapped %v: %+v", trapped, d)
			}
			if !trapped && d.MMIOWrite != 2 {
				t.Errorf("%d stores were counted for 128 bytes, expected 2", d.MMIOWrite)
			}
			x.cqe()
		}
		check.Equal(t, x.m.Counters().Pushed, 2, "%d were pushed whole")
		x.Must(x.Port.WriteBAR(2, uint64(uars+testUAR)*4096, next()[:8]))
		x.Port.Settle(500)
		x.Sent(toPeer(90), "a torn push")
	}
}

// A QP that keeps the FCS receives it after the frame; Linux's mlx4_ib creates no work queues without the capability.
func TestFCS(t *testing.T) {
	x := openRig(t, Options{})
	o := as(make([]byte, mailboxSize), devCap)
	if x.m.fillDevCap(o); o.U("ext_flags")&(1<<(34-32)) == 0 {
		t.Error("QUERY_DEV_CAP does not announce FCS_KEEP")
	}
	x.m.findQP(testQP).ctx.Set("fcs_keep", 1)
	x.post(0, 2)
	f := udp(1000, 50)
	x.Arrive(f)
	n := binary.BigEndian.Uint32(x.received()[0x14:])
	if want := binary.LittleEndian.AppendUint32(bytes.Clone(f), crc32.ChecksumIEEE(f)); int(n) != len(want) ||
		!bytes.Contains(x.fb.Bytes, want) {
		t.Errorf("%d bytes arrived, expected %d that end with %x", n, len(want), want[len(f):])
	}
}
