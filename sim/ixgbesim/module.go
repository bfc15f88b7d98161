package ixgbesim

// Module is the type of the SFP+ module.
type Module uint8

const (
	Copper   Module = iota // passive copper cable of 1 m
	Optics                 // 10GBASE-SR
	DualRate               // 10GBASE-SR and 1000BASE-SX, as its rate select pins say
	Gigabit                // 1000BASE-SX
	OneByte                // 10GBASE-SR, with zeros after a transfer's first byte (Linux, sfp_id_needs_byte_io)
	Empty
)

// Memory of a module, SFF-8472 table 4-1.
const (
	sff10G      = 3 // 10 Gb/s Ethernet compliance: SR, LR
	sffSR       = 1 << 4
	sffLR       = 1 << 5
	sff1G       = 6 // 1 Gb/s Ethernet compliance: SX, LX
	sffSX       = 1 << 0
	sffLX       = 1 << 1
	sffCable    = 8 // passive, active
	sffPassive  = 1 << 2
	sffActive   = 1 << 3
	sffBase     = 63 // checksum of the preceding bytes
	sffExtended = 95 // checksum of 64 and later
)

// image returns a module's memory.
func (k Module) image() []byte {
	if k == Empty {
		return nil
	}
	e := make([]byte, 256)
	e[0], e[1], e[12] = 0x03, 0x04, 0x67 // SFP or SFP+, identified by this table, 10.3 GBd
	part := "MODEL DAC 1M"
	switch k {
	case Copper:
		e[2], e[sffCable], e[18], e[60] = 0x21, sffPassive, 1, 0x01 // copper pigtail, 1 m, SFF-8431 appendix E
	case Optics, OneByte:
		e[2], e[sff10G], part = 0x07, sffSR, "MODEL SR"
	case DualRate:
		e[2], e[sff10G], e[sff1G], part = 0x07, sffSR, sffSX, "MODEL SR/SX"
	case Gigabit:
		e[2], e[sff1G], e[12], part = 0x07, sffSX, 0x0d, "MODEL SX"
	}
	text := func(from, to int, s string) {
		for i := from; i < to; i++ {
			e[i] = ' '
		}
		copy(e[from:to], s)
	}
	text(20, 36, "REBOUND")
	text(40, 56, part)
	text(56, 60, "1")
	text(68, 84, "SERIAL0123456789")
	sum := func(from, to int) {
		for _, v := range e[from:to] {
			e[to] += v
		}
	}
	sum(0, sffBase)
	sum(64, sffExtended)
	return e
}

// SetModule plugs in a module with this memory, or empties the cage if memory is nil. A new module gets a link when a
// driver has configured the port for it: by CORECTL, or by a restart with AUTOC.
func (m *Model) SetModule(memory []byte) {
	m.i2c.module, m.i2c.single = nil, false
	m.val[regESDP/4] &^= esdpSDP2
	m.fresh = memory != nil
	if memory != nil {
		m.i2c.module = make([]byte, 256)
		copy(m.i2c.module, memory)
		m.val[regESDP/4] |= esdpSDP2 // the cage is full (Linux, ixgbe_check_mac_link_generic)
	}
	m.link()
}

// Plug plugs in a module of this kind.
func (m *Model) Plug(k Module) { m.SetModule(k.image()) }

// Exchange has a module of this kind take the place of the present one when the driver restarts the link the next time,
// that is while it is configuring the port for the present one.
func (m *Model) Exchange(k Module) { m.exchange = k.image() }

// fits reports whether the module supports the speed that AUTOC selects. SDP5 drives the rate select pins, whose
// pull-downs select the low rate (SFF-8431, RS0 and RS1): a dual-rate module passes 10 Gb/s only while SDP5 is driven
// high.
func (m *Model) fits() bool {
	if m.opt.Kind != SFP {
		return true
	}
	e := m.i2c.module
	if e == nil {
		return m.opt.Crosstalk
	}
	const driven = esdpSDP5 | esdpSDP5IO
	fast, slow, high := e[sff10G]&(sffSR|sffLR) != 0, e[sff1G]&(sffSX|sffLX) != 0, m.val[regESDP/4]&driven == driven
	if e[sffCable]&(sffPassive|sffActive) != 0 {
		return true
	}
	if lms := m.val[regAUTOC/4] >> autocLMSShift & 7; lms == 0 || lms == 2 {
		return slow && (!fast || !high)
	}
	return fast && (!slow || high)
}

// Core returns the words that were written to CORECTL, which configure the serializer for a module.
func (m *Model) Core() []uint16 { return m.core }

// writeCORECTL writes to the analog part: register in bits 15:8, value in 7:0. Drivers hold the MAC's semaphore
// meanwhile (Linux, ixgbe_setup_sfp_modules_82599).
func (m *Model) writeCORECTL(v uint32) {
	if m.val[regSWFW/4]&swfwMAC == 0 {
		m.host.Warnf("CORECTL = %08x without the MAC in SW_FW_SYNC (82599 §10.5.4)", v)
	}
	m.core = append(m.core, uint16(v))
	m.fresh = false
	m.link()
}

func (m *Model) writeI2CCTL(v uint32) {
	if m.val[regSWFW/4]&(swfwPHY0<<m.opt.Port) == 0 {
		m.host.Warnf("I2CCTL = %08x without the PHY of port %d in SW_FW_SYNC (82599 §10.5.4)", v, m.opt.Port)
	}
	m.i2c.write(v)
}
