package blame

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// costGoal is by how much watching may change a percentile.
const costGoal = 0.02

// watched are the ways of measuring that are compared with the first.
var watched = []struct {
	name    string
	explain bool     // the bench watches its core
	set     []string // of the responder
}{
	{"nothing watched", false, nil},
	{"the bench's core (-explain)", true, nil},
	{"the responder's core (stats.offcore)", false, []string{"stats.offcore=true"}},
}

var percentiles = []struct {
	name string
	of   func(*latency.Summary) int64
}{
	{"p50", func(s *latency.Summary) int64 { return s.P50 }}, {"p99", func(s *latency.Summary) int64 { return s.P99 }},
	{"p99.9", func(s *latency.Summary) int64 { return s.P999 }},
}

// cost compares runs in which the kernel's tracepoints are watched with runs without, in blocks of one run each, in
// random order.
func (o *options) cost(w io.Writer) error {
	fmt.Fprintf(w, "seed %d, %v, runs of %v, %d probes per second, udp, driver %s, kernel %s, load at the start %s\n",
		o.seed, o.duration, o.episode,
		o.rate, o.driver, release(), load())
	r := rand.New(rand.NewPCG(o.seed, 3))
	b, err := newBed(false, false, "")
	defer b.close()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "rebound-blame-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	var blocks [][]latency.Summary
	for start := time.Now(); len(blocks) == 0 || time.Since(start) < o.duration; {
		block := make([]latency.Summary, len(watched))
		for _, i := range r.Perm(len(watched)) {
			at := filepath.Join(folder, fmt.Sprint(len(blocks), "-", i))
			if block[i], err = o.single(b, i, at); err != nil {
				return fmt.Errorf("%s: %w", watched[i].name, err)
			}
		}
		blocks = append(blocks, block)
	}
	fmt.Fprintf(w, "%d blocks, load at the end %s\n\n", len(blocks), load())
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "watched\tpercentile\tmedian\tchange\t95 %% interval\tgoal: below %.0f %%\n", 100*costGoal)
	for i := range watched {
		for _, p := range percentiles {
			var values, changes []float64
			for _, block := range blocks {
				v, base := float64(p.of(&block[i])), float64(p.of(&block[0]))
				values, changes = append(values, v), append(changes, v/base-1)
			}
			median, _, _ := medianInterval(values)
			fmt.Fprintf(t, "%s\t%s\t%s", watched[i].name, p.name, latency.FormatNS(median))
			if i > 0 {
				change, low, high := medianInterval(changes)
				fmt.Fprintf(t, "\t%+.1f %%\t%+.1f to %+.1f %%\t%s", 100*change, 100*low, 100*high, verdict(low, high))
			}
			fmt.Fprintln(t)
		}
	}
	return t.Flush()
}

// single is one run, watched in one of the ways.
func (o *options) single(b *bed, way int, folder string) (s latency.Summary, err error) {
	resp := &testbed.Responder{Bed: &testbed.Testbed{Far: b.far}, Program: o.responder, Driver: o.driver,
		Core: responderCore, Set: watched[way].set}
	if err := resp.Start(); err != nil {
		return s, err
	}
	c, err := startBench(b.near, []string{"run", farAddress, "-proto", "udp",
		fmt.Sprint("-explain=", watched[way].explain), "-rate", fmt.Sprint(o.rate),
		"-duration", o.episode.String(), "-runs", "1", "-self-test", "0s", "-driver", "afpacket", "-core",
		fmt.Sprint(benchCore), "-out", folder})
	if err == nil {
		err = c.wait()
		c.asked.Close()
		c.answers.Close()
	}
	if serr := resp.Stop(); err != nil || serr != nil {
		return s, errors.Join(err, serr)
	}
	rep, err := report.Read(folder)
	if err != nil {
		return s, err
	}
	return rep.Main().Summary, nil
}

func verdict(low, high float64) string {
	switch {
	case high < costGoal:
		return "met"
	case low > costGoal:
		return "missed"
	}
	return "cannot be told"
}

// medianInterval returns the median, and order statistics between which it is with a probability of at least 95 % (sign
// test); with fewer than six values there are none, and the interval is unbounded.
func medianInterval(values []float64) (median, low, high float64) {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	median = (v[(n-1)/2] + v[n/2]) / 2
	below, k, p := 0.0, 0, math.Pow(0.5, float64(n)) // p: k of n values are below the median
	for ; below+p <= 0.025; k++ {
		below += p
		p *= float64(n-k) / float64(k+1)
	}
	if k == 0 {
		return median, math.Inf(-1), math.Inf(1)
	}
	return median, v[k-1], v[n-k]
}
