package ixgbe

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
)

func (d *Device) read(r reg) uint32 { return d.bar.Read32(uint64(r)) }
func (d *Device) write(r reg, v uint32) {
	d.card.Trace.Register(true, "BAR0", uint32(r), uint64(v), 4)
	d.bar.Write32(uint64(r), v)
}
func (d *Device) set(r reg, bits uint32) {
	d.write(r, d.read(r)|bits)
}
func (d *Device) clear(r reg, bits uint32) {
	d.write(r, d.read(r)&^bits)
}

// leastLooks is the number of polls before a timeout counts (kit.Deadline).
const leastLooks = 100

// absence is the time for which registers must read all ones before the device counts as gone: during a reset they may
// do so, too.
const absence = 100 * time.Millisecond

// wait polls until the masked register reads want. All ones mean that the device has left the bus.
func (d *Device) wait(name string, r reg, mask, want uint32, limit time.Duration) error {
	var v uint32
	defer func() { d.card.Trace.Register(false, "BAR0", uint32(r), uint64(v), 4) }()
	end, seen := time.Now().Add(limit), time.Now()
	for looks := 0; ; time.Sleep(20 * time.Microsecond) {
		looks++
		now := time.Now()
		if v = d.read(r); v != ^uint32(0) {
			if v&mask == want {
				return nil
			}
			seen = now
		}
		if looks > leastLooks && (now.After(end) || now.Sub(seen) > absence) {
			break
		}
	}
	if v == ^uint32(0) && d.gone() {
		return d.card.Gone(name)
	}
	return d.card.Errorf("%w: %s (%#05x) is %#08x after %v, bits %#08x should be %#08x", nic.ErrTimeout, name,
		uint32(r), v, limit, mask, want)
}

func (d *Device) gone() bool { return d.read(regSTATUS) == ^uint32(0) }

// start brings the device from the state after reset to polling, in the order of §4.6.3.
func (d *Device) start() error {
	d.write(regCTRLEXT, d.read(regCTRLEXT)|ctrlExtNSDis|ctrlExtDrvLoad)
	d.counts() // §4.6.5: reading clears
	if err := d.card.Do("start the link", d.startLink); err != nil {
		return err
	}
	d.startFilters()
	return d.card.Stages(kit.Stage{Name: "start receiving", Do: d.startReceive},
		kit.Stage{Name: "start transmitting", Do: d.startTransmit})
}

// reset stops DMA, resets the function and waits until its EEPROM is loaded (§4.6.3.1, §4.6.3.2, §5.2.5.3.2).
func (d *Device) reset() error {
	if d.gone() {
		return d.card.Gone("STATUS")
	}
	d.maskInterrupts()
	d.write(regRXCTRL, 0)
	d.set(regCTRL, ctrlMasterDisable)
	// A device that does not quiesce in time is reset all the same, twice (§5.2.5.3.2).
	twice := d.wait("STATUS", regSTATUS, statusMasterEnabled, 0, 100*time.Millisecond) != nil
	if twice {
		d.discard()
	}
	for range 2 {
		if err := d.startReset(); err != nil {
			return err
		}
		if err := d.wait("CTRL", regCTRL, ctrlRST|ctrlLRST, 0, time.Second); err != nil {
			return err
		}
		time.Sleep(settle[d.family]) // §4.6.3.2 requests 10 ms, other drivers wait for longer
		if !twice {
			break
		}
	}
	d.maskInterrupts()
	if err := d.wait("EEC", regEEC, eecARD, eecARD, time.Second); err != nil {
		return err
	}
	return d.wait("RDRXCTL", regRDRXCTL, rdrxctlDMAIDone, rdrxctlDMAIDone, time.Second)
}

// discard drops the device's requests to the bus that are still pending, so that they do not hang the bus after the
// reset (Linux, FreeBSD and DPDK, ixgbe_clear_tx_pending). Loopback keeps frames from the wire meanwhile.
func (d *Device) discard() {
	frames, bus := d.read(regHLREG0), d.read(regGCREXT)
	d.write(regHLREG0, frames|hlregLoopback)
	d.write(regGCREXT, bus|gcrBuffersClear)
	d.read(regSTATUS) // the writes have arrived
	time.Sleep(20 * time.Microsecond)
	d.write(regGCREXT, bus)
	d.write(regHLREG0, frames)
}

// settle is the time without accesses after a reset (Linux, ixgbe_reset_hw_82599 and _X540).
var settle = map[family]time.Duration{i82599: 50 * time.Millisecond, x540: 100 * time.Millisecond}

// startReset starts a full reset. While the link is up it omits the link reset, which may reset the PHY under a
// management controller that uses it (Linux and DPDK, ixgbe_reset_hw_82599). On the X540 the driver must own the PHY
// meanwhile, and returns it to firmware at once, as Linux's driver does, which never resets the link there.
func (d *Device) startReset() error {
	if d.family != x540 {
		bits := uint32(ctrlRST | ctrlLRST)
		if d.read(regLINKS)&linksUp != 0 {
			bits = ctrlRST
		}
		d.set(regCTRL, bits)
		return nil
	}
	own := d.phySync()
	if err := d.acquireSync(own); err != nil {
		return err
	}
	d.set(regCTRL, ctrlRST)
	d.read(regSTATUS) // the write has arrived
	d.releaseSync(own)
	return nil
}

func (d *Device) maskInterrupts() {
	d.write(regEIMC, 0x7FFFFFFF)
	for n := range 2 {
		d.write(regEIMCEX(n), ^uint32(0))
	}
}

// startFilters accepts frames for us: our address, broadcast, and the multicast groups of neighbour discovery (§4.6.7,
// §7.1.1).
func (d *Device) startFilters() {
	mac := d.card.MAC
	d.write(regRAL(0), binary.LittleEndian.Uint32(mac[:4]))
	d.write(regRAH(0), uint32(binary.LittleEndian.Uint16(mac[4:]))|rahAV)
	for n := 1; n < 16; n++ {
		d.write(regRAL(n), 0)
		d.write(regRAH(n), 0)
	}
	var table [128]uint32
	for _, g := range d.groups {
		v := uint32(g[4])>>4 | uint32(g[5])<<4 // address bits 47:36, MCSTCTRL.MO = 0
		table[v>>5] |= 1 << (v & 31)
	}
	for n, v := range table {
		d.write(regMTA(n), v)
	}
	d.write(regMCSTCTRL, mcstctrlMFE)
	fctrl := uint32(fctrlBAM)
	if d.allMulticast || d.own.NoSteering {
		fctrl |= fctrlMPE
	}
	if d.own.NoSteering {
		fctrl |= fctrlUPE
	}
	d.write(regFCTRL, fctrl)
	d.clear(regVLNCTRL, vlnctrlVFE)
}

// startReceive programs the receive unit and its queues (§4.6.7).
func (d *Device) startReceive() error {
	d.write(regRXCTRL, 0)
	d.write(regRXPBSIZE(0), d.family.rxBuffer()) // one packet buffer of the whole memory
	for n := 1; n < 8; n++ {
		d.write(regRXPBSIZE(n), 0)
	}
	d.set(regHLREG0, hlregTxCRCEn|hlregRxCRCStrip|hlregTxPadEn)
	if frame := d.card.MaxFrame() + 4; frame > 1518 {
		d.set(regHLREG0, hlregJumboEn)
		d.write(regMAXFRS, uint32(frame)<<16)
	} else {
		d.clear(regHLREG0, hlregJumboEn)
	}
	d.write(regRDRXCTL, d.read(regRDRXCTL)&^rdrxctlRSCFrst|rdrxctlCRCStrip|rdrxctlRSCACKC|rdrxctlFCOEWrFix)
	d.set(regRFCTL, rfctlRSCDis)
	d.startRSS()
	for i, q := range d.queues {
		q.reset()
		d.write(regRDBAL(i), uint32(q.rxIOVA))
		d.write(regRDBAH(i), uint32(q.rxIOVA>>32))
		d.write(regRDLEN(i), (q.mask+1)*descSize)
		d.write(regSRRCTL(i), q.bufSize>>10|srrctlOneBuf|srrctlDropEn)
		d.write(regRSCCTL(i), 0)
		d.clear(regDCARXCTRL(i), dcarxStatus|dcarxData|dcarxHeader)
		d.clear(regRXDCTL(i), rxdctlVME)
		d.set(regRXDCTL(i), rxdctlEnable)
		if err := d.wait(fmt.Sprintf("RXDCTL(%d)", i), regRXDCTL(i), rxdctlEnable, rxdctlEnable,
			time.Second); err != nil {
			return err
		}
		d.write(regRDT(i), q.mask) // all slots but one (§7.1.9)
	}
	// §4.6.7: the receive data path is halted while RXEN changes.
	d.set(regSECRXCTRL, secrxRxDis)
	if err := d.wait("SECRXSTAT", regSECRXSTAT, secrxReady, secrxReady, time.Second); err != nil {
		return err
	}
	d.write(regRXCTRL, rxctrlRXEN)
	d.clear(regSECRXCTRL, secrxRxDis)
	return nil
}

// startRSS spreads flows over the queues by L3 and, for UDP, L4 source and destination (§7.1.2.8). The key makes both
// directions of a flow hash alike.
func (d *Device) startRSS() {
	if len(d.queues) == 1 || d.own.NoSteering {
		d.write(regMRQC, 0)
		return
	}
	for n := range 10 {
		d.write(regRSSRK(n), 0x6D5A6D5A)
	}
	for n := range 32 {
		var v uint32
		for i := range 4 {
			v |= uint32((4*n+i)%len(d.queues)) << (8 * i)
		}
		d.write(regRETA(n), v)
	}
	d.write(regRXCSUM, rxcsumPCSD)
	d.write(regMRQC, mrqcRSS|mrqcIPv4|mrqcIPv6|mrqcIPv4UDP|mrqcIPv6UDP)
}

// startTransmit programs the transmit unit and its queues (§4.6.8).
func (d *Device) startTransmit() error {
	d.set(regRTTDCS, rttdcsArbDis)
	d.write(regMTQC, 0)
	d.write(regDTXMXSZRQ, 0xFFF)
	d.write(regTXPBSIZE(0), 160<<10)
	d.write(regTXPBTHRESH(0), 160-uint32(d.card.MaxFrame()+1023)>>10) // KB: the packet buffer less the longest frame
	for n := 1; n < 8; n++ {
		d.write(regTXPBSIZE(n), 0)
		d.write(regTXPBTHRESH(n), 0)
	}
	d.clear(regRTTDCS, rttdcsArbDis)
	d.set(regDMATXCTL, dmatxctlTE)
	for i, q := range d.queues {
		d.write(regTDBAL(i), uint32(q.txIOVA))
		d.write(regTDBAH(i), uint32(q.txIOVA>>32))
		d.write(regTDLEN(i), (q.mask+1)*descSize)
		d.clear(regDCATXCTRL(i), dcatxStatus)
		d.write(regTDH(i), 0)
		d.write(regTDT(i), 0)
		d.write(regTXDCTL(i), txdctlPTHRESH|txdctlHTHRESH|txdctlWTHRESH|txdctlEnable)
		if err := d.wait(fmt.Sprintf("TXDCTL(%d)", i), regTXDCTL(i), txdctlEnable, txdctlEnable,
			time.Second); err != nil {
			return err
		}
	}
	return nil
}
