package contest

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/peers/baseline"
	"github.com/rebound-nic/rebound/proof/peers/tables"
)

func inside(t *testing.T, f func(c *contest) error) {
	t.Helper()
	needs.Root(t, "network namespaces")
	c := &contest{Options: Options{Out: t.TempDir(), Prober: "afpacket", Each: 20 * time.Millisecond,
		Trial: 30 * time.Millisecond,
		Stop:  new(atomic.Bool), Log: slog.New(slog.DiscardHandler)}}
	done := make(chan error)
	go func() { // on a thread that ends with it, because it cannot leave its namespace
		runtime.LockOSThread()
		leave, err := c.enter()
		if err == nil {
			err = f(c)
			leave()
		}
		done <- err
	}()
	must.OK(t, <-done)
}

// TestFloor builds the floor and tests each of its sockets: every byte of a reply is checked, including the checksums.
func TestFloor(t *testing.T) {
	needs.Programs(t, "gcc")
	inside(t, func(c *contest) error {
		program := filepath.Join(c.dir, "floor")
		if err := baseline.BuildFloor(program); err != nil {
			return err
		}
		for _, socket := range baseline.FloorSockets {
			f := baseline.Floor(program, socket, testbed.FarIface, c.bed.Core.Other())
			f.Within = c.bed.Within
			if err := f.Start(); err != nil {
				return err
			}
			for _, size := range []int{98, 1514} {
				// An address that no kernel has, so that the floor must also answer ARP.
				s := c.setting(&peer{name: "floor", target: netip.MustParseAddr("10.99.0.9")}, 0)
				s.Sizes, s.Timeout = []int{size}, 30*time.Second
				o := c.options(0, 0)
				o.Count, o.Out, o.Variants = 50, filepath.Join(c.dir, fmt.Sprint(socket, size)), []measure.Settings{s}
				result, err := measure.Run(o)
				if err != nil {
					t.Errorf("%s, %d bytes: %v", socket, size, err)
					continue
				}
				if n := result.Reports[0].Counts; n.Sent != 50 || n.Received != 50 || n.Corrupt+n.Duplicates > 0 {
					t.Errorf("%s, %d bytes: %+v", socket, size, n)
				}
			}
			if err := f.Stop(); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestSaturate searches the kernel's highest rate without loss, and measures at fractions of it.
func TestSaturate(t *testing.T) {
	var table *tables.Table
	inside(t, func(c *contest) error {
		idle := func() error { return nil }
		c.peers = []*peer{{name: "kernel", proto: probe.ICMP,
			target: netip.MustParsePrefix(testbed.KernelPrefix).Addr(), start: idle, stop: idle}}
		table = &c.table
		return errors.Join(c.saturate(c.peers), c.openLoop(c.peers))
	})
	if len(table.Saturation) == 0 && len(table.Skipped) == 1 {
		t.Skip("this machine is too busy for any rate to pass:", table.Skipped[0])
	}
	found := table.Saturation[0]
	if next, why := tables.Ceiling(found); found.Counts.Lost != 0 || found.Traffic.Rate < 1 ||
		next <= found.Traffic.Rate || why == "" {
		t.Errorf("%v/s with %+v, then %v/s: %s", found.Traffic.Rate, found.Counts, next, why)
	}
	if !found.Anonymous || len(table.Open) != len(tables.Fractions) {
		t.Fatalf("%d rates, anonymous %t", len(table.Open), found.Anonymous)
	}
	for i, percent := range tables.Fractions {
		want := math.Floor(found.Traffic.Rate * float64(percent) / 100)
		if rep := table.Open[i]; rep.Traffic.Rate != want ||
			rep.Label != fmt.Sprintf("kernel at %d percent", percent) || rep.Counts.Sent == 0 {
			t.Errorf("%q at %v/s, want %v; %+v", rep.Label, rep.Traffic.Rate, want, rep.Counts)
		}
	}
}
