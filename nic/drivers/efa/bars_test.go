package efa_test

import (
	"errors"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// oneWay is a function whose BARs have one memory type each, as those of the kernel.
type oneWay struct {
	*sim.Function
	combining [6]bool
	mapped    [6]bool
}

func (o *oneWay) BAR(n int) (*mmio.Window, error) {
	if o.combining[n] {
		return nil, errors.New("mapped write-combining, and a page cannot be mapped both ways")
	}
	o.mapped[n] = true
	return o.Function.BAR(n)
}

func (o *oneWay) BARWC(n int) (*mmio.Window, error) {
	o.combining[n] = !o.mapped[n]
	return o.Function.BARWC(n)
}

var _ pci.Function = (*oneWay)(nil)

// TestDoorbellsBesideEntries: on devices that have the doorbells in the BAR of the send queues' entries, both are
// uncached. On the others the entries are write-combining.
func TestDoorbellsBesideEntries(t *testing.T) {
	for _, p := range efasim.Profiles() {
		x := adapter(t, efasim.Options{Profile: p}, 1, nil)
		fn := &oneWay{Function: must.Get(x.port.Function())(t)}
		x.busy(func() (err error) { x.dev, err = efa.Open(fn, nic.Options{RingSize: 64}, efa.Options{}); return err })
		check.Equal(t, fn.combining[2], p.Doorbells != 2, p.Name+": write combining in BAR 2 is %v")
		x.close()
	}
}
