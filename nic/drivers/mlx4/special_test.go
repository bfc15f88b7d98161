package mlx4

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/proof/must"
)

// After an interrupted send, the next one waits for it, and does not mistake its completion for its own.
func TestSendAfterAnInterruptedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var db, ci uint32
		completions := make([]uint64, gsiCQ*cqeSize/8)
		emptyCQ(unsafe.Pointer(&completions[0]), gsiCQ)
		blocks := make([]uint64, gsiBlocks*txbb/8)
		s := &subnet{halt: make(chan struct{})}
		g := &specialQP{d: &Device{subnet: s}, number: 1, sends: slowCQ{mem: unsafe.Pointer(&completions[0]), ci: &ci},
			sq: unsafe.Pointer(&blocks[0]), sent: make([]byte, ib.MADSize), db: &db}
		executed := 0
		execute := func() { // as the device does
			atomic.StoreUint64(&completions[executed*cqeSize/8+3], uint64(kindSend|wqeSend)<<cqeKind)
			executed++
		}
		posted := func(n uint32) bool { return *g.block(gsiSend * n)&swap(stamp) == swap(wqeSend) }

		close(s.halt)
		must.Equal(t, g.send(make([]byte, ib.MADSize), ib.Datagram{}), errStopped, "a send that is interrupted: %v")
		s.halt = make(chan struct{})
		var result error
		ended := false
		go func() {
			result = g.send(make([]byte, ib.MADSize), ib.Datagram{})
			ended = true
		}()
		second := func(when string, returned, isPosted bool) {
			time.Sleep(10 * commandLook)
			if synctest.Wait(); ended != returned || posted(1) != isPosted || result != nil {
				t.Fatalf("%s, the second has returned %v (%v), is posted: %v", when, ended, result, posted(1))
			}
		}
		second("with the first send under way", false, false)
		execute()
		second("with the first send done", false, true)
		execute()
		second("with both done", true, false)
	})
}
