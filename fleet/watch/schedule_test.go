package watch

import (
	"math"
	"math/rand/v2"
	"testing"
)

// Every flow keeps its interval, whatever the others' are, and flows with equal intervals alternate. A flow that stays
// in the next plan keeps its turn.
func TestSchedule(t *testing.T) {
	var s schedule
	random := rand.NewPCG(1, 2)
	of := func(intervals ...uint64) (flows []*flow) {
		for _, n := range intervals {
			flows = append(flows, &flow{interval: n})
		}
		return flows
	}
	flows := of(1000, 1000, 1000, 100, 50_000)
	s.follow(flows, random)
	rate := 0.0
	for _, f := range flows {
		rate += 1 / float64(f.interval)
	}
	slots := int(math.Round(1e6 * rate)) // a million ticks
	sent := map[*flow]int{}
	for range slots {
		sent[s.next()]++
	}
	for _, f := range flows {
		if want := 1e6 / float64(f.interval); math.Abs(float64(sent[f])-want) > 2 {
			t.Errorf("a flow with an interval of %d ticks sent %d probes in a million, want %.0f", f.interval, sent[f],
				want)
		}
	}
	same := of(1000, 1000, 1000)
	s.follow(same, random)
	first := [3]*flow{s.next(), s.next(), s.next()}
	s.follow(append(of(1_000_000), same...), random)
	for i := range 30 {
		f := s.next()
		for f.interval != 1000 {
			f = s.next()
		}
		if f != first[i%3] {
			t.Fatalf("probe %d is of another flow than the third before it", i)
		}
	}
	if first[0] == first[1] || first[1] == first[2] || first[0] == first[2] {
		t.Error("a flow had two of three slots")
	}
}
