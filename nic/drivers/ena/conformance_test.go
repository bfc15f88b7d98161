package ena_test

import (
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/ena"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
)

var mac = [6]byte{2, 0x52, 0x62, 0, 0, 1} // the address that the suite uses

func harness(o enasim.Options) nictest.Harness {
	o.MAC, o.Queues = mac, 16
	return nictest.Harness{
		Model: func() sim.Model { return enasim.New(o) },
		Open:  func(fn pci.Function, o nic.Options) (nic.Device, error) { return ena.Open(fn, o, ena.Options{}) },
		Poll:  func(d nic.Device, q int, r *fastpath.Responder) int { return d.(*ena.Device).Queue(q).Poll(r) },
		Ring:  128, Queues: 4, Most: 16, MTU: 9000, WriteBack: 16,
		Queue:     func(d nic.Device, q int) any { return d.(*ena.Device).Queue(q) },
		Registers: []string{"rxDB", "txDB", "rxHeadDB", "txHeadDB", "llq"},
	}
}

// TestConformance runs the suite on each way to transmit, and on a device that answers as late and as disordered as it
// may.
func TestConformance(t *testing.T) {
	for name, o := range map[string]enasim.Options{
		"llq256": {},
		"llq128": {LLQSizes: 1, Device: 0x1ec2},
		"host":   {NoLLQ: true, NoMemBAR: true, BasicQueues: true, NoMetrics: true, Device: 0x0ec2},
		"odd": {NoMeta: true, Burst: 1024, NoReadless: true, RxOffset: 2, AdminOutOfOrder: true, TxOutOfOrder: true,
			RxOutOfOrder: true, Device: 0xec21},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "llq128" {
				needs.Long(t)
			}
			h := harness(o)
			if name != "llq256" {
				h.Lacks = map[string]string{}
				for _, slow := range []string{"removed while opening", "lost write", "stalled while opening", "reset"} {
					h.Lacks[slow] = "it waits for seconds, and differs in nothing from the device that pushes"
				}
			}
			nictest.Run(t, h)
		})
	}
}

func TestCost(t *testing.T) {
	const n, refill = 1024, 16
	for _, c := range []struct {
		name  string
		o     enasim.Options
		limit int    // bytes that are pushed whole
		push  uint64 // bursts of 64 bytes for each reply
	}{{"llq 128", enasim.Options{LLQSizes: 1}, 96, 2}, {"llq 256", enasim.Options{}, 224, 4},
		{"host", enasim.Options{NoLLQ: true}, -1, 0}} {
		for _, size := range needs.Each(3, []int{60, 64, 96, 97, 98, 224, 225, 1514}) {
			h := harness(c.o)
			h.Ring = 512 // of shorter rings smaller lots are posted together
			k := nictest.Cost(t, h, size, n, 1)
			// Each reply costs: the entry and its doorbell; received payload and completion, transmit completion; a
			// read of the payload unless it was pushed, and of the descriptor if it is in host memory. Receive buffers
			// are returned 16 at a time with a doorbell; the model reads their descriptors when its cache of 64 is half
			// empty, up to the end of the ring.
			reads := uint64(0)
			if size > c.limit {
				reads += n
			}
			if c.limit < 0 {
				reads += n
			}
			low, high := reads+n/64, reads+2*n/32
			t.Logf("%s, %d bytes: %d replies cost %+v", c.name, size, n, k)
			// The watchdog runs in parallel, and acknowledges a keep-alive once a second: the event and its doorbell.
			const events = 8
			writes := n*(c.push+1) + n/refill
			if k.MMIORead != 0 || k.MMIOWrite < writes || k.MMIOWrite > writes+events || k.DMAWrite < 3*n ||
				k.DMAWrite > 3*n+events || k.DMARead < low || k.DMARead > high {
				t.Errorf("%s, %d bytes: %d replies cost %+v; DMA reads %d to %d expected", c.name, size, n, k, low,
					high)
			}
		}
	}
}

func TestProgrammed(t *testing.T) {
	for name, o := range map[string]enasim.Options{
		"push": {}, "host": {NoLLQ: true, NoMemBAR: true, BasicQueues: true, NoMetrics: true},
		"odd": {NoMeta: true, Burst: 1024, NoReadless: true, RxOffset: 2, LLQSizes: 1},
	} {
		nictest.Programmed(t, harness(o), "testdata/"+name+".txt")
	}
	nictest.Probed(t, harness(enasim.Options{}), "testdata/probe.txt")
}
