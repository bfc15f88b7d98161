package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"rebound/cmd/bench/peers"
	"rebound/cmd/bench/probe"
)

// TestFloor builds the floor and has each of its sockets answer: every byte of a reply is checked, its checksums too.
func TestFloor(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed")
	}
	n := newNetwork(t)
	program := filepath.Join(t.TempDir(), "floor")
	if err := peers.BuildFloor(program); err != nil {
		t.Fatal(err)
	}
	place, err := choose(-1)
	n.must(err)
	for _, socket := range peers.FloorSockets {
		for _, size := range []string{"98", "1514"} {
			t.Run(socket+" "+size, func(t *testing.T) {
				f := peers.Floor(program, socket, farIface, place.other())
				f.Within = n.far.do
				if err := f.Start(); err != nil {
					t.Fatal(err)
				}
				defer f.Stop()
				dir := filepath.Join(t.TempDir(), "r")
				// An address that no kernel has: ARP is the floor's to answer, too.
				r := n.bench(quick("-target", "10.98.0.9", "-source", "10.98.0.77", "-driver", "afpacket", "-size", size, "-count", "50", "-out", dir)...)
				if rep := read(t, dir, r); rep.Counts.Sent != 50 {
					t.Errorf("%+v", rep.Counts)
				}
			})
		}
	}
}

// TestSaturate searches the kernel's highest rate without loss, and measures at fractions of it.
func TestSaturate(t *testing.T) {
	needRoot(t)
	quiet := &env{stdout: discard{}, stderr: discard{}, log: slog.New(slog.DiscardHandler)}
	c := &contest{demo: &demo{env: quiet}, out: t.TempDir(), prober: "afpacket", each: 20 * time.Millisecond, trial: 30 * time.Millisecond}
	done := make(chan error)
	go func() { // on a thread that ends with it, since it cannot come back from its namespace
		runtime.LockOSThread()
		done <- func() (err error) {
			p, leave, err := c.enter()
			if err != nil {
				return err
			}
			defer leave()
			c.core, c.other = p.other(), p.core
			idle := func() error { return nil }
			c.peers = []*peer{{name: "kernel", proto: probe.ICMP, target: netip.MustParsePrefix(kernelPrefix).Addr(), start: idle, stop: idle}}
			return errors.Join(c.saturate(c.peers), c.openLoop(c.peers))
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(c.table.Saturation) == 0 && len(c.table.Skipped) == 1 {
		t.Skip("this machine is too busy for any rate to pass:", c.table.Skipped[0])
	}
	found := c.table.Saturation[0]
	if next, why := peers.Ceiling(found); found.Counts.Lost != 0 || found.Traffic.Rate < 1 || next <= found.Traffic.Rate || why == "" {
		t.Errorf("%v/s with %+v, then %v/s: %s", found.Traffic.Rate, found.Counts, next, why)
	}
	if !found.Anonymous || len(c.table.Open) != len(peers.Fractions) {
		t.Fatalf("%d rates, anonymous %t", len(c.table.Open), found.Anonymous)
	}
	for i, percent := range peers.Fractions {
		want := math.Floor(found.Traffic.Rate * float64(percent) / 100)
		if rep := c.table.Open[i]; rep.Traffic.Rate != want || rep.Label != fmt.Sprintf("kernel at %d percent", percent) || rep.Counts.Sent == 0 {
			t.Errorf("%q at %v/s, want %v; %+v", rep.Label, rep.Traffic.Rate, want, rep.Counts)
		}
	}
}
