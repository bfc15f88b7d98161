package ixgbesim

import "testing"

// One mistake of a driver at a time.
func TestViolations(t *testing.T) {
	type mistake struct {
		name, want string
		do         func(r *rig)
	}
	ok := uint32(60 | advData | eop | rs)
	for kind, all := range map[Kind][]mistake{SFP: {
		{"unknown register", "no such register", func(r *rig) { r.rd(0x2ffc) }},
		{"flash", "there is no flash", func(r *rig) { r.rd(0x30000) }},
		{"width", "registers have 4", func(r *rig) { r.Port.ReadBAR(0, 0x8, make([]byte, 2)) }},
		{"read only", "read only", func(r *rig) { r.wr(0x8, 1) }},
		{"reserved bits", "reserved bits", func(r *rig) { r.wr(0x1014, 1<<30|2|1<<25) }},
		{"no wait for reset", "before CTRL.RST was seen to clear", func(r *rig) { r.wr(0x0, 1<<26); r.wr(0x5080, 0) }},
		{"no wait for the EEPROM", "Auto_RD", func(r *rig) { r.wr(0x0, 1<<26); r.poll(0x0, 1<<26, 0); r.wr(0x10014, 1) }},
		{"no wait for DMA", "DMAIDONE", func(r *rig) {
			r.wr(0x0, 1<<26)
			r.poll(0x0, 1<<26, 0)
			r.wr(0x1008, 1024)
			r.wr(0x1028, 1<<25)
		}},
		{"receive enabled without halt", "SECRXCTRL.RX_DIS", func(r *rig) { r.reset(); r.set(0x18, 1<<16); r.wr(0x3000, 1) }},
		{"no length", "RDLEN 0", func(r *rig) { r.wr(0x1068, 1<<25) }},
		{"header split", "no header split", func(r *rig) { r.wr(0x1048, 1024); r.wr(0x1054, 2<<25|2); r.wr(0x1068, 1<<25) }},
		{"buffer size", "BSIZEPACKET 0", func(r *rig) { r.wr(0x1048, 1024); r.wr(0x1054, 1<<25); r.wr(0x1068, 1<<25) }},
		{"receive tail early", "RXDCTL.ENABLE reads 1", func(r *rig) { r.wr(0x1058, 4) }},
		{"receive tail beyond", "beyond the ring", func(r *rig) { r.wr(0x1018, ringLen) }},
		{"receive tail overrun", "overruns the head", func(r *rig) { r.wr(0x1018, 10); r.wr(0x1018, 5) }},
		{"ring moved", "while the queue is enabled", func(r *rig) { r.wr(0x1000, 0x80) }},
		{"transmit before TE", "DMATXCTL.TE", func(r *rig) { r.reset(); r.wr(0x6048, 1024); r.wr(0x6068, 1<<25) }},
		{"transmit tail early", "TXDCTL.ENABLE reads 1", func(r *rig) { r.wr(0x6058, 1) }},
		{"thresholds", "exceed", func(r *rig) { r.wr(0x6048, 1024); r.wr(0x6068, 1<<25|32<<16|1<<8|32) }},
		{"no host threshold", "HTHRESH 0", func(r *rig) { r.wr(0x6048, 1024); r.wr(0x6068, 1<<25|32) }},
		{"virtual queues", "no virtualisation", func(r *rig) { r.wr(0x5818, 8) }},
		{"MTQC unarbitrated", "ARBDIS", func(r *rig) { r.wr(0x8120, 1) }},
		{"coalescing", "RSCEN and legacy", func(r *rig) { r.wr(0x1048, 1024); r.wr(0x1054, 2); r.wr(0x106c, 1); r.wr(0x1068, 1<<25) }},
		{"filter that is not modelled", "SYNQF (0ec30h) is kept and has no effect", func(r *rig) { r.wr(0xec30, 3); r.wr(0xec30, 5) }},
		{"exact filter", "matches nothing", func(r *rig) { r.wr(0xee00, 1<<4|1); r.wr(0xee2c, 1) }},
		{"EEPROM not requested", "without EE_REQ", func(r *rig) { r.wr(0x10010, r.rd(0x10010)|1) }},
		{"no FCS", "IFCS", func(r *rig) { r.desc(r.load(0, frame(60)), ok&^(1<<25), 60<<14) }},
		{"wrong PAYLEN", "PAYLEN 61", func(r *rig) { r.desc(r.load(0, frame(60)), ok, 61<<14) }},
		{"wrong type", "DTYP 7", func(r *rig) { r.desc(r.load(0, frame(60)), ok|4<<20, 60<<14) }},
		{"RS inside", "RS without EOP", func(r *rig) { r.desc(r.load(0, frame(60)), ok&^eop, 60<<14) }},
		{"no buffer", "no bytes", func(r *rig) { r.desc(r.load(0, nil), ok&^0xffff, 0) }},
		{"runt", "17 are the least", func(r *rig) { r.desc(r.load(0, frame(60)), ok&^0xffff|16, 16<<14) }},
		{"no context", "never set", func(r *rig) { r.desc(r.load(0, frame(60)), ok, 60<<14|1<<9) }},
		{"wild payload", "IOVA", func(r *rig) { r.desc(0xdead000, ok, 60<<14) }},
		{"wild receive buffer", "IOVA", func(r *rig) {
			r.mem[rxRing+7] = 0x7f
			r.wr(0x1018, 1)
			r.Far.Send(0, frame(60))
		}},
		{"bus mastering off", "bus mastering is off", func(r *rig) {
			r.Fn.SetBusMaster(false)
			r.desc(r.load(0, frame(60)), ok, 60<<14)
		}},
		{"descriptor reused early", "overruns the head", func(r *rig) {
			for i := range ringLen - 1 { // none with RS but the 33rd, so that only 33 are known to be done
				d := ok &^ rs
				if i == 32 {
					d = ok
				}
				r.desc(r.load(0, frame(60)), d, 60<<14)
			}
			r.kick()
			r.wr(0x6018, (r.txT+34)%ringLen)
		}},
		{"never RS", "40 descriptors without RS", func(r *rig) {
			for range 40 {
				r.desc(r.load(0, frame(60)), ok&^rs, 60<<14)
			}
		}},
		{"register of the X540", "no such register", func(r *rig) { r.rd(0x41c4) }},
	}, X540: {
		{"NVM not taken", "without the NVM", func(r *rig) { r.wr(0x10014, 1) }},
		{"beyond the NVM", "there are 0x800", func(r *rig) { r.own(1); r.wr(0x10014, 0x800<<2|1) }},
		{"NVM bit by bit", "a flash", func(r *rig) { r.wr(0x10010, 1<<6) }},
		{"PHY not taken", "without the PHY", func(r *rig) { r.wr(0x425c, 1<<30) }},
		{"reset with the PHY in use", "command to the PHY", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<16); r.wr(0, 1<<26) }},
		{"SW_FW_SYNC not taken", "without REGSMP", func(r *rig) { r.wr(0x10160, 2) }},
		{"no address cycle", "without an address cycle", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|3<<26|1<<16|2) }},
		{"another address cycle", "without an address cycle", func(r *rig) { r.own(2); r.readPHY(1, 2); r.wr(0x425c, 1<<30|3<<26|1<<16|3) }},
		{"command under way", "while a command is under way", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<16); r.wr(0x425c, 1<<30|1<<16) }},
		{"data under way", "while a command is under way", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<16); r.rd(0x4260) }},
		{"clause 22", "clause 22", func(r *rig) { r.own(2); r.wr(0x425c, 1<<30|1<<28) }},
		{"auto-increment", "does not increment", func(r *rig) { r.own(2); r.cycle(2, 0, 1, 2) }},
		{"a read-only PHY register", "not for drivers", func(r *rig) { r.own(2); r.writePHY(1, 2, 1) }},
		{"link modes of the 82599", "no such register", func(r *rig) { r.rd(0x42a0) }},
		{"packet buffer of the 82599", "of 384 KB", func(r *rig) { r.wr(0x3c00, 512<<10) }},
	}} {
		for _, c := range all {
			t.Run(c.name, func(t *testing.T) {
				r := openRig(t, Options{Kind: kind})
				r.Clean()
				c.do(r)
				if r.txT != 0 && len(r.Port.Violations()) == 0 {
					r.wr(0x6018, r.txT)
				}
				r.settle()
				r.ExpectViolation(c.want)
			})
		}
	}
}
