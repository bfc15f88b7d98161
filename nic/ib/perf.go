package ib

import "encoding/binary"

// Performance management: the counters of a port (IBA vol. 1 §16.1.3.5, §16.1.4.11).
const (
	classPerf Class = 0x04

	AttrPortCounters         Attribute = 0x0012
	AttrPortCountersExtended Attribute = 0x001D
)

// PortCounters counts packets and bytes (payload and headers, all lanes) that a port received and sent, including
// management.
type PortCounters struct {
	RxPackets, RxBytes, TxPackets, TxBytes uint64
	// Only in counters of the first kind.
	RxErrors, TxDiscards, RxSwitchErrors, VL15Dropped, Symbols, LinkDowned uint64
}

func perfHeader(a Attribute, tid uint64) header {
	return header{Class: classPerf, Version: 1, Method: Get, TID: tid, Attribute: a}
}

// QueryCounters returns the request for one of the two kinds of port counters.
func QueryCounters(a Attribute, port uint8, tid uint64) []byte {
	b := make([]byte, MADSize)
	perfHeader(a, tid).put(b)
	b[perfData+1] = port
	return b
}

const perfData = 64

// ParseCounters parses the answer to QueryCounters. Counters of the first kind have 32 bits or fewer and stick at their
// maximum; those of the second kind have 64.
func ParseCounters(b []byte, a Attribute, tid uint64) (c PortCounters, err error) {
	if err := perfHeader(a, tid).answers(b); err != nil {
		return c, err
	}
	d := b[perfData:]
	u16 := func(at int) uint64 { return uint64(binary.BigEndian.Uint16(d[at:])) }
	u32 := func(at int) uint64 { return uint64(binary.BigEndian.Uint32(d[at:])) }
	const word = 4 // the unit of data counters
	if a == AttrPortCountersExtended {
		u64 := func(at int) uint64 { return binary.BigEndian.Uint64(d[at:]) }
		return PortCounters{TxBytes: word * u64(8), RxBytes: word * u64(16), TxPackets: u64(24), RxPackets: u64(32)},
			nil
	}
	return PortCounters{
		Symbols: u16(4), LinkDowned: uint64(d[7]), RxErrors: u16(8), RxSwitchErrors: u16(12), TxDiscards: u16(14),
		VL15Dropped: u16(22),
		TxBytes:     word * u32(24), RxBytes: word * u32(28), TxPackets: u32(32), RxPackets: u32(36),
	}, nil
}
