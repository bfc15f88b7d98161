package mlx5

import (
	"bytes"
	"log/slog"
	"math/bits"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/check"
)

// proofDevice completes the empty WQEs of a queue.
type proofDevice struct {
	*benchQueue
	reads  bool // BlueFlame, and not only doorbells
	misses int  // pushes that it does not read, though it reads others
	pauses int  // from this many pushes until some time after the next doorbell
	late   bool // after a pause, it still reads what was pushed before it
	most   int  // it completes so many, 0 for all
	format uint32
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
	for i := uint32(0); !stop.Load() && (d.most == 0 || int(i) < d.most); i++ {
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
	atomic.StoreUint32(&c.counterOwn, uint32(bits.ReverseBytes16(uint16(i)))|d.done>>d.txShift&1<<24|
		d.format<<cqeFormat)
	d.done++
}

// A device that pauses, as a virtual one does when its host is busy, does not count as one that reads no BlueFlame.
// Only one that reads most pushes still has it.
func TestPushProof(t *testing.T) {
	defer func(d time.Duration) { proofMiss = d }(proofMiss)
	proofMiss = 20 * time.Millisecond
	for name, c := range map[string]struct {
		device       proofDevice
		pushed, used int
		why          string // there is no BlueFlame any more
		err          string
	}{
		"reads BlueFlame":                {device: proofDevice{reads: true}, pushed: 16, used: 16},
		"reads BlueFlame, pauses":        {device: proofDevice{reads: true, pauses: 5}, pushed: 16, used: 16},
		"reads BlueFlame late":           {device: proofDevice{reads: true, pauses: 5, late: true}, pushed: 16, used: 16},
		"reads BlueFlame, pauses always": {device: proofDevice{reads: true, pauses: 1000}, why: "queue 0: the device paused in each of 64 attempts"},
		"misses some":                    {device: proofDevice{reads: true, misses: 6}, pushed: 16, used: 11},
		"misses most":                    {device: proofDevice{reads: true, misses: 9}, pushed: 16, used: 8, why: "queue 0: of 16 WQEs pushed the device took 8"},
		"reads no BlueFlame":             {device: proofDevice{}, pushed: 3, why: "queue 0: of 3 WQEs pushed the device took 0"},
		"reads no BlueFlame, pauses":     {device: proofDevice{pauses: 2}, pushed: 3, why: "queue 0: of 3 WQEs pushed"},
		"does nothing":                   {device: proofDevice{most: -1}, err: "queue 0: device did not answer in time: the send queue does not move: no completion within 2s"},
		"stops after the pushes":         {device: proofDevice{reads: true, most: 16}, pushed: 16, used: 16, err: "the send queue does not move"},
		"fails a push":                   {device: proofDevice{reads: true, format: cqeOpReqErr << 2}, err: "send completion with error"},
		"fails a doorbell":               {device: proofDevice{format: cqeOpReqErr << 2}, err: "send completion with error"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := c.device
				p.benchQueue = newBenchQueue(t, make([]byte, 64), true)
				var stop atomic.Bool
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					p.run(&stop)
				}()
				defer func() { stop.Store(true); <-ended }()
				var log bytes.Buffer
				d := &Device{queues: []*Queue{p.Queue}}
				d.card.Log = slog.New(slog.NewTextHandler(&log, nil))
				if err := d.provePush(); err != nil || c.err != "" {
					check.Fails(t, "provePush", err, nil, c.err)
				}
				check.Equal(t, [2]int{p.proof.pushed, p.proof.used}, [2]int{c.pushed, c.used}, "pushed and used: %d")
				check.Equal(t, p.bf != nil, c.why == "", "uses BlueFlame: %t")
				rest := slices.Concat(p.flame[wqebb:256], p.flame[256+wqebb:])
				check.Same(t, rest, make([]byte, len(rest)), "beside a block, the register has % x")
				check.Contains(t, log.String(), c.why)
			})
		})
	}
}
