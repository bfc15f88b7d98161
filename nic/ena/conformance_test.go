package ena_test

import (
	"testing"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/ena"
	"rebound/nic/nictest"
	"rebound/nic/pci"
	"rebound/nic/sim"
	"rebound/nic/sim/enasim"
)

var mac = [6]byte{2, 0x52, 0x62, 0, 0, 1} // what the suite asks for

func harness(o enasim.Options) nictest.Harness {
	o.MAC = mac
	return nictest.Harness{
		Model: func() sim.Model { return enasim.New(o) },
		Open:  func(fn pci.Function, o nic.Options) (nic.Device, error) { return ena.Open(fn, o) },
		Poll:  func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*ena.Device).Queue(q).Poll(r) },
		Ring:  128, Queues: 4, MTU: 9000, WriteBack: 16,
	}
}

// TestConformance runs the suite on each way to transmit, and on a device that answers as late and as disordered as it may.
func TestConformance(t *testing.T) {
	for name, o := range map[string]enasim.Options{
		"pushed": {},
		"wide":   {PreferWide: true},
		"host":   {NoLLQ: true, NoMemBAR: true, BasicQueues: true, NoMetrics: true, Device: 0x0ec2},
		"odd": {NoMeta: true, Burst: 1024, NoReadless: true, RxOffset: 2, AdminOutOfOrder: true, TxOutOfOrder: true,
			RxOutOfOrder: true, Device: 0xec21},
	} {
		t.Run(name, func(t *testing.T) { nictest.Run(t, harness(o)) })
	}
}
