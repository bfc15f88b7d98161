package ixgbesim

import "fmt"

// Reset is power-on or function-level reset, §4.2.1.
func (m *Model) Reset() {
	m.i2c, m.spi, m.phy.busy = i2c{module: m.i2c.module, single: m.i2c.single}, spi{}, 0
	m.val[regSWFW/4], m.val[regSWSM/4] = 0, 0
	m.resetDevice()
	m.rst, m.eep, m.dma = 0, 0, 0
	m.link()
}

// resetDevice performs CTRL.RST, §4.2.1.6: all registers but the semaphores get their defaults or their values from the
// EEPROM.
func (m *Model) resetDevice() {
	swsm, swfw := m.val[regSWSM/4], m.val[regSWFW/4]
	table.Reset(m.val[:])
	m.val[regSWSM/4], m.val[regSWFW/4] = swsm, swfw
	clear(m.latch)
	m.val[regRXPBSIZE/4], m.val[0x0cc00/4], m.val[0x04950/4] = cards[m.opt.Kind].rxKB<<10, 160<<10, 150
	mac := m.opt.MAC
	m.val[regRAL/4] = le.Uint32(mac[:])
	m.val[regRAH/4] = uint32(le.Uint16(mac[4:])) | rahAV
	m.val[regAUTOC/4], m.val[regAUTOC2/4] = cards[m.opt.Kind].autoc, cards[m.opt.Kind].autoc2
	if m.opt.OtherLink {
		m.val[regAUTOC/4] &^= 7 << autocLMSShift
		m.val[regAUTOC2/4] |= autoc2Disable
	}
	if m.x540() {
		m.val[regEEC/4] = 0x10 | eecPRES | nvmSize // without PRES, Linux would bit-bang the EEPROM's pins
	}
	m.core, m.pipe = nil, pipeIdle
	m.val[regESDP/4] = 0
	if m.opt.Kind != SFP || m.i2c.module != nil {
		m.val[regESDP/4] = esdpSDP2
	}
	if m.opt.Kind == SFP {
		// the EEPROM makes SDP3, which is connected to the module's TX_DISABLE, an output
		m.val[regESDP/4] |= esdpSDP3IO
	}
	m.val[regEEMNGCTL/4] = eemngFixed
	if !m.opt.SharedLOM {
		m.val[regEEMNGCTL/4] |= eemngCFGDONE << m.opt.Port
	}
	m.rst, m.eep, m.dma = 2, 2, 2
	m.secReady = false
	m.rx, m.tx = [queues]rxQueue{}, [queues]txQueue{}
	m.fifo, m.held, m.xoff, m.paused = nil, 0, false, 0
	m.irq = interrupts{}
	m.now, m.sysAt, m.stamped = 0, 0, nil
	if m.host != nil {
		for q := range queues {
			clear(m.host.Shadow(0)[rxReg(regRDT, q):][:4])
			clear(m.host.Shadow(0)[txReg(regTDT, q):][:4])
		}
	}
	m.link()
}

// writeCTRL resets the device, or stops its DMA (§5.2.4.3.2).
func (m *Model) writeCTRL(v uint32) error {
	if v&(ctrlRST|ctrlLRST) != 0 {
		// Linux holds the X540's PHY for a reset, except for the first one, before it knows about the PHY.
		if m.phy.busy > 0 {
			m.host.Errorf("CTRL = %08x while a command to the PHY is under way", v)
		}
		if m.rst > 0 {
			return fmt.Errorf("CTRL = %08x while a reset is under way (82599 §4.2.1.6)", v)
		}
		if v&ctrlLRST != 0 && m.up && !m.x540() {
			m.forbid("CTRL", v)
		}
		if m.cleared {
			m.resets++
		}
		m.resetDevice()
		m.val[regCTRL/4] = v & (ctrlRST | ctrlLRST)
		return nil
	}
	m.val[regCTRL/4] = v
	return nil
}

func (m *Model) resetDone() {
	m.val[regCTRL/4] &^= ctrlRST | ctrlLRST
	m.link()
}
