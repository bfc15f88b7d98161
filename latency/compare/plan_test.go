package compare

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/synthetic"
)

// A plan that is said to allow a verdict does, and one slice of each variant less does not.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		stat     string
		rate     float64
		duration time.Duration
		slices   int // needed
	}{
		{"p50", 0, 6 * time.Second, 9},
		{"p50", 100, 6 * time.Second, 9},
		{"p99", 500, 10 * time.Second, 27},
		{"p99.9", 1000, 10 * time.Second, 126},
	} {
		st, err := ParseStat(c.stat)
		if err != nil {
			t.Fatal(err)
		}
		p := Plan{Slices: int(c.duration / time.Second), Samples: c.rate}
		if n := p.Needs(st); n != c.slices || p.Allows(st) || !(Plan{Slices: n, Samples: c.rate}).Allows(st) || (Plan{Slices: n - 1, Samples: c.rate}).Allows(st) {
			t.Errorf("%s at %v a second: %d slices needed, want %d", c.stat, c.rate, n, c.slices)
		}
	}
	for n, want := range map[int]bool{8: false, 9: true} {
		rnd := rand.New(rand.NewPCG(1, 8))
		a, b := synthetic.Sampled(rnd, 4000, n, 1, 1000, synthetic.NoDrift), synthetic.Sampled(rnd, 4000, n, 1, 1000, synthetic.NoDrift)
		a.Session, b.Session = "s", "s"
		p := Reports(a, b).Pairs[0]
		if got := p.Rows[1].Tested(); got != want || (Plan{Slices: n}).Allows(p.Rows[1].Stat) != want {
			t.Errorf("%d pairs: tested %t, %s", n, got, p.Rows[1].Why)
		}
	}
}
