package efa

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// startQueues creates the objects that all queue pairs share, followed by the queues.
func (d *Device) startQueues() error {
	if err := d.control.protect(); err != nil {
		return err
	}
	pairs := len(d.own.Services)
	slots := pairs * (d.ring + sendSlots)
	stride := kit.Stride(room + d.card.MTU)
	memory, key, err := d.control.register(d.card.Options.Queues * slots * int(stride))
	if err != nil {
		return err
	}
	if d.queues == nil {
		for range d.card.Options.Queues {
			d.queues = append(d.queues, &Queue{})
			d.sends, d.looks = append(d.sends, make([]uint32, slots)), append(d.looks, make([]uint16, slots))
		}
		d.missed = make([][maxPairs]kit.Progress, len(d.queues))
	}
	var endpoints []nic.Endpoint
	d.trials = make([]trials, len(d.queues))
	for i, q := range d.queues {
		q.buf, q.iova = unsafe.Add(kit.Pointer(memory), i*slots*int(stride)), memory.IOVA+uint64(i*slots)*uint64(stride)
		q.stride, q.size, q.key = stride, uint32(d.card.MTU), uint64(key)
		if err := d.startQueue(q); err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
		d.trials[i] = d.measure(q)
		for j, s := range d.own.Services {
			endpoints = append(endpoints, d.endpoint(i, s, q.pairs[j].number))
		}
	}
	d.endpoints.Store(&endpoints)
	return nil
}

func (d *Device) startQueue(q *Queue) error {
	pairs := len(d.own.Services)
	q.npairs, q.pairShift = uint32(pairs), uint32(bits.TrailingZeros(uint(d.ring)))
	q.slots = uint32(pairs * d.ring)
	q.all = q.slots + uint32(pairs*sendSlots)
	q.word = kit.Words(int(q.all))
	q.qkey = uint64(d.own.QKey)
	q.entry, q.maxInline = d.entry, d.inline
	q.sqMask, q.sqShift = d.sqDepth-1, uint32(bits.TrailingZeros32(d.sqDepth))
	q.burst = d.sqDepth
	if d.queue.minSQDepth != 0 { // the device then holds one entry fewer than the ring size
		q.burst = d.sqDepth - 1
	}
	if batch := uint32(d.queue.maxBatch) * 64 / d.entry; d.queue.maxBatch != 0 {
		if batch == 0 {
			return d.card.Errorf("%w: bursts of %d bytes hold no entry of %d", amazonadmin.ErrDevice,
				64*int(d.queue.maxBatch), d.entry)
		}
		q.burst = min(q.burst, batch)
	}
	q.scratch = unsafe.Pointer(new([128]byte)) // zeros after the bytes that transmit writes
	rx, err := d.createCQ("create receive CQ", pairs*d.ring, rxCQE, q.rx[:])
	if err != nil {
		return err
	}
	q.rxSubs, q.rxMask, q.rxShift, q.rxCQDB = rx.subs, rx.depth-1, uint32(bits.TrailingZeros32(rx.depth)), rx.doorbell
	tx, err := d.createCQ("create send CQ", pairs*int(d.sqDepth)+refillBatch, txCQE, q.tx[:])
	if err != nil {
		return err
	}
	q.txSubs, q.txMask, q.txShift, q.txCQDB = tx.subs, tx.depth-1, uint32(bits.TrailingZeros32(tx.depth)), tx.doorbell
	for i, s := range d.own.Services {
		if err := d.createPair(&q.pairs[i], s, rx.index, tx.index); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
	}
	q.reset()
	q.fill()
	return nil
}

// array returns zeroed memory for n elements, which Poll reads without bounds checks.
func array(n int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(make([]uint16, n))) }

type completionQueue struct {
	index       uint32
	subs, depth uint32
	doorbell    *uint32
}

// createCQ creates a completion queue for n outstanding completions in each of its rings, and sets rings.
func (d *Device) createCQ(name string, n, entry int, rings []ring) (cq completionQueue, err error) {
	cq.subs, cq.depth = uint32(d.queue.subCQs), 1
	for cq.depth < uint32(n) {
		cq.depth *= 2
	}
	made, err := d.control.createCQ(name, cq.depth, entry)
	if err != nil {
		return cq, err
	}
	for i := range cq.subs {
		rings[i] = ring{at: unsafe.Add(made.at, i*cq.depth*uint32(entry))}
	}
	cq.index, cq.doorbell = made.index, made.doorbell
	return cq, nil
}

// createPair creates a queue pair and moves it to the state in which it sends and receives.
func (d *Device) createPair(p *pair, s nic.Service, rx, tx uint32) error {
	*p = pair{stamp: s.STAMP(), free: array(d.ring), sendFree: array(sendSlots)}
	if !s.Reliable() {
		p.skip = grh
	}
	return d.control.createQP(p, s, rx, tx)
}

// limitsRetries reports whether the queue pair's rnr_retry is set, to 0: a message to a receiver without a buffer fails
// at once. The device would otherwise send it again indefinitely (the default of SRD: EFA_RNR_INFINITE_RETRY in
// libfabric's prov/efa/src/efa_base_ep.h), and a client without buffers would fill the send queue of all.
func (d *Device) limitsRetries(s nic.Service) bool {
	return s.Reliable() && d.attr.caps&capRNRRetry != 0
}
