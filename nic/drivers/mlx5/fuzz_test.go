package mlx5

import (
	"bytes"
	"testing"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// With arbitrary bytes in the completion rings, a pass ends, accesses only its own memory, and continues or reports the
// reason for stopping.
func FuzzCompletions(f *testing.F) {
	good := cqe{byteCount: swap(64), counterOwn: 2 << 4 << 24}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&good)), cqeSize)
	f.Add(bytes.Repeat(b, 3), bytes.Repeat([]byte{0}, 128))
	f.Add(b, bytes.Repeat([]byte{0xD0}, 64))
	f.Add(append(bytes.Repeat([]byte{0xFF}, 63), 0x20), []byte{1})
	f.Fuzz(func(t *testing.T, rx, tx []byte) {
		q, r := newBenchQueue(t, rig.Echo(64), true), rig.NewResponder(t)
		copy(unsafe.Slice((*byte)(q.rxCQ), 512*cqeSize), rx)
		copy(unsafe.Slice((*byte)(q.txCQ), 2048*cqeSize), tx)
		answered := 0
		for range 20 {
			answered += q.Poll(r)
		}
		if q.fault.Load() != faultNone && q.faultText() == "" {
			t.Error("a queue that stopped does not say why")
		}
		if answered > 512 || q.txTail-q.txDone > q.txMask+1 || q.rxNext-q.freed > q.mask+1 {
			t.Errorf("%d replies; blocks %d to %d; slots %d to %d", answered, q.txDone, q.txTail, q.freed, q.rxNext)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add([]byte{0}, uint16(0), uint8(0))
	f.Add([]byte{0}, uint16(0), uint8(254))
	f.Add([]byte{0xFF, 0xFF, 0xFF, 0xFF}, uint16(0x4C), uint8(4))
	f.Add([]byte{0, 0, 0x7F, 0xFF, 0xFF, 0xFF}, uint16(8), uint8(1))
	pool, window := new(dma.Pool), make([]byte, 1<<20)
	f.Fuzz(func(t *testing.T, with []byte, at uint16, command uint8) {
		defer func(d time.Duration) { reclaimLimit = d }(reclaimLimit)
		reclaimLimit = 0
		fw := newFirmwareOn(t, window)
		fw.Pool = pool
		n := uint8(0)
		fw.answer = func(in message, size int) message {
			out := working(in, size)
			if n++; n-1 == command || command == 0xFF {
				copy(out[min(int(at), len(out)):], with)
			}
			return out
		}
		d := fw.device()
		d.card.Options = nic.Options{Queues: 2, RingSize: 64}
		d.pages.limit = 1 << 10
		err := d.commands.start(d.card.Arena)
		for _, stage := range []func() error{d.enable, d.negotiate, d.initialize, d.make.common, d.startVport,
			d.startQueues, d.startSteering, d.startPort} {
			if err == nil {
				err = stage()
			}
		}
		if n <= command && command != 0xFF && err != nil {
			t.Errorf("no answer was spoiled: %v", err)
		}
		d.teardown()
	})
}
