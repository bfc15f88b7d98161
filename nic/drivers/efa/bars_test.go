package efa_test

import (
	"errors"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
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

// TestDoorbellsBesideEntries: on devices that have the doorbells in the BAR of the send queues' entries, both are uncached. On the others the
// entries are write-combining.
func TestDoorbellsBesideEntries(t *testing.T) {
	for _, p := range efasim.Profiles() {
		port := must.Get(sim.New(efasim.New(efasim.Options{Profile: p, MAC: [6]byte{2, 0, 0, 0, 0, 1}}), sim.Options{Name: "efa"}))(t)
		port.Start()
		inner := must.Get(port.Function())(t)
		fn := &oneWay{Function: inner}
		d, err := efa.Open(fn, nic.Options{RingSize: 64}, efa.Options{})
		if err != nil {
			t.Fatalf("%s, doorbells in BAR %d: %v", p.Name, p.Doorbells, err)
		}
		if fn.combining[2] == (p.Doorbells == 2) {
			t.Errorf("%s, doorbells in BAR %d: write combining in BAR 2 %v", p.Name, p.Doorbells, fn.combining[2])
		}
		must.Close(t, d)
		for _, v := range port.Violations() {
			t.Error(v)
		}
		port.Stop()
		port.Close()
	}
}
