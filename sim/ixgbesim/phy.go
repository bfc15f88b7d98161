package ixgbesim

// phy is the X540's 10GBASE-T transceiver behind MSCA and MSRWD: clause 45 registers by device (MMD) and address. All
// other registers read zero, like reserved ones. A reset of the MAC does not change it.
type phy struct {
	regs  map[uint32]uint16 // MMD 20:16, register 15:0
	addr  map[uint32]uint32 // address set by the latest address cycle to an MMD
	busy  int               // accesses until the command is done
	data  uint16            // MSRWD 31:16
	write uint16            // MSRWD 15:0
	speed uint32            // LINKS bits of the negotiated speed

	restarts int
}

const (
	mmdPMA, mmdPCS, mmdXS, mmdAN, mmdVendor = 1 << 16, 3 << 16, 4 << 16, 7 << 16, 30 << 16

	anControl  = mmdAN | 0x00
	anStatus   = mmdAN | 0x01
	anAdvert   = mmdAN | 0x10
	anPartner  = mmdAN | 0x13
	anTenGig   = mmdAN | 0x20
	anTenStat  = mmdAN | 0x21
	anGigabit  = mmdAN | 0xc400 // 1000BASE-T is not clause 45's: a vendor's register
	globalMode = mmdVendor | 0x00

	anEnable, anRestart = 1 << 12, 1 << 9
	anComplete, anLink  = 1 << 5, 1 << 2
	advert100           = 1 << 8
	advertPause         = 3 << 10
	advert10G           = 1 << 12
	advert1G            = 1 << 15
	lowPower            = 1 << 11
)

// phyWritable are the bits that a driver may change.
var phyWritable = map[uint32]uint16{
	anControl:  anEnable | anRestart | 1<<13,
	anAdvert:   0x0fff,
	anTenGig:   advert10G | 1<<14 | 1<<13,
	anGigabit:  advert1G,
	globalMode: lowPower,
}

func newPHY() phy {
	p := phy{regs: map[uint32]uint16{}, addr: map[uint32]uint32{}}
	for _, mmd := range []uint32{mmdPMA, mmdPCS, mmdXS, mmdAN, 29 << 16, mmdVendor} {
		p.regs[mmd|2], p.regs[mmd|3] = 0x0154, 0x0200      // identifier
		p.regs[mmd|5], p.regs[mmd|6] = 0x009a, 1<<13|1<<14 // MMDs 1, 3, 4, 7; 29, 30
		p.regs[mmd|8] = 0x8000                             // a device answers here
	}
	p.regs[mmdPMA|4] = 1<<0 | 1<<4 | 1<<5  // able of 10 Gb/s, 1 Gb/s, 100 Mb/s
	p.regs[mmdPMA|11] = 1<<2 | 1<<5 | 1<<7 // 10GBASE-T, 1000BASE-T, 100BASE-TX
	p.regs[anControl] = anEnable | 1<<13
	p.regs[anAdvert] = 1 | advert100 | advertPause
	p.regs[anTenGig] = advert10G
	p.regs[anGigabit] = advert1G
	return p
}

// SetPHY puts a value into a register of the X540's PHY, MMD 20:16 and address 15:0, as another driver left it.
func (m *Model) SetPHY(r uint32, v uint16) { m.phy.regs[r] = v }

// PHY returns the value of such a register.
func (m *Model) PHY(r uint32) uint16 { return m.phy.regs[r] }

// Negotiations counts how often a driver restarted autonegotiation.
func (m *Model) Negotiations() int { return m.phy.restarts }

// negotiate returns the highest speed that both ends advertise, 0 if there can be no link. The peer advertises all.
func (p *phy) negotiate() uint32 {
	switch {
	case p.regs[globalMode]&lowPower != 0 || p.regs[anControl]&anEnable == 0:
		return 0
	case p.regs[anTenGig]&advert10G != 0:
		return links10G
	case p.regs[anGigabit]&advert1G != 0:
		return links1G
	case p.regs[anAdvert]&advert100 != 0:
		return links100M
	}
	return 0
}

// writeMSCA starts a management cycle, §3.7.7 and §8.2.3.22.11.
func (m *Model) writeMSCA(v uint32) error {
	m.val[regMSCA/4] = v
	if !m.x540() {
		m.val[regMSCA/4] = v &^ mscaMDI // nothing answers: a read yields all ones
		m.phy.data = 0xffff
		return nil
	}
	switch {
	case v&mscaMDI == 0:
		return nil
	case m.phy.busy > 0:
		m.host.Errorf("MSCA = %08x while a command is under way (82599 §8.2.3.22.11)", v)
	case m.val[regSWFW/4]&(swfwPHY0<<m.opt.Port) == 0:
		m.host.Warnf("MSCA = %08x without the PHY of port %d in SW_FW_SYNC (82599 §10.5.4)", v, m.opt.Port)
	case v>>28&3 != 0:
		m.host.Errorf("MSCA = %08x: a cycle of clause 22 (82599 §8.2.3.22.11)", v)
	}
	m.phy.busy = 2
	mmd, at := v&0x1f0000, v&0xffff
	here := v>>21&0x1f == 0
	key := mmd | m.phy.addr[v&0x3ff0000]
	if op := v >> 26 & 3; op != 0 {
		if last, ok := m.phy.addr[v&0x3ff0000]; !ok || last != at {
			m.host.Errorf("MSCA = %08x without an address cycle to that register before it (82599 §3.7.7)", v)
		}
		switch {
		case op == 3 && here:
			m.phy.data = m.readPHY(key)
		case op == 3:
			m.phy.data = 0xffff
		case op == 1 && here:
			m.forbid("MSCA", v)
			m.writePHY(key, m.phy.write)
		case op == 2:
			m.host.Errorf("MSCA = %08x: this model's PHY does not increment addresses (82599 §8.2.3.22.11)", v)
		}
		return nil
	}
	m.phy.addr[v&0x3ff0000] = at
	return nil
}

func (m *Model) readMSCA() uint32 {
	v := m.val[regMSCA/4]
	if m.phy.busy == 0 {
		v &^= mscaMDI
	}
	countdown(&m.phy.busy)
	return v
}

func (m *Model) readMSRWD() uint32 {
	if m.phy.busy > 0 {
		m.host.Errorf("MSRWD read while a command is under way (82599 §8.2.3.22.12)")
	}
	return uint32(m.phy.data)<<16 | uint32(m.phy.write)
}

func (m *Model) readPHY(key uint32) uint16 {
	v := m.phy.regs[key]
	if m.up {
		switch key {
		case anStatus:
			v |= anComplete | anLink
		case anPartner:
			v = 1 | advert100 | advertPause
		case anTenStat:
			v = 1 << 11 // the peer is able of 10GBASE-T
		}
	}
	return v
}

func (m *Model) writePHY(key uint32, v uint16) {
	if bad := (v ^ m.phy.regs[key]) &^ phyWritable[key]; bad != 0 {
		m.host.Errorf("PHY register %d.%04x = %04x changes bits %04x, which are not for drivers", key>>16, key&0xffff,
			v, bad)
	}
	m.phy.regs[key] = v &^ phyRestart(key)
	if v&phyRestart(key) != 0 {
		m.phy.restarts++
	}
	if key == globalMode || v&phyRestart(key) != 0 {
		m.drop()
	}
}

// phyRestart is the bit of a register that clears itself.
func phyRestart(key uint32) uint16 {
	if key == anControl {
		return anRestart
	}
	return 0
}
