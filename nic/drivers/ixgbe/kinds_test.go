package ixgbe_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// kinds are all that Supports names.
var kinds = []struct {
	kind  ixgbesim.Kind
	id    uint16
	model string
	mode  string
}{
	{ixgbesim.SFP, 0x10FB, "Intel 82599ES SFP+ (8086:10fb", "SFI 10 Gb/s serial"},
	{ixgbesim.KX4, 0x10F7, "Intel 82599 KX4 backplane (8086:10f7", "KX/KX4/KR with auto-negotiation"},
	{ixgbesim.Combined, 0x10F8, "Intel 82599 combined backplane (8086:10f8", "KX/KX4/KR with auto-negotiation"},
	{ixgbesim.XAUI, 0x10FC, "Intel 82599 XAUI (8086:10fc", "10 Gb/s over four lanes"},
	{ixgbesim.X540, 0x1528, "Intel X540-AT2 (8086:1528", "10GBASE-T"},
}

func awaitLink(t *testing.T, d *ixgbe.Device, want nic.Link) {
	t.Helper()
	var is nic.Link
	await.Until(t, fmt.Sprintf("link %+v", want), func() bool {
		is = must.Get(d.Link())(t)
		return is == want
	}, func() string { return fmt.Sprintf("it is %+v", is) })
}

// TestLinkModes: each card that the driver claims, without a cable, with one, and with none again.
func TestLinkModes(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.model[:strings.Index(k.model, " (")], func(t *testing.T) {
			p, fn := host(t, ixgbesim.New(ixgbesim.Options{Kind: k.kind}))
			must.Equal(t, fn.ID().Device, k.id, "the model is %#x")
			d := open(t, fn, nic.Options{})
			info := d.Info()
			if !strings.HasPrefix(info.Model, k.model) || !slices.ContainsFunc(info.Notes,
				func(n string) bool { return strings.HasPrefix(n, "link mode: "+k.mode) }) {
				t.Errorf("%s, %q", info.Model, info.Notes)
			}
			awaitLink(t, d, nic.Link{})
			far := wire(p)
			awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
			far.SetUp(false)
			awaitLink(t, d, nic.Link{})
		})
	}
}

// TestPHY is the X540's link: the PHY as other drivers may leave it.
func TestPHY(t *testing.T) {
	const power, tenGig, gigabit, advert = 0x1E_0000, 0x7_0020, 0x7_C400, 0x7_0010
	for _, c := range []struct {
		name string
		left map[uint32]uint16 // contents of the PHY's registers before
		kept bool              // training takes seconds, so settings that are already right are not touched
	}{
		{"as it comes", nil, false},
		{"in low power, as Linux's driver leaves it", map[uint32]uint16{power: 1 << 11}, false},
		{"offering 100 Mb/s only, with pause frames", map[uint32]uint16{tenGig: 0, gigabit: 0, advert: 1<<8 | 1<<10 | 1}, false},
		{"not negotiating", map[uint32]uint16{0x7_0000: 0}, false},
		{"kept up", map[uint32]uint16{advert: 1<<8 | 1}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := ixgbesim.New(ixgbesim.Options{Kind: ixgbesim.X540})
			for r, v := range c.left {
				m.SetPHY(r, v)
			}
			p, fn := host(t, m)
			wire(p)
			d := open(t, fn, nic.Options{})
			awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
			if v := m.PHY(advert); v&(3<<10) != 0 {
				t.Errorf("it offers pause frames: %04x", v)
			}
			if n := m.Negotiations(); c.kept && n != 0 {
				t.Errorf("negotiation was restarted %d times", n)
			}
		})
	}
}

// TestSemaphores: owners that died, drivers and firmware, do not keep the X540 forever.
func TestSemaphores(t *testing.T) {
	needs.Long(t)
	m := ixgbesim.New(ixgbesim.Options{Kind: ixgbesim.X540})
	_, fn := host(t, m)
	w := must.Get(fn.BAR(0))(t)
	w.Read32(0x10140)               // SWSM: takes SMBI
	w.Read32(0x10160)               // SW_FW_SYNC: takes REGSMP
	w.Write32(0x10160, 1<<31|0x1e7) // NVM and PHYs, the drivers' and the firmware's, and the MAC's of the firmware
	open(t, fn, nic.Options{})
	if v := w.Read32(0x10160); v != 0x184 { // not reset: the PHY of the other port, and the MAC
		t.Errorf("SW_FW_SYNC is left as %08x", v)
	}
	w.Write32(0x10160, 0x184)
	if v := w.Read32(0x10140); v&1 != 0 {
		t.Errorf("SWSM is left as %08x", v)
	}
	w.Write32(0x10140, 0)
}
