package ixgbe_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// TestModules: the SFP+ module's type is reported and configured from the EEPROM, and a dual-rate module is set to 10
// Gb/s.
func TestModules(t *testing.T) {
	needs.Long(t)
	for _, c := range []struct {
		name   string
		module ixgbesim.Module
		note   string
		warns  string
		up     bool
		core   int // words written to CORECTL
	}{
		{"a copper cable", ixgbesim.Copper, "module: passive copper cable, REBOUND MODEL DAC 1M 1", "", true, 79},
		{"optics", ixgbesim.Optics, "module: 10GBASE-SR, REBOUND MODEL SR 1", "", true, 79},
		{"optics that are read byte by byte", ixgbesim.OneByte, "module: 10GBASE-SR, REBOUND MODEL SR 1", "", true, 79},
		{"optics of two rates", ixgbesim.DualRate, "module: 10GBASE-SR, 1000BASE-SX, REBOUND MODEL SR/SX 1", "", true, 79},
		{"optics of 1 Gb/s", ixgbesim.Gigabit, "module: 1000BASE-SX, REBOUND MODEL SX 1", "debug.link_mode", false, 79},
		{"none", ixgbesim.Empty, "module: none answers", "no module", false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for port := range 2 {
				m := ixgbesim.New(ixgbesim.Options{Module: c.module, Dual: true, Port: port})
				p, fn := host(t, m)
				wire(p)
				var log bytes.Buffer
				d := must.Get(ixgbe.Open(fn, nic.Options{MAC: mac, Log: slog.New(slog.NewTextHandler(&log, nil))}))(t)
				check.Contains(t, strings.Join(d.Info().Notes, "\n"), c.note)
				if c.up {
					awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
				} else if l, err := d.Link(); err != nil || l.Up {
					t.Errorf("link %+v, %v", l, err)
				}
				check.Equal(t, len(m.Core()), c.core, "%d words written to CORECTL")
				must.Close(t, d)
				if text := log.String(); c.warns != "" && !strings.Contains(text, c.warns) || c.warns == "" &&
					strings.Contains(text, "WARN") {
					t.Errorf("log: %s", text)
				}
			}
		})
	}
}

// TestGigabitModule: a module of 1 Gb/s works at the link mode that the warning names.
func TestGigabitModule(t *testing.T) {
	for _, module := range []ixgbesim.Module{ixgbesim.Gigabit, ixgbesim.DualRate} {
		p, fn := host(t, ixgbesim.New(ixgbesim.Options{Module: module}))
		wire(p)
		d := must.Get(ixgbe.OpenWith(fn, nic.Options{MAC: mac}, ixgbe.Options{LinkMode: "0"}))(t)
		awaitLink(t, d, nic.Link{Up: true, Speed: 1000})
		must.Close(t, d)
	}
}

// TestCrosstalk: with an empty cage the link is reported down, on boards whose EEPROM requests it.
func TestCrosstalk(t *testing.T) {
	for module, up := range map[ixgbesim.Module]bool{ixgbesim.Copper: true, ixgbesim.Empty: false} {
		p, fn := host(t, ixgbesim.New(ixgbesim.Options{Module: module, Crosstalk: true}))
		wire(p)
		d := open(t, fn, nic.Options{})
		w := must.Get(fn.BAR(0))(t)
		await.Until(t, "LINKS shows a link", func() bool { return w.Read32(0x42a4)>>30&1 != 0 },
			func() string { return "none" })
		if l, err := d.Link(); err != nil || l.Up != up {
			t.Errorf("module %d: link %+v, %v", module, l, err)
		}
	}
}

// TestPending: requests that stay pending when bus mastering is switched off are discarded, and the device is reset
// twice.
func TestPending(t *testing.T) {
	for _, k := range []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.X540} {
		_, fn := host(t, ixgbesim.New(ixgbesim.Options{Kind: k, Pending: true}))
		open(t, fn, nic.Options{})
	}
}

// TestModuleHeld: a module that holds the data line low, as after an interrupted read, is clocked until it releases the
// line.
func TestModuleHeld(t *testing.T) {
	m := ixgbesim.New(ixgbesim.Options{})
	p, fn := host(t, m)
	w := must.Get(fn.BAR(0))(t)
	// As a driver that was killed in the middle of reading leaves it: the module sends a zero.
	const clock, data = 1 << 1, 1 << 3
	bit := func(v uint32) {
		w.Write32(0x28, v)
		w.Write32(0x28, v|clock)
		w.Write32(0x28, v)
	}
	start := func() { w.Write32(0x28, clock|data); w.Write32(0x28, clock); w.Write32(0x28, 0) }
	for _, b := range []byte{0xa0, 8} {
		if b == 0xa0 {
			start()
		}
		for i := 7; i >= 0; i-- {
			bit(uint32(b) >> i & 1 * data)
		}
		bit(data)
	}
	w.Write32(0x28, data)
	start()
	for i := 7; i >= 0; i-- {
		bit(0xa1 >> i & 1 * data)
	}
	bit(data)
	await.Until(t, "the module holds the line", func() bool { return w.Read32(0x28)&(1<<2) == 0 },
		func() string { return "it does not" })
	p.ForgetViolations() // of that driver
	d := open(t, fn, nic.Options{})
	check.Contains(t, strings.Join(d.Info().Notes, "\n"), "module: passive copper cable")
}
