package ixgbe_test

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// TestProfiles covers the cards that Supports names, and the differences between boards according to public logs of
// real cards. The driver opens and answers on each, at the same cost.
func TestProfiles(t *testing.T) {
	want := nictest.Cost(t, harness(ixgbesim.SFP), 98, 64, 1)
	for _, o := range []ixgbesim.Options{
		{Kind: ixgbesim.KX4}, {Kind: ixgbesim.Combined}, {Kind: ixgbesim.XAUI}, {Kind: ixgbesim.X540},
		{Dual: true}, {Dual: true, Port: 1}, {SharedLOM: true}, {OtherLink: true},
		{BAR0: 128 << 10}, {BAR0: 2 << 20}, {BAR0: 4 << 20, Pref: true},
		{Kind: ixgbesim.X540, Dual: true, Port: 1, BAR0: 2 << 20, Pref: true},
	} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			h := harness(o.Kind)
			h.Model = func() sim.Model { return ixgbesim.New(o) }
			check.Equal(t, nictest.Cost(t, h, 98, 64, 1), want, "64 replies cost %+v")
		})
	}
}
