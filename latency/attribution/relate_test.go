package attribution

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// wire is a minute of probes whose clocks differ by ahead, and drift apart. The link takes 4 µs or more each way, and
// delays one in twenty by up to 5 ms in one of the directions.
func wire(seed uint64, ahead int64, drift float64) (all []*Probe, there []int64) {
	dice := rand.New(rand.NewPCG(seed, 3))
	for i := range int64(4000) {
		p := ordinary()
		p.Intended = i*minute/4000 + dice.Int64N(1e6)
		p.Sent, p.FarSeen, p.Residence = p.Intended, 1, 400
		way := [2]int64{4000 + dice.Int64N(2000), 4000 + dice.Int64N(2000)}
		if dice.IntN(20) == 0 {
			way[dice.IntN(2)] += dice.Int64N(5e6)
		}
		off := ahead + int64(drift*float64(p.Sent))
		p.Left, p.Seen = p.Sent+1000, p.Sent+way[0]+p.Residence+way[1]
		p.Looked = p.Seen - 100
		p.There, p.Back = way[0]+off+dice.Int64N(200)-100, way[1]-off+dice.Int64N(200)-100
		if dice.IntN(100) == 0 { // the responder's loop read its clock long before it looked
			early := dice.Int64N(1e6)
			p.Residence, p.There, way[0] = p.Residence+early, p.There-early, way[0]-early
		}
		all, there = append(all, &p), append(there, way[0])
	}
	return all, there
}

// Whatever the clocks' difference and drift, the one-way delays are right within the bound, which is little more than
// half of the fastest round trip. What is known better is left as it is.
func TestRelate(t *testing.T) {
	for seed := range uint64(20) {
		all, there := wire(seed, int64(seed)*123_456_789_012, float64(seed)*9e-6-80e-6)
		bound := relate(all)
		if bound < 4000 || bound > 7500 {
			t.Errorf("seed %d: a bound of %d ns", seed, bound)
		}
		for i, p := range all {
			if abs(p.There-there[i]) > p.ClockError || abs(p.There+p.Back-p.rest()) > clockGrain {
				t.Fatalf("seed %d: %d ns there, want %d within %d", seed, p.There, there[i], p.ClockError)
			}
		}
	}
	all, _ := wire(1, 0, 0)
	all[7].ClockError, all[8].ClockError = 500, 50_000
	was := *all[7]
	relate(all)
	check.Equal(t, *all[7], was, "stated to within 500 ns, and changed to %+v")
	check.Equal(t, all[8].ClockError < 7500, true, "stated to within 50 µs: better by the round trips: %t")
}

// Nothing is related by clocks of which one was set or runs away, without times of the responder, or by times that do
// not add up to the round trip.
func TestRelateRefuses(t *testing.T) {
	for name, change := range map[string]func(i int64, p *Probe){
		"a clock was set": func(i int64, p *Probe) {
			if i > 2000 {
				p.There, p.Back = p.There+50_000, p.Back-50_000
			}
		},
		"drift":                  func(i int64, p *Probe) { p.There, p.Back = p.There+i*15_000, p.Back-i*15_000 },
		"no times of the other":  func(_ int64, p *Probe) { p.FarSeen = 0 },
		"it did not answer":      func(_ int64, p *Probe) { p.Residence = -1 },
		"times in another scale": func(_ int64, p *Probe) { p.There, p.Back = 0, 0 },
	} {
		all, _ := wire(1, 5_000_000, 0)
		for i, p := range all {
			change(int64(i), p)
		}
		was := *all[9]
		check.Equal(t, relate(all), 0, name+": a bound of %d ns")
		check.Equal(t, *all[9], was, name+": changed to %+v")
	}
}

// The network's part has its direction by the round trips themselves, also where no error of the clocks is stated.
func TestDirectionWithoutStatedClocks(t *testing.T) {
	all, there := wire(4, -7e9, 20e-6)
	var slow, sample []Probe
	for i, p := range all {
		p.FarWait = 100
		if sample = append(sample, *p); p.RTT() > 100_000 {
			slow = append(slow, *p)
		}
		there[i] = there[i] - 5000
	}
	r := Explain(slow, sample, About{Direction: "no chrony", Total: 100_000, Epoch: epoch}, nil)
	right := 0
	for i := range r.Rows {
		p := &r.Rows[i].Parts
		for k, q := range all {
			if q.RTT() == r.Rows[i].RTT && (there[k] > 50_000) == (p.There > p.Back) && p.Network == 0 {
				right++
				break
			}
		}
	}
	check.Equal(t, right, len(r.Rows), "%d rows have the right direction")
	check.Contains(t, r.Related, "by the round trips themselves, within ")
	check.Equal(t, r.Points[4].Clock, "the responder's, related by the round trips", "%q")
	check.Contains(t, strings.Join(r.Lines(), "\n"), "on the way there ")
}

// The difference is taken in the middle of what is possible, and half of that is the bound. Probes are so far apart
// that each says nothing of the others, unless they are at the same time.
func TestRelateByEach(t *testing.T) {
	type want struct{ there, clockError int64 }
	probe := func(at, residence, there, back, stated int64) *Probe {
		return &Probe{Sent: at, Seen: at + residence + there + back, Residence: residence, FarSeen: 1, There: there,
			Back: back, ClockError: stated}
	}
	off := func(by int64) *Probe {
		p := probe(0, 0, 10_000, -2000, -1)
		p.Seen += by
		return p
	}
	for name, c := range map[string]struct {
		all   []*Probe
		bound int64
		want  []want
	}{
		"one":     {[]*Probe{probe(0, 0, 10_000, -2000, -1)}, 5000, []want{{4000, 5000}}},
		"stated":  {[]*Probe{probe(0, 0, 10_000, -2000, 5000)}, 0, []want{{10_000, 5000}}},
		"exactly": {[]*Probe{probe(0, 0, 10_000, -2000, 0)}, 0, []want{{10_000, 0}}},
		"several": {[]*Probe{probe(0, 0, 6000, 2000, -1), probe(10e9, 0, 10_000, 10_000, -1),
			probe(20e9, 0, 2000, 2000, -1)}, 5000, []want{{4000, 5000}, {10_000, 11_000}, {2000, 3000}}},
		"of two at once the closer bounds": {[]*Probe{probe(0, 0, 6000, 20_000, -1), probe(0, 0, 30_000, 2000, -1)},
			5000, []want{{4000, 5000}, {28_000, 5000}}},
		"at most twice the usual residence and a grain": {[]*Probe{probe(0, 500, 8000, 8000, -1),
			probe(0, 500, 8000, 8000, -1), probe(0, 500, 8000, 8000, -1), probe(0, 2000, 6000, 8000, -1),
			probe(0, 2001, 4000, 8000, -1)}, 8000,
			[]want{{9000, 8000}, {9000, 8000}, {9000, 8000}, {7000, 8000}, {5000, 8000}}},
		"contradictions of up to two grains": {[]*Probe{probe(0, 0, 1000, 7000, -1), probe(0, 0, 9000, -3000, -1)}, 1,
			[]want{{-1000, 1}, {7000, 1}}},
		"and of more": {[]*Probe{probe(0, 0, 1000, 7000, -1), probe(0, 0, 9001, -3001, -1)}, 0,
			[]want{{1000, -1}, {9001, -1}}},
		"a sum within a grain": {[]*Probe{off(1000), off(-1000), off(1001), off(-1001)}, 5000,
			[]want{{4000, 5000}, {4000, 5000}, {10_000, -1}, {10_000, -1}}},
		"the bounds of the median": {[]*Probe{probe(0, 0, 6000, 2000, -1), probe(10e9, 0, 10_000, 10_000, -1)}, 11_000,
			[]want{{4000, 5000}, {10_000, 11_000}}},
	} {
		check.Equal(t, relate(c.all), c.bound, name+": a bound of %d ns")
		for i, w := range c.want {
			check.Equal(t, want{c.all[i].There, c.all[i].ClockError}, w, name+": %+v")
		}
	}
}
