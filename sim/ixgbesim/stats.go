package ixgbesim

import "sync/atomic"

// Counters are the port's counters since it was created. Resets and reads do not clear them, so they are the reference
// for a driver's statistics. Bytes are without FCS.
type Counters struct {
	RxFrames, RxBytes        uint64 // written to host memory
	RxBroadcast, RxMulticast uint64 // past the filters
	RxMissed                 uint64 // no room in the packet buffer
	RxNoDesc                 uint64 // dropped for lack of a descriptor or a queue
	RxFiltered, RxOversize   uint64
	RxPause, TxPause         uint64
	TxFrames, TxBytes        uint64 // put on the wire, pause frames not included
	TxPadding                uint64 // bytes among them that the device added
	RxQueue, TxQueue         [queues]uint64
}

type counters struct {
	rxFrames, rxBytes, rxBroadcast, rxMulticast, rxMissed atomic.Uint64
	rxNoDesc, rxFiltered, rxOversize, rxPause             atomic.Uint64
	txFrames, txBytes, txPadding, txPause                 atomic.Uint64
	rxQueue, txQueue                                      [queues]atomic.Uint64
}

// Counters may be called at any time from any goroutine.
func (m *Model) Counters() (c Counters) {
	k := &m.count
	c = Counters{
		RxFrames: k.rxFrames.Load(), RxBytes: k.rxBytes.Load(), RxBroadcast: k.rxBroadcast.Load(),
		RxMulticast: k.rxMulticast.Load(), RxMissed: k.rxMissed.Load(), RxNoDesc: k.rxNoDesc.Load(),
		RxFiltered: k.rxFiltered.Load(), RxOversize: k.rxOversize.Load(), RxPause: k.rxPause.Load(),
		TxFrames: k.txFrames.Load(), TxBytes: k.txBytes.Load(), TxPadding: k.txPadding.Load(),
		TxPause: k.txPause.Load(),
	}
	for i := range queues {
		c.RxQueue[i], c.TxQueue[i] = k.rxQueue[i].Load(), k.txQueue[i].Load()
	}
	return c
}

// add increments a statistics register; it saturates (§8.2.3.23).
func (m *Model) add(r reg, n int) {
	if v := m.val[r/4]; v > all-uint32(n) {
		m.val[r/4] = all
	} else {
		m.val[r/4] = v + uint32(n)
	}
}

// add64 increments a pair of registers of 36 bits.
func (m *Model) add64(r reg, n int) {
	v := uint64(m.val[r/4]) | uint64(m.val[r/4+1])<<32
	v += uint64(n)
	m.val[r/4], m.val[r/4+1] = uint32(v), uint32(v>>32)&0xf
}
