package efa

import (
	"errors"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// errNarrow means that the device has to be started again, with entries of 64 bytes.
var errNarrow = errors.New("the device refuses entries of 128 bytes")

// start brings the device from any state to polling.
func (d *Device) start(reason uint32) error {
	err := d.tryStart(reason)
	if errors.Is(err, errNarrow) {
		d.narrow = true
		d.card.FallBack("queue entries of 128 bytes", "entries of 64", "%v", err)
		err = d.tryStart(resetInit)
	}
	return err
}

// tryStart allocates all memory again: a device that was reset under traffic may not find old addresses.
func (d *Device) tryStart(reason uint32) error {
	if err := d.control.start(reason); err != nil {
		return err
	}
	if err := d.card.Stages(kit.Stage{Name: "create queues", Do: d.startQueues}); err != nil {
		return err
	}
	if err := d.peers.revive(d); err != nil {
		return err
	}
	d.counted = nil
	s, err := d.count()
	if err != nil {
		return err
	}
	d.counted = s.Extra
	for name, n := range map[string]uint64{"tx_bytes": s.TxBytes, "tx_pkts": s.TxFrames, "rx_bytes": s.RxBytes,
		"rx_pkts": s.RxFrames, "rx_drops": s.RxDropped} {
		d.counted[name] = n
	}
	return nil
}

func (d *Device) setMTU(most uint32) error {
	d.card.MTU = d.card.Options.MTU
	if d.card.MTU == 0 {
		d.card.MTU = int(min(most, uint32(limits.MaxMTU)))
	}
	if d.card.MTU < limits.MinMTU || d.card.MTU > int(min(most, uint32(limits.MaxMTU))) {
		return d.card.Errorf("messages of up to %d bytes: the device allows %d to %d", d.card.MTU, limits.MinMTU,
			min(most, uint32(limits.MaxMTU)))
	}
	return nil
}

// limits chooses sizes within the device's limits.
func (d *Device) limits() error {
	a, pairs := &d.queue, len(d.own.Services)
	queues := d.card.Options.Queues
	switch {
	case int(a.maxQP) < queues*pairs || int(a.maxCQ) < 2*queues:
		return d.card.Errorf("%d queues of %d queue pairs and two completion queues requested, the device has %d and %d", queues, pairs, a.maxQP, a.maxCQ)
	case a.subCQs == 0 || a.subCQs > maxSubs:
		return d.card.Errorf("%w: completion queues of %d rings, this driver knows 1 to %d", amazonadmin.ErrDevice,
			a.subCQs, maxSubs)
	case d.ring > int(a.maxRQDepth):
		return d.card.Errorf("ring size %d, the device takes up to %d", d.ring, a.maxRQDepth)
	case d.inline == 0 && a.maxLLQ == 0:
		return d.card.Errorf("the device has no low-latency queues: an EFA sends in no other way")
	}
	// Use an entry of 128 bytes if the device is known to accept it, and if its size is needed.
	const small, large = 64, 128
	d.entry = small
	push := d.inline
	if d.own.MaxInline > 0 {
		push = min(push, uint32(d.own.MaxInline))
	}
	if d.own.Push == "off" {
		push = 0
	}
	if d.narrow {
		push = min(push, small-metaSize)
	}
	if push > small-metaSize {
		d.entry = large
		push = min(push, large-metaSize)
	}
	depth := uint32(d.ring)
	for depth > a.maxSQDepth || a.maxLLQ != 0 && depth*d.entry > a.maxLLQ {
		depth /= 2
	}
	if depth < uint32(a.minSQDepth) {
		depth = 1
		for depth < uint32(a.minSQDepth) {
			depth *= 2
		}
	}
	if depth == 0 || depth > a.maxSQDepth || a.maxLLQ != 0 && depth*d.entry > a.maxLLQ {
		return d.card.Errorf("%w: send queues of %d to %d entries in %d bytes", amazonadmin.ErrDevice, a.minSQDepth,
			a.maxSQDepth, a.maxLLQ)
	}
	d.sqDepth, d.inline = depth, push
	most := func(n int) int { // entries of a completion ring for n completions
		size := 1
		for size < n {
			size *= 2
		}
		return size
	}
	if n := most(pairs * d.ring); n > int(a.maxCQDepth) {
		return d.card.Errorf("ring size %d for %d queue pairs needs a completion queue of %d entries, the device has up to %d", d.ring, pairs, n, a.maxCQDepth)
	}
	return nil
}

// endpoint is a queue pair's address for clients.
func (d *Device) endpoint(queue int, s nic.Service, number uint32) nic.Endpoint {
	return nic.Endpoint{Address: nic.Address{GID: d.gid, QPN: number, QKey: d.own.QKey}, Queue: queue, Service: s}
}
