package mlx5

import (
	"math/bits"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/must"
)

// proofDevice completes the empty WQEs of a queue.
type proofDevice struct {
	*benchQueue
	reads  bool // BlueFlame, and not only doorbells
	misses int  // pushes that it does not read, though it reads others
	pauses int  // from this many pushes until some time after the next doorbell
	late   bool // after a pause, it still reads what was pushed before it
	done   uint32
}

func (d *proofDevice) run(stop *atomic.Bool) {
	bell := func(i uint32) (pushed, rung bool) {
		for want := control(wqeNop, i, d.sqn, 1); !stop.Load(); time.Sleep(10 * time.Microsecond) {
			if atomic.LoadUint64(&d.doorbell) == want {
				return false, true
			}
			for half := 0; half < 512; half += 256 {
				if atomic.LoadUint64((*uint64)(unsafe.Pointer(&d.flame[half]))) == want {
					return true, false
				}
			}
		}
		return false, false
	}
	for i := uint32(0); !stop.Load(); i++ {
		pushed, rung := bell(i)
		if pushed && d.pauses > 0 {
			d.pauses--
			bell(i + 1)
			time.Sleep(proofMiss / 4)
			pushed = d.late
		}
		if pushed && d.misses > 0 {
			d.misses--
			pushed = i == 0
		}
		if pushed && d.reads || rung {
			d.complete(i)
		}
	}
}

func (d *proofDevice) complete(i uint32) {
	c := d.completion(d.txCQ, d.done&d.txMask)
	atomic.StoreUint32(&c.counterOwn, uint32(bits.ReverseBytes16(uint16(i)))|d.done>>d.txShift&1<<24)
	d.done++
}

// A device that pauses, as a virtual one does when its host is busy, does not count as one that reads no BlueFlame.
func TestPausesAreNoMisses(t *testing.T) {
	defer func(d time.Duration) { proofMiss = d }(proofMiss)
	proofMiss = 20 * time.Millisecond
	for name, c := range map[string]struct {
		device       proofDevice
		pushed, used int
		holds        bool
	}{
		"reads BlueFlame":                  {proofDevice{reads: true}, 16, 16, true},
		"reads BlueFlame, pauses":          {proofDevice{reads: true, pauses: 5}, 16, 16, true},
		"reads BlueFlame late":             {proofDevice{reads: true, pauses: 5, late: true}, 16, 16, true},
		"reads BlueFlame, pauses always":   {proofDevice{reads: true, pauses: 1000}, 0, 0, false},
		"misses some":                      {proofDevice{reads: true, misses: 6}, 16, 11, true},
		"misses most":                      {proofDevice{reads: true, misses: 9}, 16, 8, false},
		"reads no BlueFlame":               {proofDevice{}, 3, 0, false},
		"reads no BlueFlame, pauses twice": {proofDevice{pauses: 2}, 3, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := c.device
				d.benchQueue = newBenchQueue(t, make([]byte, 64), true)
				var stop atomic.Bool
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					d.run(&stop)
				}()
				defer func() { stop.Store(true); <-ended }()
				must.OK(t, d.prove())
				if p := &d.proof; p.used != c.used || p.pushed != c.pushed || p.holds() != c.holds {
					t.Errorf("of %d WQEs pushed the device took %d, proven: %v; want %d, %d, %v", p.pushed, p.used,
						p.holds(), c.pushed, c.used, c.holds)
				}
			})
		})
	}
}
