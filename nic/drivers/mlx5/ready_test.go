package mlx5

import (
	"math/bits"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
)

// TestFirmwareStartsLate: a BlueField, or a card whose firmware recovers, may need two minutes until it takes commands.
func TestFirmwareStartsLate(t *testing.T) {
	for _, late := range []time.Duration{0, 119 * time.Second, 125 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			b := make([]byte, 0x200)
			word := (*uint32)(unsafe.Pointer(&b[regInitializing]))
			atomic.StoreUint32(word, bits.ReverseBytes32(initializing))
			c := &commandQueue{name: "mlx5", regs: mmio.Mapped(b, false), alive: func() error { return nil }}
			done := make(chan error)
			go func() { done <- c.ready(productInitTimeout) }()
			time.Sleep(late)
			synctest.Wait()
			atomic.StoreUint32(word, 0)
			if err := <-done; late > 120*time.Second {
				check.Fails(t, late.String(), err, nic.ErrTimeout, "still initializing")
			} else {
				check.OK(t, err)
			}
		})
	}
}
