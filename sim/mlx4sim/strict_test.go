package mlx4sim

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func with(b []byte, w ...uint32) []byte {
	b = append([]byte(nil), b...)
	for i := 0; i < len(w); i += 2 {
		binary.BigEndian.PutUint32(b[w[i]:], w[i+1])
	}
	return b
}

func TestCommandRegister(t *testing.T) {
	x := newRig(t, Options{})
	if v := x.rd(0x80698); v>>23&1 != 0 || v>>21&1 != 0 {
		t.Errorf("after reset the status is %08x", v)
	}
	x.fails(2, 0x999, 0, 0, nil, false, "no such command")
	x.fails(4, 0x003, 0, 0, nil, true, "it has to be running its firmware")
	x.fails(3, 0x004, 0, 1, nil, true, "in_modifier is 0x1")
	x.fails(3, 0x004, 5, 0, nil, true, "op_modifier is 5")
	for out, text := range map[uint64]string{x.out.IOVA + 64: "aligned to 256", 0x1000: "cannot be written"} {
		s, _ := x.raw(0x004, 0, 0, 0, out)
		check.Equal(t, s, 3, "a mailbox that cannot be used: status %xh")
		x.ExpectError(text)
	}

	x.toggle ^= 1
	x.do(0x004, 0, 0, nil, true)
	x.ExpectWarning("toggle bit is")
	x.wr(0x80698, 4)
	x.ExpectError("go bit clear")
	x.issue(0x031, 0, 0, 0, 0)
	x.wr(0x80680, 1)
	x.ExpectError("the go bit is set")
	x.Port.Settle(10)
	var b [8]byte
	x.Must(x.Port.ReadBAR(0, 0x80680, b[:]))
	x.ExpectError("registers have 4")
	x.rd(0x1000)
	x.ExpectError("no such register")
	x.toggle ^= 1
	x.wr(0x80698, 1<<22|1<<23|x.toggle<<21|0x031)
	x.Port.Settle(10)
	x.ExpectError("no EQ is mapped to command events")
	x.raw(0x004, 0, 0, 0x1000, x.out.IOVA)
	x.ExpectWarning("the command has no input")
}

func TestOwnershipAndReset(t *testing.T) {
	x := newRig(t, Options{BootReads: 3})
	for _, at := range []uint64{0x8069c, 0xf03fc} {
		if a, b := x.rd(at), x.rd(at); a != 0 || b == 0 {
			t.Errorf("%x reads %x, then %x", at, a, b)
		}
	}
	x.firmware()
	x.wr(0xf0010, 0)
	x.ExpectError("bit 0, which resets")
	x.wr(0xf0010, 0x01000001)
	x.toggle = 0
	x.rd(0x80698)
	x.ExpectError("memory space is disabled")
	x.restore()
	for range 3 {
		check.Equal(t, x.rd(0x80698), 0xffffffff, "while booting the status reads %08x")
	}
	check.Equal(t, x.rd(0xf03fc), 0, "after a reset the semaphore reads %x")
	if x.rd(0x8069c) == 0 {
		t.Error("a reset took the device from its owner")
	}
	x.wr(0x8069c, 0)
	check.Equal(t, x.rd(0x8069c), 0, "the device was given back: ownership reads %x")
	x.open()
	x.down()
	y := newRig(t, Options{Owned: true, SemaphoreHeld: true})
	if y.rd(0x8069c) == 0 || y.rd(0xf03fc) == 0 {
		t.Error("somebody else holds the semaphores, and they were taken")
	}
}

func TestBringUp(t *testing.T) {
	x := newRig(t, Options{})
	x.fails(4, 0xff6, 0, 0, nil, false, "QUERY_FW asked for")
	b := x.Alloc(64 << 10)
	x.fails(3, 0xfff, 0, 0, mappings(0, b, 1), false, "0 mappings")
	x.fails(3, 0xfff, 0, 1, dwords(16, 8, uint32(b.IOVA>>32), 12, uint32(b.IOVA)|5), false,
		"is not aligned to its 32 pages")
	x.fails(8, 0xfff, 0, 1, dwords(16, 8, 0, 12, 1<<21|9), false, "QUERY_FW asked for")
	x.fails(4, 0xffe, 0, 0, nil, false, "nothing is mapped")
	x.firmware()
	x.fails(4, 0xff6, 0, 0, nil, false, "runs already")
	x.fails(4, 0xfff, 0, 1, mappings(0, b, 1), false, "the firmware runs")
	x.fails(8, 0xffd, 0, 0, uint64(1<<50), false, "max_icm_size")
	x.fails(4, 0xffc, 0, 1, mappings(0, b, 1), false, "SET_ICM_SIZE comes first")
	x.fails(4, 0xffa, 0, 1, mappings(0, b, 1), false, "MAP_ICM_AUX comes first")
	x.fails(4, 0x007, 0, 0, x.initHCA(), false, "MAP_ICM_AUX comes first")
	x.context()
	x.fails(9, 0xffa, 0, 1, mappings(qpcAt, b, 1), false, "is mapped already")
	x.fails(3, 0xffa, 0, 1, mappings(icmSize+1<<20, b, 1), false, "SET_ICM_SIZE said")
	x.fails(3, 0xffa, 0, 1, dwords(16, 4, qpcAt+0xf000, 8, uint32(b.IOVA>>32), 12, uint32(b.IOVA)|1), false,
		"is not aligned to its 2 pages")
	x.fails(4, 0xffd, 0, 0, uint64(icmSize), false, "mapped already")
	for _, c := range []struct {
		status uint32
		in     []uint32
		text   string
	}{
		{3, []uint32{0, 3 << 24}, "version is 3"},
		{3, []uint32{0x14, 1 << 1}, "little endian"},
		{3, []uint32{0x14, 1 << 4}, "not offered"},
		{3, []uint32{0x58, 3}, "only 64 bytes"},
		{3, []uint32{0x88, 9}, "num_sys_eqs"},
		{3, []uint32{0x128, 11 << 8}, "log_max_uars"},
		{3, []uint32{0x128, 10<<8 | 1}, "uar_page_sz"},
		{8, []uint32{0x34, qpcAt | 20}, "the capability is 2^19"},
		{3, []uint32{0x34, qpcAt | 5}, "the firmware reserves 2^6"},
		{3, []uint32{0x34, 0x1000 | 9}, "aligned to its size"},
		{3, []uint32{0x54, 0, 0x50, 1 << 20}, "SET_ICM_SIZE said"},
		{12, []uint32{0x54, 0x3000000 | 9}, "ICM is not mapped"},
		{12, []uint32{0x104, 0x3000000}, "ICM is not mapped"},
	} {
		x.fails(c.status, 0x007, 0, 0, with(x.initHCA(), c.in...), false, c.text)
	}
	x.do(0x007, 0, 0, x.initHCA(), false)
	x.fails(4, 0x007, 0, 0, x.initHCA(), false, "initialized already")
	x.fails(4, 0xffe, 0, 0, nil, false, "CLOSE_HCA comes first")
	x.fails(4, 0xffb, 0, 0, nil, false, "CLOSE_HCA comes first")
	x.do(0x008, 0, 0, nil, false)
	x.do(0xffe, 0, 0, nil, false)
	x.ExpectWarning("are still mapped")

	none := newRig(t, Options{NoICM: true})
	none.do(0x004, 0, 0, nil, true)
	s, _ := none.exec(0xfff, 0, 1, mappings(0, b, 1), false)
	check.Equal(t, s, 12, "a firmware that takes no memory: status %xh")
	a0 := newRig(t, Options{Steering: MACTable})
	a0.firmware()
	a0.context()
	a0.flags = hcaDeviceManaged
	a0.fails(3, 0x007, 0, 0, a0.initHCA(), false, "device-managed steering is not offered")
}

func TestObjectRefusals(t *testing.T) {
	x := newRig(t, Options{})
	x.boot()
	type refusal struct {
		status uint32
		mod    uint32
		in     []uint32
		text   string
	}
	each := func(op uint32, base []byte, list []refusal) {
		t.Helper()
		for _, c := range list {
			x.fails(c.status, op, 0, c.mod, with(base, c.in...), false, c.text)
		}
	}
	each(0x00d, x.mptContext(), []refusal{
		{10, 5, nil, "are the firmware's"}, {10, 1 << 12, nil, "has 2^10"}, {3, testMPT + 1, nil, "mem_key is"},
		{3, testMPT, []uint32{0, 3 << 10}, "windows"}, {3, testMPT, []uint32{0, 3<<28 | 1<<8 | 1<<10}, "status is 3h"},
		{3, testMPT, []uint32{0, 1<<8 | 1<<10, 0x38, 5}, "entity_size 5"}, {3, testMPT, []uint32{0x28, 1 << 21}, "block_mode"},
		{12, testMPT, []uint32{0, 1<<8 | 1<<10, 0x28, 0, 0x1c, 4096, 0x30, 0x80000, 0x38, 12}, "ICM is not mapped"}, {12, 600, []uint32{8, 600}, "ICM is not mapped"},
	})
	x.do(0x00d, 0, testMPT, x.mptContext(), false)
	each(0x00d, x.mptContext(), []refusal{{9, testMPT, nil, "already"}})
	x.fails(10, 0x00f, 0, testMPT+1, nil, true, "is not the device's")

	each(0x013, x.eqContext(), []refusal{
		{10, 3, nil, "are the firmware's"}, {10, 31, nil, "are the firmware's"}, {10, 64, nil, "has 2^6"}, {3, testEQ, []uint32{0, 0}, "st is 0h"},
		{3, testEQ, []uint32{0x14, 128}, "there are 128 vectors"}, {3, testEQ, []uint32{0x28, 1}, "counters"}, {8, testEQ, []uint32{0xc, 23 << 24}, "log_eq_size"},
		{34, testEQ, []uint32{0x1c, 0x300}, "not present"}, {12, testEQ, []uint32{0x1c, 0x80000}, "ICM is not mapped"},
	})
	x.do(0x013, 0, testEQ, x.eqContext(), false)
	each(0x013, x.eqContext(), []refusal{{9, testEQ, nil, "already"}})
	x.fails(10, 0x012, 0, 33, uint64(1), false, "is not the device's")

	each(0x016, x.cqContext(), []refusal{
		{10, 5, nil, "are the firmware's"}, {5, testCQ, []uint32{0x14, 33}, "c_eqn"}, {8, testCQ, []uint32{0xc, 23<<24 | testUAR}, "log_cq_size"},
		{10, testCQ, []uint32{0xc, 5<<24 | 3}, "usr_page"}, {3, testCQ, []uint32{0x3c, 4}, "aligned to 8"}, {12, 400, nil, "ICM is not mapped"},
	})
	x.do(0x016, 0, testCQ, x.cqContext(), false)
	x.fails(6, 0x014, 0, testEQ, nil, true, "CQs report to it")

	each(0x019, x.qpContext(), []refusal{
		{10, 5, nil, "are the firmware's"}, {3, testQP, []uint32{8, 2<<16 | 3<<11}, "st is 2"}, {3, testQP, []uint32{8, 3<<16 | 1<<11}, "pm_state is 1"},
		{5, testQP, []uint32{8 + 0x9c, 200}, "cqn_rcv"}, {5, testQP, []uint32{8 + 0x7c, 200}, "cqn_snd"}, {10, testQP, []uint32{0x14, 2}, "usr_page"},
		{3, testQP, []uint32{8 + 0xa4, 2}, "aligned to 4"}, {3, testQP, []uint32{0x10, testLogSQ<<11 | 1<<8}, "at least 64 bytes"},
		{8, testQP, []uint32{0x10, 15<<11 | 2<<8}, "the capability is 14"}, {12, 400, nil, "ICM is not mapped"}, {3, testQP, []uint32{8 + 0xac, 1 << 24}, "SRQs"},
	})
	x.fails(16, 0x01a, 0, testQP, x.qpContext(), false, "is in RST")
	x.do(0x019, 0, testQP, x.qpContext(), false)
	x.fails(16, 0x019, 0, testQP, x.qpContext(), false, "it has to be in RST")
	x.fails(16, 0x01b, 0, testQP, x.qpContext(), false, "it has to be in RTR")
	x.fails(3, 0x01a, 0, testQP, with(x.qpContext(), 8+0x38, 0xc3<<24), false, "port 2")
	x.do(0x01a, 0, testQP, with(x.qpContext(), 0x10, 4<<29), false)
	x.ExpectWarning("on an Ethernet port 7 and 31")
	x.fails(6, 0x017, 0, testCQ, nil, true, "work queues complete to it")
	x.fails(10, 0x021, 3, testQP|1<<12, nil, false, "the entry is QP")

	x.fails(10, 0x009, 0, 2, nil, false, "the device has port 1")
	x.fails(0x40, 0x00c, 0, 1, dwords(64), false, "for an InfiniBand port")
	x.fails(3, 0x00c, 1, 1, dwords(64, 0, 1, 4, 20000), false, "mtu is 20000")
	x.fails(3, 0x00c, 1, 9<<8|1, dwords(64), false, "sub-command 9")
	x.fails(5, 0x00c, 1, 1<<8|1, dwords(64, 0, 99), false, "base_qpn")
	x.fails(4, 0x065, 0, 4, dwords(64), false, "did not choose flow rules")
	s, _ := x.exec(0x024, 3, 1, make([]byte, 256), true)
	check.Equal(t, s, 0x30, "MAD_IFC on an Ethernet port: status %xh")
	x.Clean()
	x.do(0x008, 0, 0, nil, false)
	x.ExpectWarning("still exists")
}

// Writes by the driver to the device's contexts are detected, and so is unmapping the memory of an object in use.
func TestContextMemory(t *testing.T) {
	x := openRig(t, Options{})
	x.icm.Bytes[qpcPage<<12+4] ^= 1
	x.do(0x021, 3, testQP, nil, false)
	x.ExpectError("was overwritten")
	x.mtt(72, x.eq, 1)
	x.do(0x017, 0, testCQ, nil, true)
	x.ExpectWarning("was changed")
	x.do(0xff9, 0, 1, uint64(eqcAt), false)
	x.ExpectWarning("holds the context of EQ")
}

func TestSendErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		synd byte
		wqe  func(x *rig)
		text string
	}{
		{"no data", 2, func(x *rig) { x.wqe(opSend, sendFlags) }, "no room for data"},
		{"opcode", 2, func(x *rig) { x.wqe(8, sendFlags, x.data(0, toPeer(64))) }, "opcode is 08h"},
		{"short", 1, func(x *rig) { x.wqe(opSend, sendFlags, inline(16, toPeer(16))) }, "17 are the least"},
		{"long", 1, func(x *rig) { x.wqe(opSend, sendFlags, x.data(0, toPeer(1519))) }, "the port's MTU allows"},
		{"zero", 1, func(x *rig) { x.wqe(opSend, sendFlags, dwords(16, 4, testKey)) }, "0 stands for 2^31"},
		{"key", 4, func(x *rig) { x.wqe(opSend, sendFlags, with(x.data(0, toPeer(64)), 4, 0x1234500)) }, "is not the device's"},
		{"address", 4, func(x *rig) { x.wqe(opSend, sendFlags, with(x.data(0, toPeer(64)), 8, 0)) }, "cannot be read"},
		{"line", 2, func(x *rig) { x.wqe(opSend, sendFlags, with(make([]byte, 80), 0, 1<<31|64)) }, "crosses a line"},
		{"both tags", 2, func(x *rig) {
			x.wqe(opSend, sendFlags, x.data(0, toPeer(64)))
			x.sq.Bytes[6] = 0xc0
		}, "both a C-VLAN and an S-VLAN"},
		{"size", 2, func(x *rig) { x.wqe(opSend, sendFlags, x.data(0, toPeer(64))); x.sq.Bytes[7] = 0 }, "ds is 0"},
		{"LSO", 2, func(x *rig) { x.wqe(opLSO, sendFlags, dwords(48, 0, 100<<16|40), x.data(0, toPeer(64))) }, "it is for TCP"},
		{"tunnel", 2, func(x *rig) { x.wqe(opSend|1<<28, sendFlags, x.data(0, toPeer(64))) }, "tunnels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := openRig(t, Options{})
			c.wqe(x)
			x.sendFrame()
			x.ExpectError(c.text)
			x.failed(c.synd)
			x.failed(5)
			if f := x.Far.Recv(0); f != nil {
				t.Errorf("%x was sent", f)
			}
			x.do(0x022, 0, testQP, nil, true)
			check.Equal(t, w32(x.out.Bytes, 8)>>28, qpSQError, "the QP is in state %d")
		})
	}
}

// A completion queue that is not read overruns. An event reports it, and events report that its QPs fail.
func TestOverrun(t *testing.T) {
	x := openRig(t, Options{})
	x.do(0x012, 0, testEQ, uint64(1<<5), false)
	if e := x.eqe(); e == nil || e[1] != 9 || e[3] != 4 || w32(e, 12) != 1<<28 {
		t.Errorf("the first event is %x, expected that the port came up", e)
	}
	for range 1<<testLogCQ + 1 {
		x.sendFrame()
	}
	x.ExpectError("overrun")
	if e := x.eqe(); e == nil || e[1] != 4 || w32(e, 4) != testCQ || e[15] != 1 {
		t.Errorf("event %x, expected an overrun", e)
	}
	if e := x.eqe(); e == nil || e[1] != 5 || w32(e, 4) != testQP || x.m.findQP(testQP).state != qpError {
		t.Errorf("event %x, expected that the queue failed", e)
	}
	x.do(0x030, 2, 1, nil, true)
	check.Equal(t, be.Uint32(x.out.Bytes[0x1a0:]), 1, "num_cqovf is %d")
}

func TestReceiveErrors(t *testing.T) {
	for _, c := range []struct {
		synd byte
		b    []uint32
		text string
	}{{1, []uint32{0, 32}, "found no room"}, {4, []uint32{4, 0x9900}, "is not the device's"},
		{4, []uint32{8, 0}, "cannot be written"}} {
		x := openRig(t, Options{})
		x.post(0, 2)
		copy(x.sq.Bytes[rqAt:], with(x.sq.Bytes[rqAt:rqAt+16], c.b...))
		x.Arrive(frameOf(64))
		x.ExpectError(c.text)
		x.failed(c.synd)
		x.failed(5)
	}
	x := openRig(t, Options{})
	binary.BigEndian.PutUint32(x.rec.Bytes, 17)
	x.Arrive(frameOf(64))
	x.ExpectError("has 16 entries")
}

// The inside of an earlier WQE that was not stamped is executed, as on a card.
func TestStamping(t *testing.T) {
	for _, stamp := range []bool{true, false} {
		t.Run(fmt.Sprint(stamp), func(t *testing.T) {
			x := openRig(t, Options{})
			// two strides; the second begins with an inline segment, whose first bit is set: valid in every other lap
			f := toPeer(100)
			drain := func() (n int) {
				for ; x.Far.Recv(0) != nil; n++ {
				}
				for x.cqe() != nil {
				}
				return n
			}
			for range 1 << testLogSQ / 2 {
				x.send(opSend, sendFlags, inline(16, f))
				drain()
			}
			x.Clean()
			if stamp {
				for i := 0; i < 64<<testLogSQ; i += 64 {
					binary.BigEndian.PutUint32(x.sq.Bytes[i:], 0x7fffffff) // the second lap's WQEs have the bit set
				}
			}
			x.sendFrame()
			if stamp {
				check.Equal(t, drain(), 1, "%d frames were sent, one was posted")
			} else {
				x.ExpectError("have to be stamped")
			}
		})
	}
}

func TestSRQ(t *testing.T) {
	x := newRig(t, Options{})
	x.boot()
	c := dwords(64, 0, 4<<24|64, 4, 0, 0x14, x.mtt(64, x.eq, 1), 0x18, testPD)
	x.fails(10, 0x035, 0, 5, c, false, "are the firmware's")
	x.fails(10, 0x035, 0, 128, c, false, "has 2^7")
	x.fails(10, 0x036, 0, 64, nil, true, "is not the device's")
	x.fails(8, 0x035, 0, 64, with(c, 0, 15<<24|64), false, "the capability is 14")
	x.do(0x035, 0, 64, c, false)
	x.fails(9, 0x035, 0, 64, c, false, "already")
	x.do(0x036, 0, 64, nil, true)
}

// Objects released without an output mailbox cause no write, especially not to address 0: iPXE requests this by
// out_param alone, Linux by the op modifier.
func TestGivenBackQuietly(t *testing.T) {
	x := openRig(t, Options{})
	before := x.Port.Counts()
	x.do(0x021, 3, testQP, nil, false)
	x.do(0x017, 1, testCQ, nil, false)
	x.do(0x014, 1, testEQ, nil, false)
	x.Clean()
	x.do(0x00f, 0, testMPT, nil, false)
	x.ExpectWarning("op_modifier 1 leaves the output out")
	if d := x.Port.Counts().Since(before); d.DMAWrite != 0 {
		t.Errorf("%d DMA writes", d.DMAWrite)
	}
}

// Requests that the firmware refuses on an InfiniBand port, but accepts on an Ethernet port.
func TestInfiniBandPaths(t *testing.T) {
	x := openIB(t, 0)
	x.fails(3, 0x019, 0, testQP+1, with(x.udContext(), 8+0x20, 1<<24), false, "link type is 1")
	x.fails(3, 0x024, 4|3, 1, mad(classSMLID, 0, 0, 0x40), true, "my_qpn is 0x40")
	x.do(0x024, 4|3, 1, mad(classSMDirect, 1, 1, 0), true)
	x.ExpectWarning("hop pointer is 1 of 1")
	x.do(0x024, 4|3, 1, mad(classSMDirect, 2, 1, 0), true)
	x.do(0x024, 3, 1, mad(classSMDirect, 1, 1, 0x40), true) // as iPXE does: without a description of its source
}

func mad(class, hop, hops byte, qpn uint32) []byte {
	b := make([]byte, 0x200)
	b[0], b[1], b[2], b[3], b[6], b[7], b[17] = 1, class, 1, methodGet, hop, hops, attrNodeDesc
	be.PutUint32(b[madSize:], qpn)
	return b
}

// Flow rules that match ports need their bit of INIT_HCA, and bit 0 does not exist.
func TestSteeringBits(t *testing.T) {
	x := newRig(t, Options{})
	x.flags = hcaDeviceManaged
	x.firmware()
	x.do(0x003, 0, 0, nil, true)
	x.context()
	x.fails(3, 0x007, 0, 0, with(x.initHCA(), 0x1f0, 3<<16), false, "fs_eth_bits 0x3")
	y := newRig(t, Options{})
	y.flags = hcaDeviceManaged
	y.open()
	// Ethernet, UDP
	rule := dwords(16+48+24, 4, 1, 8, testQP, 16, 12<<24|0xe001, 16+48, 6<<24|0xe006, 16+48+8, 7, 16+48+12, 0xffff)
	y.fails(3, 0x065, 0, uint32(len(rule)/4), rule, false, "expected bit 0x2")
}
