package ixgbesim

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/sim"
)

// Options configures a port.
type Options struct {
	MAC       [6]byte
	Kind      Kind
	Port      int    // 0 or 1: the function of a dual-port card. The two are independent
	Dual      bool   // the card has two
	BAR0      uint64 // bytes: 128 KB, 512 KB (0), 2 MB or 4 MB, from the EEPROM. Registers are the first 128 KB
	Pref      bool   // BAR 0 is prefetchable
	Vectors   int    // of MSI-X, from EEPROM word MSI_X_N: 64 if zero. With one, Linux's driver uses MSI
	NoMSI     bool   // the EEPROM disables MSI too, which leaves INTx
	OtherLink bool   // the EEPROM of an SFP+ board selects 1 Gb/s, and the previous driver turned the link off
	Module    Module // in the SFP+ cage
	Crosstalk bool   // an empty cage reports its neighbour's link, and the EEPROM announces this
	Pending   bool   // requests to the bus stay pending when mastering is switched off
	Veto      bool   // a management controller uses the port, and firmware forbids changes of the link (MMNGC.MNG_VETO)
	// the link needs a reset of the receive and transmit pipeline after AUTOC was written, as with LESM firmware
	Pipeline  bool
	NoRelaxed bool // the root port has the ordering erratum: relaxed ordering must be off
	SharedLOM bool // a LAN on the motherboard that is shared with its management controller: CFG_DONE is never set
}

// Model is one port of an 82599 or an X540. It implements sim.Model.
type Model struct {
	opt  Options
	host sim.Host

	val      [regsEnd / 4]uint32 // values of registers without other state
	eeprom   [eepromWords]uint16
	spi      spi
	i2c      i2c
	phy      phy
	fresh    bool     // a module was plugged in, and the port has not been configured since
	exchange []byte   // memory of a module that takes the present one's place at the next restart of the link
	pipe     pipeline // the reset that Options.Pipeline asks for
	core     []uint16 // written to CORECTL since the last reset

	cleared bool // requests to the bus were discarded, §5.2.5.3.2
	resets  int  // since then

	rst, eep, dma int  // accesses or Steps until reset, EEPROM load and DMA initialization are done §4.6.3
	secReady      bool // SECRXSTAT.SECRX_RDY was seen by the driver
	halted        bool // wire side: Pause

	wire, up bool // the wire's other end is there; our link is up
	rx       [queues]rxQueue
	tx       [queues]txQueue
	next     int // transmit queue that is served first
	fifo     [][]byte
	held     int // bytes in fifo, FCS included
	xoff     bool
	paused   time.Duration // transmission is paused until then, by a pause frame

	irq     interrupts
	now     uint64 // SYSTIM at sysAt
	sysAt   time.Duration
	stamped *byte // start of the frame in fifo whose time stamp is in RXSTMP
	count   counters
	latch   map[reg]uint32 // high halves of octet counters and SYSTIM, by the low half that was read
}

// New returns a port that is not yet powered on.
func New(o Options) *Model {
	m := &Model{opt: o, latch: map[reg]uint32{}, phy: newPHY()}
	m.eeprom, m.i2c.module = newEEPROM(o), o.Module.image()
	m.i2c.single = o.Module == OneByte
	return m
}

var le = binary.LittleEndian

// Config is the function's configuration space, §9.
func (m *Model) Config() sim.Config {
	card := &cards[m.opt.Kind]
	polled := make([]sim.Range, 0, 2*queues)
	for q := range queues {
		polled = append(polled, sim.Range{Off: uint64(rxReg(regRDT, q)), Len: 4},
			sim.Range{Off: uint64(txReg(regTDT, q)), Len: 4})
	}
	mac, next, aer := m.opt.MAC, uint8(0), 1
	if m.x540() {
		aer = 2
	}
	if m.opt.Dual && m.opt.Port == 0 {
		next = 1
	}
	return sim.Config{
		Vendor: 0x8086, Device: card.device, SubVendor: 0x8086, SubDevice: card.subDevice, Revision: 1, Class: 0x020000,
		BARs: [6]sim.BAR{
			0: {Size: cmp.Or(m.opt.BAR0, barSize), Is64: true, Prefetchable: m.opt.Pref, Polled: polled},
			4: {Size: 0x4000, Is64: true},
		},
		MSIXVectors: cmp.Or(m.opt.Vectors, 64), MSIXBAR: 4, MSIXTable: 0, MSIXPBA: 0x2000,
		PCIeDevCap: 0x10008cc2, LinkSpeed: 2, LinkWidth: 8,
		PMC: 0x4823, PMCSR: 0x2000, // a change from D3hot to D0 resets the function
		MSI: !m.opt.NoMSI, VPD: sim.VPD(card.device, mac), AER: aer, ARI: true, NextFunction: next,
		MultiFunction: m.opt.Dual, InterruptPin: uint8(1 + m.opt.Port),
		SerialNumber: uint64(mac[0])<<56 | uint64(mac[1])<<48 | uint64(mac[2])<<40 | 0xffff<<24 |
			uint64(mac[3])<<16 | uint64(mac[4])<<8 | uint64(mac[5]),
	}
}

// Attach connects the model to its host.
func (m *Model) Attach(h sim.Host) { m.host = h }

// SetLink reports that the wire's other end was connected or disconnected.
func (m *Model) SetLink(up bool) {
	m.wire = up
	m.link()
}

// Pause stops or resumes the transmitter, as if the wire were busy.
func (m *Model) Pause(on bool) { m.halted = on }

// ReadBAR reads a register. Registers are 32 bits wide and take aligned accesses of that size; a pair may be accessed
// as 64 bits (§8.1.2).
func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	if err := m.check(bar, off, len(p)); err != nil {
		return err
	}
	var warning error
	for i := 0; i < len(p); i += 4 {
		v, err := m.read(alias(reg(off) + reg(i)))
		if err != nil {
			warning = err
		}
		le.PutUint32(p[i:], v)
	}
	return warning
}

// WriteBAR writes a register.
func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	if err := m.check(bar, off, len(p)); err != nil {
		return err
	}
	for i := 0; i < len(p); i += 4 {
		if err := m.write(alias(reg(off)+reg(i)), le.Uint32(p[i:])); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) check(bar int, off uint64, n int) error {
	switch {
	case bar != 0:
		return fmt.Errorf("BAR %d holds the MSI-X table at 0h and its pending bits at 2000h, nothing else (82599 §9.3.6)", bar)
	case n != 4 && n != 8:
		return fmt.Errorf("access of %d bytes to %v: registers have 4 (82599 §8.1.2)", n, reg(off))
	case off+uint64(n) > regsEnd:
		return fmt.Errorf("access to %05xh: there is no flash (82599 §8.1.1)", off)
	}
	return nil
}

// read returns a register's value, with the effects of reading it. An error is a warning.
func (m *Model) read(r reg) (uint32, error) {
	e, err := table.Read(r)
	if err == nil && m.absent(e) {
		err = fmt.Errorf("no such register on this device")
	}
	if err != nil { // ethtool -d reads registers of other cards too
		return all, sim.AsWarning(err)
	}
	v := m.val[r/4]
	switch e.Base {
	case regCTRL, 0x00004:
		v = m.val[regCTRL/4]
		if m.rst > 0 {
			if m.rst--; m.rst == 0 {
				m.resetDone()
			}
		}
	case regSTATUS:
		v |= uint32(m.opt.Port) << statusLANID
		if m.val[regCTRL/4]&ctrlGIODIS != 0 && !m.opt.Pending {
			v &^= statusGIO
		}
		if m.up {
			v |= statusLinkUp
		}
	case regI2CCTL:
		v = m.i2c.read()
	case regEEC:
		if m.rst == 0 {
			countdown(&m.eep)
		}
		v = m.readEEC()
	case regSWSM:
		m.val[r/4] |= swsmSMBI // a read takes the semaphore
	case regSWFW:
		if m.x540() {
			m.val[r/4] |= swfwREGSMP // likewise
		}
	case regMSCA:
		return m.readMSCA(), nil
	case regMSRWD:
		return m.readMSRWD(), nil
	case regEICR:
		v = m.readEICR()
	case regEICS:
		v = m.irq.cause
	case regEIMS:
		v = m.irq.otherMask | uint32(m.irq.mask)&eicrQueue
	case regEIMSEX:
		v = uint32(m.irq.mask >> (32 * e.Index(r)))
	case regEIMC, regEICSEX, regEIMCEX:
		v = 0 // write only
	case regRDRXCTL:
		if m.eep == 0 {
			countdown(&m.dma)
		}
		if m.dma == 0 {
			v |= rdrxctlDMAIDONE
		}
	case regSECRXSTAT:
		if m.val[regSECRXCTRL/4]&secrxDIS != 0 {
			v |= secReady
			m.secReady = true
		}
	case regAUTOC:
		v &^= autocRestart // clears itself
	case regLINKS:
		v = m.readLINKS()
	case regANLP1:
		m.pipe.seen(v)
	case regMMNGC:
		if m.opt.Veto {
			v |= mmngcVeto
		}
	case regRXSTMPH:
		m.val[regTSYNCRX/4] &^= tsyncValid
	case regTXSTMP + 4:
		m.val[regTSYNCTX/4] &^= tsyncValid
	case regLINKS2:
		if m.negotiates() {
			v = links2AN
		}
	case regSYSTIML:
		// The high half is that of this moment (inferred): it changes every 16 ns on the X540, and Linux reads it
		// second.
		now := m.systim()
		v, m.latch[r] = uint32(now), uint32(now>>32)
	case regSYSTIMH:
		v = m.latch[regSYSTIML]
	case regGORCL, regGOTCL, regTORL, regQBRC, regQBTC:
		// Reading the low half latches the high one, so that counts between the two reads are not lost. No public
		// source says whether silicon clears the pair here or at the read of the high half.
		m.latch[r] = m.val[r/4+1]
		m.val[r/4], m.val[r/4+1] = 0, 0
		return v, nil
	case regGORCL + 4, regGOTCL + 4, regTORL + 4, regQBRC + 4, regQBTC + 4:
		v = m.latch[r-4]
		m.latch[r-4] = 0
		return v, nil
	default:
		v = m.readQueue(e, r, v)
	}
	if e.Access == rc {
		m.val[r/4] = 0
	}
	return v, nil
}

// readQueue returns the value read from a queue's register.
func (m *Model) readQueue(e *entry, r reg, v uint32) uint32 {
	switch e.Base {
	case regRXDCTL, 0x0d028:
		q := &m.rx[queueOf(r)]
		v = v&^rxdctlENABLE | q.readEnable(rxdctlENABLE)
	case regTXDCTL:
		q := &m.tx[e.Index(r)]
		v = v&^txdctlENABLE | q.readEnable(txdctlENABLE)
	case regRDH, 0x0d010:
		v = m.rx[queueOf(r)].head
	case regRDT, 0x0d018:
		v = sim.Load32(m.host.Shadow(0)[r:])
	case regTDH:
		q := &m.tx[e.Index(r)]
		q.done, v = q.head, q.head
	case regTDT:
		v = sim.Load32(m.host.Shadow(0)[r:])
	}
	return v
}

func countdown(n *int) {
	if *n > 0 {
		*n--
	}
}

// write stores a register's value after checking it, with the effects of writing it.
func (m *Model) write(r reg, v uint32) error {
	e := table.Lookup(r)
	if e == nil || m.absent(e) {
		return fmt.Errorf("no such register on this device (82599 §8.2)")
	}
	if e.Base == regSTATUS { // Linux's self-test writes it
		return sim.AsWarning(errors.New("it is read only (82599 §8.2.3.1.2)"))
	}
	old := m.val[r/4]
	v, lost, err := table.Write(m.host, r, v, old, m.bits(e), m.shown(e, r))
	if err != nil || lost {
		return err
	}
	// The X540's semaphores may be written during the reset: Linux releases the PHY meanwhile.
	if m.rst > 0 && e.Base != regCTRL && e.Base != 0x00004 && !(m.x540() && (e.Base == regSWSM || e.Base == regSWFW)) {
		m.host.Warnf("write of %08x to %v before CTRL.RST was seen to clear (82599 §4.6.3.2)", v, r)
	}
	if e.Access == rw {
		m.val[r/4] = v
		return m.written(e, r, old, v)
	}
	return m.command(e, r, old, v)
}

// shown returns the value that reads show in a register's reserved bits. Writing the same value back is allowed.
func (m *Model) shown(e *entry, r reg) uint32 {
	switch e.Base {
	case regRDRXCTL:
		return m.val[r/4] | rdrxctlDMAIDONE
	case regEEC:
		return m.readEEC() | eecARD
	case regI2CCTL, regFDIRCTRL, regESDP:
		return all
	case regFCRTH:
		// Linux computes a threshold even for a packet buffer without memory, and it is negative.
		if m.val[regRXPBSIZE/4+reg(e.Index(r))] == 0 {
			return all
		}
	}
	return m.val[r/4]
}

// written checks plain registers against each other.
func (m *Model) written(e *entry, r reg, old, v uint32) error {
	switch e.Base {
	case regRDBAL, regRDBAH, regRDLEN, regSRRCTL, 0x0d000, 0x0d004, 0x0d008, 0x0d014:
		// Only DROP_EN may change while the queue runs: Linux changes it with flow control.
		if q := &m.rx[queueOf(r)]; q.enabled && (old^v)&^srrctlDROP != 0 {
			return fmt.Errorf("write of %08x to %v while the queue is enabled (82599 §4.6.7.1)", v, r)
		} else if q.enabled && table.Lookup(r).Bits == 0x1fc03f1f {
			q.drop = v&srrctlDROP != 0
		}
	case regTDBAL, regTDBAH, regTDLEN, regTDWBAL, regTDWBAH:
		if m.tx[e.Index(r)].enabled && old != v {
			return fmt.Errorf("write of %08x to %v while the queue is enabled (82599 §4.6.8.1)", v, r)
		}
	case regMRQC:
		if mode := v & 0xf; mode > mrqcRSS {
			m.val[r/4] = old
			return fmt.Errorf("MRQC.MRQE = %d: this model has no virtualisation and no traffic classes (82599 §7.1.2)",
				mode)
		}
	case regRXPBSIZE:
		sum := uint32(0)
		for n := range reg(8) {
			sum += m.val[regRXPBSIZE/4+n]
		}
		if kb := cards[m.opt.Kind].rxKB; sum > kb<<10 {
			m.host.Warnf("%v = %08x: %d KB of packet buffer, of %d KB that there are (82599 §8.2.3.8.9)", r, v, sum>>10,
				kb)
		}
	case regESDP, regAUTOC2:
		if e.Base == regAUTOC2 || (old^v)&(esdpSDP3|esdpSDP3IO) != 0 {
			m.forbid(e.Name, v)
		}
		m.link()
	case regGCREXT:
		if v&gcrBUFCLR != 0 && m.val[regHLREG0/4]&hlregLPBK != 0 {
			m.cleared = true
		}
	}
	return nil
}

// command performs writes with side effects.
func (m *Model) command(e *entry, r reg, old, v uint32) error {
	switch e.Base {
	case regCTRL, 0x00004:
		return m.writeCTRL(v)
	case regI2CCTL:
		m.writeI2CCTL(v)
	case regCORECTL:
		m.writeCORECTL(v)
	case regEEC:
		if m.x540() {
			return fmt.Errorf("write of %08x to %v: the X540's NVM is a flash that only firmware writes here", v, r)
		}
		if v&eecBits != old&eecBits && v&eecREQ == 0 {
			m.host.Warnf("%v = %08x drives the EEPROM without EE_REQ (82599 §8.2.3.2.1)", r, v)
		}
		m.val[r/4] = v
		m.spi.write(v, &m.eeprom)
	case regEERD:
		return m.writeEERD(v)
	case 0x10018:
		return fmt.Errorf("%v = %08x: this model's EEPROM is read only (82599 §8.2.3.2.3)", r, v)
	case regSWSM:
		m.val[r/4] = v
	case regSWFW:
		if m.x540() && old&swfwREGSMP == 0 {
			return fmt.Errorf("write of %08x to %v without REGSMP, which a read of it takes (82598 §4.4.3.11.9)", v, r)
		}
		if !m.x540() && m.val[regSWSM/4]&swsmSWESMBI == 0 {
			return fmt.Errorf("write of %08x to %v without SWSM.SWESMBI (82599 §10.5.4)", v, r)
		}
		m.val[r/4] = v
	case regEICR, regEICS, regEIMS, regEIMC, regEICSEX, regEIMSEX, regEIMCEX:
		m.writeInterrupt(e.Base, e.Index(r), v)
	case regRDH, 0x0d010:
		return m.writeRDH(queueOf(r), v)
	case regRDT, 0x0d018:
		return m.rxTail(queueOf(r), v)
	case regRXDCTL, 0x0d028:
		return m.writeRXDCTL(queueOf(r), r, v)
	case regTDH:
		return m.writeTDH(e.Index(r), v)
	case regTDT:
		return m.txTail(e.Index(r), v)
	case regTXDCTL:
		return m.writeTXDCTL(e.Index(r), r, v)
	case regRXCTRL:
		if m.opt.Pending && v&1 != 0 {
			if m.resets < 2 {
				m.host.Warnf("RXCTRL = %08x after %d resets with requests discarded: two are needed while requests are pending (82599 §5.2.5.3.2)", v, m.resets)
			}
			m.cleared, m.resets = false, 0
		}
		return m.writeRXCTRL(old, v)
	case regDMATXCTL:
		m.val[r/4] = v
		if v&0xffff0000 != old&0xffff0000 {
			return sim.AsWarning(fmt.Errorf("%v = %08x changes the VLAN EtherType from %04xh (82599 §8.2.3.9.2)", r, v,
				old>>16))
		}
	case regMTQC:
		if v != old && m.val[regRTTDCS/4]&rttdcsARBDIS == 0 {
			return fmt.Errorf("%v = %08x while RTTDCS.ARBDIS is clear (82599 §7.2.1.2.1)", r, v)
		}
		if v != 0 {
			return fmt.Errorf("%v = %08x: this model has no virtualisation and no traffic classes (82599 §7.2.1.2)", r,
				v)
		}
		m.val[r/4] = v
	case regSECRXCTRL:
		m.val[r/4] = v
		if v&secrxDIS == 0 {
			m.secReady = false
		}
	case regAUTOC:
		m.forbid("AUTOC", v)
		m.val[r/4] = v
		if v&autocRestart != 0 {
			if m.exchange != nil {
				m.SetModule(m.exchange)
				m.exchange = nil
			}
			m.fresh = false
			m.pipe.restarted(old, v)
			m.val[regANLP1/4] = anlp1State | anlp1Pause
			m.drop()
		}
	case regMSCA:
		return m.writeMSCA(v)
	case regMSRWD:
		m.phy.write = uint16(v)
	case regFDIRCTRL:
		m.val[r/4] = v
		if v&3 != 0 {
			m.val[r/4] |= fdirINITDONE
		}
	case regFDIRCMD:
		if v&3 == fdirAdd && m.val[regFDIRCTRL/4]&fdirPERFECT != 0 {
			m.host.Warnf("%v: the filter is kept and matches nothing in this model", r)
		}
		m.val[r/4] = v &^ 3 // completes immediately
	case regSYSTIML, regSYSTIMH:
		shift := 8 * (r - regSYSTIML)
		m.setClock(m.systim()&^(all<<shift) | uint64(v)<<shift)
	case regTIMINCA:
		m.setClock(m.systim())
		m.val[r/4] = v
	case regTSYNCRX, regTSYNCTX:
		m.val[r/4] = v&^tsyncValid | old&tsyncValid
	case 0x11068, 0x05810, 0x15f0c, 0x00700, 0x00710: // PBACL, WUS, FWSTS and mailbox causes: nothing of them is kept
	default:
		m.val[r/4] = v
	}
	return nil
}

func queueOf(r reg) int {
	if r >= 0x0d000 {
		return 64 + int(r-0x0d000)/0x40
	}
	return int(r-0x01000) / 0x40
}

// master reports whether the device may start its own transactions.
func (m *Model) master() bool { return m.val[regCTRL/4]&ctrlGIODIS == 0 && m.rst == 0 }

// report records a violation that has no caller to return to.
func (m *Model) report(err error) { sim.Report(m.host, err) }

// Step completes resets and queue enables, moves up to burst frames in each direction, and raises due interrupts.
func (m *Model) Step() bool {
	if m.rst > 0 {
		m.rst = 0
		m.resetDone()
	}
	m.eep, m.dma, m.phy.busy = 0, 0, 0
	if !m.master() {
		return false
	}
	busy := m.stepRX()
	busy = m.stepTX() || busy
	m.deliver()
	return busy
}

// burst bounds the work of one Step, in frames each way.
const burst = 64
