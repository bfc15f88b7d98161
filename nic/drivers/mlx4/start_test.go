package mlx4

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// The start is Linux's, command by command, and Close undoes all of it in reverse order.
func TestStartAndClose(t *testing.T) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{}))(t)
	want := []opcode{opQueryFW, opMapFA, opRunFW, opQueryDevCap, opQueryPort, opSetICMSize, opMapICMAux, opMapICM,
		opInitHCA,
		opQueryAdapter, opSpecialQP, opSW2HWMPT, opSW2HWEQ, opMapEQ, opSW2HWCQ, opRST2INIT, opINIT2RTR, opRTR2RTS,
		opRST2INIT, opINIT2RTR, opRTR2RTS,
		opSetPort, opSetVLANFltr, opSetMCastFltr, opInitPort, opFlowAttach, opDumpEthStats}
	check.Same(t, s.ops(), want, "sent\n%v")
	check.Equal(t, s.functionResets, 0, "%d function-level resets: each costs a second, and the card's own follows")
	if s.resets != 1 || binary.LittleEndian.Uint32(s.config[0x10:]) != 0xC8800004 {
		t.Errorf("%d resets by the register, BAR 0 is %#x after it", s.resets,
			binary.LittleEndian.Uint32(s.config[0x10:]))
	}
	i := d.Info()
	check.Contains(t, i.Model, "firmware 2.42.5100")
	if i.MAC != "00:02:c9:12:34:56" || i.Push != "blueflame full" {
		t.Errorf("%+v", i)
	}
	s.sent = nil
	must.OK(t, d.Close())
	want = []opcode{opFlowDetach, opClosePort, op2RST, opHW2SWCQ, opMapEQ, opHW2SWEQ, opHW2SWMPT, opSpecialQP,
		opCloseHCA, opUnmapICM, opUnmapICMAux, opUnmapFA}
	check.Same(t, s.ops(), want, "Close sent\n%v")
	if len(s.Maps) != 0 || s.given != 1 || s.config[4]&4 != 0 {
		t.Errorf("%d mappings are left, ownership was given back %d times, command register %#x", len(s.Maps), s.given,
			s.config[4])
	}
}

// If Device Control cannot be restored after the card's reset, a card below a port with larger payloads is not started.
// Without that only the size of read requests is lost.
func TestDeviceControl(t *testing.T) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{}))(t)
	check.Equal(t, s.control, 0x2830, "Device Control %#x")
	must.OK(t, d.Close())

	s = newScript(t)
	s.denied = nic.ErrRights
	check.Fails(t, "payload of 256 bytes", check.Err(s.open(nic.Options{}, Options{})), nic.ErrRights, "payload", "256",
		"bind -group")
	check.Equal(t, len(s.sent), 0, "%d commands were sent")

	s = newScript(t)
	s.denied = nic.ErrRights
	s.setControl(0x5810)
	d = must.Get(s.open(nic.Options{}, Options{}))(t)
	must.OK(t, d.Close())
}

// The mapped part of context memory contains every object, is aligned as the device needs it, and is where INIT_HCA
// says.
func TestContextMemory(t *testing.T) {
	for _, own := range []Options{{}, {Steering: steeringA0}} {
		s := newScript(t)
		d := must.Get(s.open(nic.Options{Queues: 4, RingSize: 4096}, own))(t)
		type span struct{ lo, hi uint64 }
		var mapped []span
		var hca, raw mailbox
		for _, c := range s.sent {
			switch c.op {
			case opMapICM:
				for i := range int(c.modifier) {
					v, p := c.in.u64(16*i), c.in.u64(16*i+8)
					size := uint64(4096) << (p & 0xFFF)
					if v%size != 0 || p&^0xFFF%size != 0 {
						t.Errorf("%#x bytes at %#x, in memory at %#x: not aligned to their size", size, v, p&^0xFFF)
					}
					s.Memory(p&^0xFFF, int(size))
					for _, m := range mapped {
						if v < m.hi && m.lo < v+size {
							t.Errorf("%#x to %#x is mapped twice", v, v+size)
						}
					}
					mapped = append(mapped, span{v, v + size})
				}
			case opInitHCA:
				hca, raw = slices.Clone(c.in), c.in
			}
		}
		holds := func(what string, at, n uint64) {
			for end := at + n; at < end; {
				i := slices.IndexFunc(mapped, func(m span) bool { return m.lo <= at && at < m.hi })
				if i < 0 {
					t.Fatalf("%s: context memory at %#x is not mapped", what, at)
				}
				at = mapped[i].hi
			}
		}
		for _, off := range []int{0x30, 0x48, 0x50, 0x80, 0x90} {
			hca[off+7] &^= 0x1F // the log of the table's size is in there
		}
		logQPs, logRDMARC := raw.u8(0x37), raw.u8(0x97)
		cmpt := hca.u64(0x108)
		var mtts []byte
		for _, b := range d.icm.mtts {
			mtts = append(mtts, b.Bytes...)
		}
		for _, c := range s.sent {
			n := uint64(c.modifier)
			switch c.op {
			case opRST2INIT:
				holds("QP", hca.u64(0x30)+256*n, 256)
				holds("ALTC", hca.u64(0x60)+64*n, 64)
				holds("AUXC", hca.u64(0x70)+32*n, 32)
				holds("RDMARC", hca.u64(0x90)+32*n<<logRDMARC, 32<<logRDMARC)
				holds("cMPT of a QP", cmpt+64*n, 64)
				if n>>logQPs != 0 {
					t.Errorf("QP %d of 2^%d", n, logQPs)
				}
				if c.in.u8(qpcSQ) == 14<<3|2 { // a send queue of 16384 blocks: its pages, in order
					at := uint64(c.in.u32(qpcPlace + 4))
					holds("MTTs of a QP", hca.u64(0x100)+at, 8*256)
					for i := range uint64(256) {
						if m := binary.BigEndian.Uint64(mtts[at+8*i:]); m&1 != 1 ||
							m&^1 != binary.BigEndian.Uint64(mtts[at:])&^1+i*4096 {
							t.Fatalf("MTT %d of QP %#x is %#x", i, n, m)
						}
					}
				}
			case opSW2HWCQ:
				holds("CQ", hca.u64(0x50)+128*n, 128)
				holds("cMPT of a CQ", cmpt+64*(2<<24+n), 64)
			case opSW2HWEQ:
				holds("EQ", hca.u64(0x80)+64*n, 64)
				holds("cMPT of an EQ", cmpt+64*(3<<24+n), 64)
				if n < 4 || n/4 < 1 {
					t.Errorf("EQ %d is one of the device's", n)
				}
			case opSW2HWMPT:
				holds("dMPT", hca.u64(0xF0)+64*n, 64)
			}
		}
		holds("the device's own QPs", hca.u64(0x30), 64*256)
		holds("the device's own SRQs", hca.u64(0x48), 64*128)
		if managed := own.Steering == ""; hca.u32(0x14)>>6&1 != uint32(b2u(managed)) {
			t.Errorf("flags %#x, steering %+v", hca.u32(0x14), own)
		} else if managed {
			holds("rules", hca.u64(0x1D0), 1<<hca.u8(0x1E3)<<hca.u8(0x1EB))
		} else {
			holds("groups", hca.u64(0xC0), 1<<hca.u8(0xD3)<<hca.u8(0xDB))
		}
		must.Close(t, d)
	}
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// Each thing that can be wrong with a card has one error that names it, and leaves nothing mapped.
func TestRefusals(t *testing.T) {
	needs.Long(t)
	refuse := func(op opcode, status Status) func(*script) {
		return func(s *script) {
			s.answer = func(c sent) (Status, mailbox, uint64) {
				if c.op == op {
					return status, nil, 0
				}
				return card(c)
			}
		}
	}
	change := func(op opcode, f func(m mailbox)) func(*script) {
		return func(s *script) {
			s.answer = func(c sent) (Status, mailbox, uint64) {
				status, m, imm := card(c)
				if c.op == op {
					f(m)
				}
				return status, m, imm
			}
		}
	}
	infiniBand := change(opQueryPort, func(m mailbox) { m.set8(0, 0x80|portIB); m.set8(1, 5) })
	for name, c := range map[string]struct {
		spoil func(*script)
		o     nic.Options
		own   Options
		is    error
		says  string
	}{
		"not primary":      {spoil: refuse(opQueryFW, 0x50), is: nic.ErrHardware, says: "this is not the card's primary function"},
		"failing command":  {spoil: refuse(opInitHCA, 3), is: nic.ErrHardware, says: "INIT_HCA (0x7), opcode modifier 0, input modifier 0x0: status 0x03 bad parameter"},
		"unknown status":   {spoil: refuse(opRunFW, 0x77), is: nic.ErrHardware, says: "status 0x77 (unknown)"},
		"ICM refused":      {spoil: refuse(opMapICM, 0x0C), is: nic.ErrHardware, says: "error in the mapping of context memory (ICM)"},
		"ICM size refused": {spoil: refuse(opSetICMSize, 8), is: nic.ErrHardware, says: "SET_ICM_SIZE (0xffd), opcode modifier 0, input modifier 0x0: status 0x08 exceeds"},
		"ICM too small":    {spoil: change(opQueryDevCap, func(m mailbox) { m.set64(0xA0, 1<<20) }), is: nic.ErrHardware, says: "the device has room for 0x100000"},
		"no link type":     {spoil: change(opQueryPort, func(m mailbox) { m.set8(0, 0x80) }), is: nic.ErrHardware, says: "port 1 is set to neither Ethernet nor InfiniBand (`mstconfig"},
		"InfiniBand, MTU":  {spoil: change(opQueryPort, func(m mailbox) { m.set8(0, 0x80|portIB); m.set8(1, 6) }), is: nic.ErrHardware, says: "QUERY_PORT tells no MTU"},
		"InfiniBand, long": {o: nic.Options{MTU: 4093}, spoil: infiniBand, is: nic.ErrFrameSize, says: "MTU 4093 is asked for, port 1 of InfiniBand takes up to 4092"},
		"InfiniBand, 2":    {o: nic.Options{Queues: 2}, spoil: infiniBand, says: "2 queue pairs are asked for: port 1 is set to InfiniBand"},
		"InfiniBand, MAC":  {o: nic.Options{MAC: [6]byte{2, 0, 0, 0, 0, 9}}, spoil: infiniBand, says: "a MAC is asked for: port 1 is set to InfiniBand"},
		"InfiniBand, VLAN": {o: nic.Options{Match: &fastpath.Config{VLANs: []uint16{5}}}, spoil: infiniBand, says: "VLANs are asked for: port 1 is set to InfiniBand"},
		"removed":          {spoil: func(s *script) { s.removed = true }, is: nic.ErrGone, says: "all ones"},
		"no such port":     {own: Options{Port: 2}, spoil: change(opQueryDevCap, func(m mailbox) { m.set8(0x37, 1) }), says: "port 2 is asked for, the card has 1"},
		"MTU":              {o: nic.Options{MTU: 9000}, spoil: change(opQueryPort, func(m mailbox) { m.set16(2, 4096) }), is: nic.ErrFrameSize, says: "MTU 9000 is asked for, port 1 takes up to 4096"},
		"entry size":       {spoil: change(opQueryDevCap, func(m mailbox) { m.set16(0x82, 100) }), is: nic.ErrHardware, says: "a context of kind QP has 100 bytes"},
		"BlueFlame":        {spoil: change(opQueryDevCap, func(m mailbox) { m.set8(0x4D, 30) }), is: nic.ErrHardware, says: "BlueFlame registers have 2^30 bytes"},
		"few UARs":         {spoil: change(opQueryDevCap, func(m mailbox) { m.set8(0x48, 0xF0); m.set8(0x49, 0); m.set8(0x1E, 15) }), is: nic.ErrHardware, says: "pages of doorbells (UAR)"},
		"RSS over two":     {o: nic.Options{Queues: 4}, spoil: change(opQueryDevCap, func(m mailbox) { m.set8(0x2E, 0x11) }), is: nic.ErrHardware, says: "4 queue pairs are asked for, the card spreads frames over 2"},
		"three queues":     {o: nic.Options{Queues: 3}, says: "3 queue pairs requested: the card spreads frames over 1, 2, 4"},
		"long ring":        {o: nic.Options{RingSize: 4096}, spoil: change(opQueryDevCap, func(m mailbox) { m.set8(0x11, 13) }), says: "queues of 16384 entries, the device has QPs of 8192"},
		"group address":    {spoil: change(opQueryPort, func(m mailbox) { m.set64(0x10, 0x010000000001) }), says: "is not a unicast address"},
		"push mode":        {own: Options{Push: "header"}, says: `push mode "header": want one of auto, full, off`},
		"port":             {own: Options{Port: 3}, says: "port 3 is none of 1 and 2"},
		"steering":         {own: Options{Steering: "b0"}, says: `steering "b0" is none of`},
		"silent":           {spoil: func(s *script) { s.silent = opSW2HWEQ }, is: nic.ErrTimeout, says: "SW2HW_EQ (0x13), opcode modifier 0, input modifier 0x4: device did not answer in time: firmware did not complete it"},
		"aux pages": {spoil: func(s *script) {
			s.answer = func(c sent) (Status, mailbox, uint64) {
				st, m, v := card(c)
				return st, m, v*b2u(c.op != opSetICMSize) + b2u(c.op == opSetICMSize)<<40
			}
		}, is: nic.ErrHardware, says: "SET_ICM_SIZE (0xffd) asks for"},
		"rule":     {spoil: refuse(opFlowAttach, 8), is: nic.ErrHardware, says: "QP_FLOW_STEERING_ATTACH (0x65)"},
		"HCR busy": {spoil: func(s *script) { s.hcr[6] = hcrGo; s.bar2 = s.bar2[:0:0] }, says: ""},
	} {
		s := newScript(t)
		if c.spoil != nil {
			c.spoil(s)
		}
		d, err := s.open(c.o, c.own)
		if check.Fails(t, name, err, c.is, c.says); err == nil {
			d.Close()
		}
		check.Equal(t, strings.Count(fmt.Sprint(err), "\n"), 0, name+": %d more errors")
		check.Equal(t, len(s.Maps), 0, name+": %d mappings are left")
		if !s.removed && s.given == 0 && s.resets > 0 {
			t.Errorf("%s: the ownership register was not given back", name)
		}
	}
}

// A command that firmware did not complete is the last one: its mailboxes are still firmware's.
func TestStuckCommandIsTheLast(t *testing.T) {
	needs.Long(t)
	s := newScript(t)
	d := must.Get(s.open(nic.Options{}, Options{}))(t)
	s.silent = opQueryPort
	check.Fails(t, "a command that is not completed", check.Err(d.Link()), nic.ErrTimeout)
	n := len(s.sent)
	s.silent = 0
	check.Fails(t, "the next", check.Err(d.Link()), nic.ErrTimeout)
	check.Equal(t, len(s.sent), n, "%d commands were sent")
	if sy, err := d.check(true); err != nil || sy == nil || sy.Reason != "command_stuck" ||
		!strings.Contains(sy.Why, "QUERY_PORT") {
		t.Errorf("the watch sees %+v, %v", sy, err)
	}
	d.Close()
	check.Equal(t, len(s.Maps), 0, "%d mappings are left")
}

func TestRule(t *testing.T) {
	want := mailbox{
		0x50, 0, 0, 0, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, // priority, plain, no loopback; port; QP
		// Ethernet: address, mask
		12, 0, 0xE0, 0x01, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 9, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	}
	check.Same(t, ethRule(2, 0x100, [6]byte{2, 0, 0, 0, 0, 9}), want, "% x")
	check.Same(t, rule(1, 0x100, 0, ruleMulticast), mailbox{0, 0, 3, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0}, "% x")
}

// The context of a send QP and of the QP that spreads frames, field by field at their offsets in mlx4_qp_context.
func TestContexts(t *testing.T) {
	s := newScript(t)
	d := must.Get(s.open(nic.Options{Queues: 4, RingSize: 256}, Options{Port: 2}))(t)
	defer d.Close()
	find := func(op opcode, n uint32) mailbox {
		for _, c := range s.sent {
			if c.op == op && c.modifier == n {
				return c.in
			}
		}
		t.Fatalf("no %v of %#x", op, n)
		return nil
	}
	type field struct{ off, width, want uint64 }
	check := func(what string, m mailbox, fields ...field) {
		for _, f := range fields {
			got := m.u64(int(f.off)) >> (64 - 8*f.width)
			if got != f.want {
				t.Errorf("%s at %#x: %#x, want %#x", what, f.off, got, f.want)
			}
		}
	}
	tx, rx, rss := d.icm.txQP, d.icm.rxQP, d.icm.rssQP
	check("send QP", find(opRTR2RTS, tx+1), field{0, 4, 0}, field{8, 4, 3<<28 | 7<<16}, field{0x0C, 4, 2},
		field{0x10, 1, 0xFF},
		field{0x11, 1, 0}, field{0x12, 1, 10<<3 | 2}, field{0x14, 4, 129}, field{0x18, 4, uint64(tx + 1)},
		field{0x24, 1, 0xFF}, field{0x28, 1, 1},
		field{0x40, 1, 0xC3}, field{0x84, 4, uint64(d.queues[1].txCQN)}, field{0xA4, 4, uint64(d.queues[1].txCQN)},
		field{0xC8, 4, 1 << 30})
	check("receive QP", find(opRST2INIT, rx), field{8, 4, 1<<28 | 7<<16}, field{0x11, 1, 8 << 3}, field{0x12, 1, 2})
	check("RSS QP", find(opINIT2RTR, rss), field{8, 4, 2<<28 | 7<<16 | 1<<13}, field{0x44, 4, 2<<24 | uint64(rx)},
		field{0x48, 4, uint64(rx)},
		field{0x4E, 1, 1}, field{0x4F, 1, 0x2B}, field{0x50, 8, 0x6D5A6D5A6D5A6D5A}, field{0x70, 8, 0x6D5A6D5A6D5A6D5A},
		field{0x78, 4, uint64(rx)})
	if tx&0xC0 != 0 || rx%4 != 0 {
		t.Errorf("QPs %#x and %#x", tx, rx)
	}
	check("CQ", find(opSW2HWCQ, d.queues[0].rxCQN), field{0, 4, 0}, field{0x0C, 4, 8<<24 | firstUAR},
		field{0x17, 1, uint64(d.icm.eq)})
	check("EQ", find(opSW2HWEQ, d.icm.eq), field{0, 4, 0xA00}, field{0x0C, 1, 7})
	check("MPT", find(opSW2HWMPT, d.icm.mpt), field{0, 4, 0xF0020F00}, field{8, 4, uint64(d.icm.mpt)},
		field{0x0C, 4, 3<<24 | 2}, field{0x18, 8, 1<<64 - 1}, field{0x38, 4, 12})
	if d.lkey != d.icm.mpt<<8 {
		t.Errorf("key %#x of MPT %#x", d.lkey, d.icm.mpt)
	}
	check("SET_PORT", find(opSetPort, 2), field{3, 1, 7}, field{6, 2, 1500 + 14 + 8 + 4})
	check("address table", find(opSetPort, 2<<8|2), field{0, 8, 1<<63 | 0x0002C9123456})
}
