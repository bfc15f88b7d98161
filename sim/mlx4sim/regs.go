package mlx4sim

import (
	"encoding/binary"
	"fmt"
)

// BAR 0, 1 MB of device registers (PRM "Configuration Registers"). All are 32 bits wide and big endian.
const (
	barSize0 = 1 << 20

	regCatas     = 0x1f020 // catastrophic error buffer, read only; QUERY_FW reports its address
	regClock     = 0x8c0c0 // the core clock, 64 bits, high dword first; QUERY_FW reports its address
	regHCR       = 0x80680 // HCA command register, seven dwords
	regOwner     = 0x8069c // ownership: a read that returns 0 takes it, a write of 0 releases it
	regReset     = 0xf0010 // a 1 resets the device
	regClrInt    = 0xf00d8 // clears INTx, 64 bits; QUERY_FW reports its address
	regSemaphore = 0xf03fc // against updates of the flash: a read that returns 0 takes it, a reset releases it

	catasWords = 16
	hcrWords   = 7
	hcrStatus  = 6 // the dword with go, toggle, opcode and status

	hcrGo     = 1 << 23
	hcrEvent  = 1 << 22
	hcrToggle = 1 << 21

	msixTable = 0x7c000
	msixPBA   = 0x7d000
	vectors   = 128
)

// statusAfterReset is the HCR value that a ConnectX-3 had after a reset: go and toggle are 0.
const statusAfterReset = 0x26451463

// registers are the registers of BAR 0 that have state.
type registers struct {
	hcr       [hcrWords]uint32
	owned     bool // the ownership semaphore was taken
	semaphore bool
	catas     [catasWords]uint32
	pending   bool // the HCR has a command that was not executed
}

func (r *registers) reset() {
	*r = registers{owned: r.owned}
	r.hcr[hcrStatus] = statusAfterReset
}

// ReadBAR reads registers. UAR pages are for writing: they read as zero.
func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	if bar == 2 {
		clear(p)
		return nil
	}
	if m.deaf > 0 { // booting after a reset: nothing answers
		m.deaf--
		for i := range p {
			p[i] = 0xff
		}
		return nil
	}
	if len(p) != 4 {
		return fmt.Errorf("access of %d bytes: registers have 4", len(p))
	}
	v, err := m.readReg(uint32(off))
	be.PutUint32(p, v)
	return err
}

func (m *Model) readReg(r uint32) (uint32, error) {
	switch {
	case r >= regHCR && r < regHCR+4*hcrWords:
		return m.regs.hcr[(r-regHCR)/4], nil
	case r == regOwner:
		was := m.regs.owned || m.opt.Owned || m.left > 0
		if m.left > 0 && m.left < m.opt.Abandoned {
			m.left--
		}
		m.regs.owned = true
		return bit(was), nil
	case r == regSemaphore:
		was := m.regs.semaphore || m.opt.SemaphoreHeld
		m.regs.semaphore = true
		return bit(was), nil
	case r >= regCatas && r < regCatas+4*catasWords:
		return m.regs.catas[(r-regCatas)/4], nil
	case r == regClock:
		return uint32(m.clock() >> 32), nil
	case r == regClock+4:
		return uint32(m.clock()), nil
	case r == regReset, r == regClrInt, r == regClrInt+4:
		return 0, fmt.Errorf("register is write only")
	}
	return 0, fmt.Errorf("no such register")
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// WriteBAR writes a register or rings a doorbell.
func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	if bar == 2 {
		return m.writeUAR(off, p)
	}
	if m.deaf > 0 {
		return nil
	}
	r := uint32(off)
	if len(p) != 4 {
		return fmt.Errorf("access of %d bytes: registers have 4", len(p))
	}
	v := be.Uint32(p)
	switch {
	case r >= regHCR && r < regHCR+4*hcrWords:
		return m.writeHCR(int(r-regHCR)/4, v)
	case r == regOwner:
		if v != 0 {
			return fmt.Errorf("only a write of 0 is defined, which releases the device")
		}
		if m.regs.owned = false; m.left == m.opt.Abandoned && m.left > 0 {
			m.left--
		}
		return nil
	case r == regReset:
		if v&1 == 0 {
			return fmt.Errorf("bit 0, which resets the device, is clear")
		}
		m.softReset()
		return nil
	case r == regClrInt, r == regClrInt+4:
		return nil
	case r == regSemaphore:
		m.regs.semaphore = v != 0
		return nil
	case r >= regCatas && r < regCatas+4*catasWords, r == regClock, r == regClock+4:
		return fmt.Errorf("register is read only")
	}
	return fmt.Errorf("no such register")
}

// RegisterName implements sim.Namer.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	page, at := off/uarSize, off%uarSize
	switch {
	case bar == 0 && off >= regHCR && off < regHCR+4*hcrWords:
		return [...]string{"HCR.in_param_h", "HCR.in_param_l", "HCR.input_modifier", "HCR.out_param_h",
			"HCR.out_param_l", "HCR.token", "HCR.status"}[(off-regHCR)/4], be
	case bar == 0 && off >= regCatas && off < regCatas+4*catasWords:
		return fmt.Sprintf("CATAS[%d]", (off-regCatas)/4), be
	case bar == 0:
		return map[uint64]string{regOwner: "OWNER", regReset: "RESET", regSemaphore: "SEMAPHORE", regClock: "CLOCK_H",
			regClock + 4: "CLOCK_L",
			regClrInt:    "CLR_INT_H", regClrInt + 4: "CLR_INT_L"}[off], be
	case page >= uars:
		return fmt.Sprintf("BF[%d][%03xh]", page-uars, at), be
	case at == uarSend:
		return fmt.Sprintf("UAR[%d].send", page), be
	case at&^7 == uarCQ:
		return fmt.Sprintf("UAR[%d].cq", page), be
	case at >= uarEQ && at < uarEQ+32:
		return fmt.Sprintf("UAR[%d].eq[%d]", page, (at-uarEQ)/8), be
	}
	return "", be
}
