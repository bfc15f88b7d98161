package ixgbesim

import (
	"testing"

	"github.com/rebound-nic/rebound/sim"
)

// A module has a link only at its own rates; a dual-rate one at the rate that SDP5 selects.
func TestModuleRates(t *testing.T) {
	const up = 1 << 30
	for _, c := range []struct {
		module              Module
		slow, fast, fastSDP bool
	}{
		{Copper, true, true, true}, {Optics, false, true, true}, {DualRate, true, false, true}, {Gigabit, true, false, false}, {Empty, false, false, false},
	} {
		r := newRig(t, Options{Module: c.module})
		wire, far := sim.Pair()
		r.Port.Connect(wire)
		far.SetUp(true)
		r.wr(0x20, r.rd(0x20)&^(1<<3)) // laser on
		autoc := r.rd(0x42a0) &^ (7 << 13)
		look := func(lms uint32, sdp5 bool) bool {
			esdp := r.rd(0x20) &^ (1<<5 | 1<<13)
			if sdp5 {
				esdp |= 1<<5 | 1<<13
			}
			r.wr(0x20, esdp)
			r.wr(0x42a0, autoc|lms<<13|1<<12)
			return r.rd(0x42a4)&up != 0
		}
		if slow, fast, fastSDP := look(0, false), look(3, false), look(3, true); slow != c.slow || fast != c.fast ||
			fastSDP != c.fastSDP {
			t.Errorf("module %d: link at 1 Gb/s %v, at 10 Gb/s %v, with SDP5 high %v", c.module, slow, fast, fastSDP)
		}
		r.Clean()
	}
}
