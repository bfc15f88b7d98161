package sim_test

import (
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// Behind QEMU a model looks like silicon except for its mark, which package pci must find.
func TestModelMarksItself(t *testing.T) {
	for _, serial := range []uint64{0, 0x0200_00ff_ff00_0001} {
		p := must.Get(sim.New(withSerial{toysim.New([6]byte{2, 0, 0, 0, 0, 1}), serial}, sim.Options{Name: "toy"}))(t)
		defer p.Close()
		fn := must.Get(p.Function())(t)
		at, err := pci.ExtCapability(fn, pci.ExtCapVendor)
		if err != nil || at == 0 {
			t.Fatalf("serial %#x: no vendor-specific capability: %v", serial, err)
		}
		if n, err := pci.ExtCapability(fn, pci.ExtCapID(3)); err != nil || (n != 0) != (serial != 0) {
			t.Errorf("serial %#x: serial number capability at %#x, %v", serial, n, err)
		}
		got := make([]byte, 0, 16)
		for i := range 16 {
			b := must.Get(pci.Read8(fn, at+8+i))(t)
			got = append(got, b)
		}
		if string(got) != pci.ModelMark {
			t.Errorf("serial %#x: mark %q", serial, got)
		}
	}
}

type withSerial struct {
	sim.Model
	serial uint64
}

func (w withSerial) Config() sim.Config {
	c := w.Model.Config()
	c.SerialNumber = w.serial
	return c
}
