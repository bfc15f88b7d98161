package contest

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/peers/tables"
)

// The search for the highest rate without loss.
const (
	saturationFrom = 1e6 // probes per second: more than a veth pair carries on any known machine
	// additional trials for a rate that failed, because a single stall of the machine does not show a peer's limit
	saturationAgain = 2
)

// saturate searches for the highest rate without loss of each peer.
func (c *contest) saturate(some []*peer) error {
	for _, p := range some {
		if err := c.turnTo(p); err != nil {
			return err
		}
		s := c.setting(p, 0)
		// longer than the queueing time in any ring; it passes once after each trial with loss
		s.Timeout = 200 * time.Millisecond
		o := c.options(c.Trial, 20*time.Millisecond)
		o.Out, o.Variants = filepath.Join(c.dir, "saturation-"+p.name), []measure.Settings{s}
		found, err := measure.Search(o, saturationFrom, saturationAgain)
		if c.Stop.Load() {
			return errInterrupted
		}
		if err != nil {
			c.skip("the highest rate of "+p.name, err)
			continue
		}
		c.table.Saturation = append(c.table.Saturation, found.Reports[0])
	}
	return nil
}

// openLoop measures each peer at fractions of the rate that saturate found.
func (c *contest) openLoop(some []*peer) (err error) {
	o := c.options(2*c.Each, 50*time.Millisecond)
	o.Out = filepath.Join(c.dir, "rates")
	for _, p := range some {
		i := slices.IndexFunc(c.table.Saturation, func(r *report.Report) bool { return r.Label == p.name })
		if i < 0 {
			continue
		}
		for _, percent := range tables.Fractions {
			s := c.setting(p, math.Floor(c.table.Saturation[i].Traffic.Rate*float64(percent)/100))
			s.Name = fmt.Sprintf("%s at %d percent", p.name, percent)
			o.Variants = append(o.Variants, s)
		}
	}
	if len(o.Variants) > 1 {
		c.table.Open, err = c.measure(o)
	}
	return err
}
