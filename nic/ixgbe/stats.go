package ixgbe

import (
	"fmt"
	"sync/atomic"

	"rebound/nic"
)

// counters accumulate the device's, which clear when they are read and are lost in a reset.
type counters struct {
	rxFrames, rxBytes, txFrames, txBytes uint64
	missed                               uint64
	resets                               uint64
	errors                               [len(errorCounters)]uint64
}

// errorCounters are the receive errors; all but ERRBC, MLFC and MRFC count frames.
var errorCounters = [...]struct {
	name  string
	reg   reg
	frame bool
}{
	{"CRCERRS", regCRCERRS, true}, {"ILLERRC", regILLERRC, true}, {"RLEC", regRLEC, true}, {"RUC", regRUC, true},
	{"RFC", regRFC, true}, {"ROC", regROC, true}, {"RJC", regRJC, true},
	{"ERRBC", regERRBC, false}, {"MLFC", regMLFC, false}, {"MRFC", regMRFC, false},
}

const fcs = 4 // octet counters include the CRC

// readStats moves the device's counters into ours. The pairs of octet counters latch when the low half is read (§8.2.3.23).
func (d *Device) readStats() {
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	s := &d.stats
	octets := func(low, high reg) uint64 {
		v := uint64(d.read(low))
		return v | uint64(d.read(high)&0xF)<<32
	}
	rx, tx := uint64(d.read(regGPRC)), uint64(d.read(regGPTC))
	s.rxFrames += rx
	s.txFrames += tx
	s.rxBytes += octets(regGORCL, regGORCH) - fcs*rx
	s.txBytes += octets(regGOTCL, regGOTCH) - fcs*tx
	for n := range 8 {
		s.missed += uint64(d.read(regRXMPC(n)))
	}
	for i := range d.queues {
		s.missed += uint64(d.read(regQPRDC(i)))
	}
	for i, c := range errorCounters {
		s.errors[i] += uint64(d.read(c.reg))
	}
}

// ReadStats reads the device's counters and the queues' own.
func (d *Device) ReadStats(out *nic.Stats) error {
	if d.gone() {
		return fmt.Errorf("ixgbe %s: %w: STATUS reads all ones", d.fn.Name(), nic.ErrGone)
	}
	d.readStats()
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	s := &d.stats
	*out = nic.Stats{
		RxFrames: s.rxFrames, RxBytes: s.rxBytes, TxFrames: s.txFrames, TxBytes: s.txBytes,
		RxDropped: s.missed, Resets: s.resets, Extra: make(map[string]uint64),
	}
	for i, c := range errorCounters {
		out.Extra[c.name] = s.errors[i]
		if c.frame {
			out.RxErrors += s.errors[i]
		}
	}
	for _, q := range d.queues {
		out.TxDropped += atomic.LoadUint64(&q.txFull)
		out.RxErrors += atomic.LoadUint64(&q.badWriteback)
	}
	return nil
}
