package ixgbe_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/ixgbe"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

// TestVeto: a link that firmware keeps for a management controller is not touched at start, restart and Close. The
// model reports each change.
func TestVeto(t *testing.T) {
	for _, k := range []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.KX4, ixgbesim.X540} {
		p, fn := host(t, ixgbesim.New(ixgbesim.Options{Kind: k, Veto: true}))
		wire(p)
		var log bytes.Buffer
		d := must.Get(ixgbe.Open(fn, nic.Options{MAC: mac, Log: slog.New(slog.NewTextHandler(&log, nil))}))(t)
		awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
		must.Close(t, d)
		check.Contains(t, log.String(), "management firmware forbids changes of the link")
	}
}

// TestPipeline: firmware that keeps the link down until the pipeline was reset after a change of AUTOC.
func TestPipeline(t *testing.T) {
	for _, k := range []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.KX4, ixgbesim.XAUI} {
		p, fn := host(t, ixgbesim.New(ixgbesim.Options{Kind: k, Pipeline: true}))
		wire(p)
		awaitLink(t, open(t, fn, nic.Options{}), nic.Link{Up: true, Speed: 10000})
	}
}

// keepReceiving calls Recv, which keeps the watch awake, until stop is called.
func keepReceiving(t *testing.T, d *ixgbe.Device) (stop func()) {
	var stopped atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for buf := make([]byte, 2048); !stopped.Load(); {
			if _, _, err := d.Recv(buf); err != nil {
				t.Errorf("Recv: %v", err)
				return
			}
		}
	})
	return func() { stopped.Store(true); all.Wait() }
}

// TestModuleLater: a module that is plugged in after the start is identified and configured, and one that replaces it,
// too.
func TestModuleLater(t *testing.T) {
	needs.Long(t)
	m := ixgbesim.New(ixgbesim.Options{Module: ixgbesim.Empty})
	p, fn := host(t, m)
	wire(p)
	var log rig.Log
	d := open(t, fn, nic.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	stop := keepReceiving(t, d)
	defer stop()
	awaitLink(t, d, nic.Link{})
	notes := func() string { return strings.Join(d.Info().Notes, "\n") }
	for _, c := range []struct {
		kind ixgbesim.Module
		note string
	}{{ixgbesim.Optics, "module: 10GBASE-SR"}, {ixgbesim.Copper, "module: passive copper cable"}} {
		p.Hold(func() { m.SetModule(nil) })
		awaitLink(t, d, nic.Link{})
		p.Hold(func() { m.Plug(c.kind) })
		// The driver may be in the middle of configuring the port for the module before: it sees the exchange when the
		// link is up.
		await.Until(t, "the driver knows the module", func() bool { return strings.Contains(notes(), c.note) }, notes)
		awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
	}
	check.Equal(t, strings.Count(log.String(), "a module was plugged in"), 2, "the log has %d modules")
}

// TestModuleExchanged: a module that is exchanged while the port is being configured for the one before is identified
// and configured, too.
func TestModuleExchanged(t *testing.T) {
	needs.Long(t)
	m := ixgbesim.New(ixgbesim.Options{Module: ixgbesim.Empty})
	p, fn := host(t, m)
	wire(p)
	d := open(t, fn, nic.Options{})
	stop := keepReceiving(t, d)
	defer stop()
	awaitLink(t, d, nic.Link{})
	p.Hold(func() { m.Plug(ixgbesim.Optics); m.Exchange(ixgbesim.Copper) })
	notes := func() string { return strings.Join(d.Info().Notes, "\n") }
	await.Until(t, "the driver knows the module", func() bool {
		return strings.Contains(notes(), "module: passive copper cable")
	}, notes)
	awaitLink(t, d, nic.Link{Up: true, Speed: 10000})
}

// TestRelaxedOrdering: a descriptor's write-back is never ahead of its frame, whatever the root port does with relaxed
// ordering.
func TestRelaxedOrdering(t *testing.T) {
	_, fn := host(t, ixgbesim.New(ixgbesim.Options{NoRelaxed: true}))
	open(t, fn, nic.Options{Queues: 4})
	w := must.Get(fn.BAR(0))(t)
	for q := range uint64(4) {
		if v := w.Read32(0x100c + 0x40*q); v&(1<<12|1<<13|1<<15) != 0 {
			t.Errorf("DCA_RXCTRL(%d) is %08x", q, v)
		}
		if v := w.Read32(0x600c + 0x40*q); v&(1<<11) != 0 {
			t.Errorf("DCA_TXCTRL(%d) is %08x", q, v)
		}
	}
}
