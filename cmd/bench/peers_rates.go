package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"rebound/cmd/bench/peers"
	"rebound/latency/report"
)

// The search for the highest rate without loss.
const (
	saturationFrom  = 1e6 // probes per second: more than a veth pair carries on any machine that we know
	saturationAgain = 2   // trials that a rate gets beyond the first: one stall of the machine is no limit of a peer
)

// saturate searches the highest rate without loss of each peer.
func (c *contest) saturate(some []*peer) error {
	out := filepath.Join(c.out, "saturation")
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	for i, p := range some {
		if err := c.turnTo(p); err != nil {
			return err
		}
		dir := filepath.Join(out, folder(fmt.Sprintf("%02d-%s", i+1, p.name)))
		s := c.setting(p, 0)
		s.timeout = 200 * time.Millisecond // longer than what waits in any ring; it is sat out after each trial with loss
		o := &options{duration: c.trial, warmup: 20 * time.Millisecond, runs: 1, core: c.other, out: dir, base: s, variants: []settings{s},
			lossless: saturationFrom, verify: saturationAgain, anonymous: true}
		err := c.measure(o, nil)
		if c.interrupted.Load() {
			return errInterrupted
		}
		if err != nil {
			c.skip("the highest rate of "+p.name, err)
			continue
		}
		rep, err := take(dir)
		if err != nil {
			return err
		}
		c.table.Saturation = append(c.table.Saturation, rep)
	}
	return nil
}

// openLoop measures each peer at fractions of the rate that saturate found.
func (c *contest) openLoop(some []*peer) (err error) {
	o := &options{duration: 2 * c.each, warmup: 50 * time.Millisecond, runs: 1, core: c.other, out: filepath.Join(c.out, "rates")}
	for _, p := range some {
		i := slices.IndexFunc(c.table.Saturation, func(r *report.Report) bool { return r.Label == p.name })
		if i < 0 {
			continue
		}
		for _, percent := range peers.Fractions {
			s := c.setting(p, math.Floor(c.table.Saturation[i].Traffic.Rate*float64(percent)/100))
			s.name = fmt.Sprintf("%s at %d percent", p.name, percent)
			o.variants = append(o.variants, s)
		}
	}
	if len(o.variants) > 1 {
		c.table.Open, err = c.session(o)
	}
	return err
}
