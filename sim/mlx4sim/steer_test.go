package mlx4sim

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/parts"
)

// spreads creates a QP that spreads over two, the second of which shares the first one's rings.
func (x *rig) spreads(fields uint32, fn uint32) {
	x.Helper()
	second := with(x.qpContext(), 0x18, testQP+1)
	second = with(second, 8+0xcc, x.mtt(90, x.Alloc(8192), 2), 8+0xa4, uint32(x.rec.IOVA)+256)
	c := dwords(0x100, 8, 7<<16|1<<13|3<<11, 0xc, testPD, 0x10, 0xff<<24|2<<8, 0x14, testUAR, 0x18, testQP+2, 8+0x38,
		0x83<<24, 8+0x9c, testCQ, 8+0xcc, 8*90,
		8+rssAt, 1<<24|testQP, 8+rssAt+4, testQP, 8+rssAt+8, fn<<8|fields)
	copy(c[8+rssAt+12:], []byte{0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
		0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
		0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
		0x01, 0xfa})
	for _, op := range []uint32{0x19, 0x1a} {
		x.do(op, 0, testQP+1, second, false)
		x.do(op, 0, testQP+2, c, false)
	}
}

// frameTo is a frame of 64 bytes to an address.
func frameTo(mac ...byte) []byte { return append(mac, frameOf(64)[len(mac):]...) }

// steers fails the test unless the model delivers a frame to the QPs, in this order.
func (x *rig) steers(what string, f []byte, want ...uint32) {
	x.Helper()
	var ids []uint32
	for _, q := range x.m.steer(f) {
		ids = append(ids, q.id)
	}
	check.Same(x, ids, want, what+" goes to %x")
}

func TestRSS(t *testing.T) {
	x := openRig(t, Options{})
	x.spreads(rssIPv4|rssUDPv4, hashToeplitz)
	x.do(0x00c, 1, 1<<8|1, with(x.rqpCalc(), 0, testQP+2, 0x14, testQP+2), false)
	f := udp(2794, 20)
	copy(f[26:], []byte{66, 9, 149, 187, 161, 142, 100, 80})
	binary.BigEndian.PutUint16(f[36:], 1766)
	p := parts.ParseFrame(f)
	q := x.m.findQP(testQP + 2)
	if to, hash := x.m.spread(q, &p); hash != 0x51ccc178 || to.id != testQP {
		t.Errorf("hash %08x to %v, expected 51ccc178", hash, to)
	}
	x.post(0, 8)
	seen := map[uint32]int{}
	for i := range uint16(16) {
		f := parts.ParseFrame(udp(1000+i, 20))
		to, _ := x.m.spread(q, &f)
		seen[to.id]++
	}
	if seen[testQP] < 3 || seen[testQP+1] < 3 {
		t.Errorf("16 flows were spread as %v", seen)
	}
	x.Arrive(f)
	if e := x.received(); w32(e, 4) != 0x51ccc178 || w32(e, 0) != testQP {
		t.Errorf("completion %x", e)
	}
	x.Arrive(frameOf(64)) // no hash: the default queue
	if e := x.received(); w32(e, 4) != 0 {
		t.Errorf("completion %x", e)
	}
	x.fails(5, 0x019, 0, testQP+4, with(dwords(0x100, 8, 7<<16|1<<13|3<<11, 0xc, testPD, 0x14, testUAR, 8+0x9c, testCQ),
		8+rssAt, 1<<24|testQP+6), false, "is in RST")
}

func (x *rig) ruleFor(prio uint16, kind uint8, qpn uint32, mac []byte, more ...[]byte) uint64 {
	x.Helper()
	b := dwords(16, 0, uint32(prio)<<16|uint32(kind)<<8, 4, 1, 8, qpn)
	if mac != nil {
		e := make([]byte, 48)
		e[0], e[2], e[3] = 12, 0xe0, 0x01
		copy(e[10:], mac)
		copy(e[18:], []byte{255, 255, 255, 255, 255, 255})
		b = append(b, e...)
	}
	for _, m := range more {
		b = append(b, m...)
	}
	return x.do(0x065, 0, uint32(len(b)/4), b, false)
}

// Flow rules: priority, multicast to all, defaults for frames that no rule matches, ports and addresses.
func TestFlowRules(t *testing.T) {
	x := newRig(t, Options{})
	x.flags = hcaDeviceManaged
	x.open()
	x.m.hca.in[0x1f1] = fsUDP
	x.spreads(rssIPv4, hashToeplitz) // for a second QP
	x.steers("without a rule a frame", frameOf(64))
	x.ruleFor(0x5000, 0, testQP, testMAC[:])
	x.steers("a frame", frameOf(64), testQP)
	port := dwords(24, 0, 6<<24|0xe006, 8, 7, 12, 0xffff)
	ip := dwords(24, 0, 6<<24|0xe002, 8, 0x0a090002, 12, 0xffffffff)
	b := x.ruleFor(0x2000, 0, testQP+1, testMAC[:], ip, port)
	x.steers("a datagram to port 7", udp(1000, 20), testQP+1)
	x.steers("another frame", frameOf(64), testQP)
	other := udp(1000, 20)
	binary.BigEndian.PutUint16(other[36:], 8)
	x.steers("a datagram to port 8", other, testQP)
	bc := frameTo(255, 255, 255, 255, 255, 255)
	x.ruleFor(0x5000, 0, testQP, bc[:6])
	x.ruleFor(0x5000, 0, testQP+1, bc[:6])
	x.steers("broadcast", bc, testQP, testQP+1)
	unknown := frameTo(2, 0, 0, 0, 0, 9)
	x.steers("a frame to an unknown address", unknown)
	d := x.ruleFor(0, modeAllDefault, testQP, nil)
	x.steers("a frame to an unknown address by default", unknown, testQP)
	x.do(0x066, 0, 0, d, false)
	x.ruleFor(0, modeMulticastDefault, testQP+1, nil)
	x.steers("multicast by default", frameTo(1, 0, 0x5e, 0, 0, 1), testQP+1)
	x.steers("a frame to an unknown address", unknown)
	x.do(0x066, 0, 0, b, false)
	x.steers("a datagram to port 7", udp(1000, 20), testQP)
	x.Clean()
	x.fails(10, 0x066, 0, 0, b, false, "is not there")
	x.fails(5, 0x065, 0, 4, dwords(16, 4, 1, 8, 99), false, "is in RST")
	x.fails(3, 0x065, 0, 4, dwords(16, 4, 2, 8, testQP), false, "port 2")
	x.fails(3, 0x065, 0, 4, dwords(16, 0, 9<<8, 4, 1, 8, testQP), false, "type 9")
	x.fails(3, 0x065, 0, 4, dwords(16, 4, 1, 8, testQP), false, "begins with the header of layer 2")
	x.fails(3, 0x065, 0, 5, dwords(20, 4, 1, 8, testQP, 16, 1<<24|0xe009), false, "header e009h")
	x.fails(0x40, 0x065, 0, 5, dwords(20, 4, 1, 8, testQP, 16, 9<<24|0xe001), false, "it has 12")
	x.do(0x021, 3, testQP+2, nil, false)
	x.do(0x021, 3, testQP, nil, false)
	x.ExpectWarning("leads to it")
}

func TestMACTable(t *testing.T) {
	x := openRig(t, Options{})
	x.spreads(rssIPv4, hashToeplitz)
	table := dwords(1024, 0, 1<<31|0x0200, 4, 1, 8, 1<<31|0x0200, 12, 2)
	x.do(0x00c, 1, 2<<8|1, table, false)
	unknown := frameTo(2, 0, 0, 0, 0, 3)
	x.steers("a frame to the second address", frameTo(2, 0, 0, 0, 0, 2), testQP+1)
	x.steers("a frame to an unknown address", unknown)
	x.do(0x00c, 1, 1<<8|1, with(x.rqpCalc(), 0x14, 1<<31|testQP+1), false)
	x.steers("a frame to an unknown address, where the port is promiscuous,", unknown, testQP+1)
	x.post(0, 4)
	for i, c := range []struct {
		opMod uint32
		in    uint64
		takes bool
	}{{2, 0, false}, {0, 1<<63 | 0x01005e000001, true}, {0, 1<<63 | 0xffffffffffff, false}, {1, 0, true}} {
		x.do(0x048, c.opMod, 1, c.in, false)
		x.Arrive(frameTo(1, 0, 0x5e, 0, 0, 1))
		if e := x.cqe(); (e != nil) != c.takes {
			t.Errorf("step %d of the multicast filter: completion %x", i, e)
		}
	}
}

// Mirrors copy traffic on the wire, whether a rule matches it or not (ibv_create_flow with a sniffer's attributes).
func TestMirrors(t *testing.T) {
	x := newRig(t, Options{})
	x.flags = hcaDeviceManaged
	x.open()
	x.post(0, 4)
	other := frameTo(2, 9, 9, 9, 9, 9)
	received := x.ruleFor(0, 4, testQP, nil)
	x.Arrive(other)
	x.received()
	x.do(0x066, 0, 0, received, false)
	sent := x.ruleFor(0, 5, testQP, nil)
	x.Arrive(other)
	if e := x.cqe(); e != nil {
		t.Errorf("a mirror of what is sent has a received frame: %x", e)
	}
	x.send(opSend, sendFlags, x.data(0, other))
	x.received()
	x.do(0x066, 0, 0, sent, false)
}
