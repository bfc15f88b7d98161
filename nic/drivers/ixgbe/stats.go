package ixgbe

import (
	"github.com/rebound-nic/rebound/nic"
)

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

const (
	fcs    = 4       // octet counters include the CRC
	missed = "RXMPC" // frames that found no room in the packet buffer
)

// count moves the device's counters, which reading clears, into the totals.
func (d *Device) count() (nic.Stats, error) {
	if d.gone() {
		return nic.Stats{}, d.card.Gone("STATUS")
	}
	if s, whole := d.counts(); whole {
		d.card.Totals.Add(s)
	}
	return nic.Stats{}, nil
}

// counts reads the device's counters. whole is false if the device vanished meanwhile, or is being reset by another
// process: it then returns all ones, which no counter reaches between two reads.
func (d *Device) counts() (s nic.Stats, whole bool) {
	whole = true
	count := func(r reg) uint64 {
		v := d.read(r)
		whole = whole && v != ^uint32(0)
		return uint64(v)
	}
	octets := func(low, high reg) uint64 { // the pair latches when its low half is read (§8.2.3.23)
		v := count(low)
		return v | count(high)&0xF<<32
	}
	s = nic.Stats{RxFrames: count(regGPRC), TxFrames: count(regGPTC), Extra: map[string]uint64{}}
	s.RxBytes = octets(regGORCL, regGORCH) - fcs*s.RxFrames
	s.TxBytes = octets(regGOTCL, regGOTCH) - fcs*s.TxFrames
	for n := range 8 {
		s.RxDropped += count(regRXMPC(n))
	}
	s.Extra[missed] = s.RxDropped
	for i := range d.queues {
		s.RxDropped += count(regQPRDC(i))
	}
	for _, c := range errorCounters {
		n := count(c.reg)
		s.Extra[c.name] = n
		if c.frame {
			s.RxErrors += n
		}
	}
	return s, whole
}

// ReadStats implements nic.Device.
func (d *Device) ReadStats(out *nic.Stats) error { return d.card.ReadStats(out) }

// stats reads the device's counters and the queues' own.
func (d *Device) stats(out *nic.Stats) error {
	var err error
	if *out, err = d.card.Stats(); err != nil {
		return err
	}
	// GPRC has the missed frames, too (an erratum, which Linux and DPDK work around). RXMPC is read later, and may have
	// more.
	out.RxFrames -= min(out.RxFrames, out.Extra[missed])
	for _, q := range d.queues {
		out.TxDropped += q.txFull.Load()
		out.RxErrors += q.badWriteback.Load()
	}
	return nil
}
