package attribution

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

const epoch = int64(1_700_000_000e9)

// planted is a minute of a closed loop of ICMP probes in which the responder's loop stops, this host's loop stops, and the link delays,
// each at random times. The responder's clock is ahead by offset, and drifts.
func planted(offset int64, drift float64, far, here, network int) (*Result, *Loop, map[int64]Side) {
	dice := rand.New(rand.NewPCG(1, uint64(offset)))
	sides := map[int64]Side{}
	l := &Loop{From: 5000, Start: epoch + offset - 1e9, End: epoch + offset + 61e9, How: "the kernel's tracepoints"}
	there := func(t int64) int64 { return epoch + t + offset + int64(drift*float64(t)) }
	var slow []Probe
	add := func(side Side, n int) {
		for range n {
			p := ordinary()
			p.FarWait, p.Residence = -1, -1
			p.Intended = dice.Int64N(60e9)
			jitter := dice.Int64N(3000)
			took := 20_000 + dice.Int64N(2_000_000)
			p.Sent, p.Left = p.Intended, p.Intended+3000
			p.Seen = p.Intended + 10_000 + jitter + took
			p.Looked = p.Seen - 100
			switch side {
			case Responder:
				// The loop stopped before the probe came, and was answered at the end of the gap.
				end := there(p.Intended + 5000 + took)
				g := Interval{Start: end - took - dice.Int64N(took/4+1), End: end, Core: 1}
				l.Intervals = append(l.Intervals, g, Interval{Start: g.Start + 100, End: g.End - 100, Core: 1, Text: "polling thread descheduled on cpu 1", Name: "hog"})
			case Here:
				p.Looked = p.Intended + 3000
			}
			sides[p.RTT()] = side
			slow = append(slow, p)
		}
	}
	add(Responder, far)
	add(Here, here)
	add(Network, network)
	for range 20_000 { // ordinary gaps, which explain nothing
		at := there(dice.Int64N(60e9))
		l.Intervals = append(l.Intervals, Interval{Start: at, End: at + 5000 + dice.Int64N(4000), Core: 1})
	}
	sample := sampleOf(1000)
	for i := range sample {
		sample[i].FarWait, sample[i].Residence = -1, -1
	}
	return Explain(slow, sample, About{Total: 100_000, Epoch: epoch, FarLoop: "ICMP", Direction: "ICMP"}, nil), l, sides
}

// causesAgree checks that each cause counts the rows that have it.
func causesAgree(t *testing.T, r *Result) {
	t.Helper()
	rows := make([]int, len(r.Causes))
	for i := range r.Rows {
		for _, k := range r.Rows[i].Causes {
			rows[k]++
		}
	}
	for k, c := range r.Causes {
		check.Equal(t, rows[k], c.Probes, "rows with "+c.Text+" "+c.Name+": %d")
	}
}

// Whatever the clocks' difference and drift, round trips are attributed to the responder's host by its own gaps, and others are not.
func TestAddResponder(t *testing.T) {
	for _, c := range []struct {
		offset             int64
		drift              float64
		far, here, network int
	}{{0, 0, 600, 200, 200}, {300_123_456, 20e-6, 600, 200, 200}, {-700e6, -70e-6, 300, 0, 700}, {-50e6, 1e-6, 1000, 0, 0}, {12_345, 0, 60, 40, 900}} {
		r, l, sides := planted(c.offset, c.drift, c.far, c.here, c.network)
		before := rowTotals(r)
		for range 2 { // a second time changes nothing
			must.OK(t, r.AddResponder(l, 100_000, -1))
			causesAgree(t, r)
			right, wrong := 0, 0
			for i := range r.Rows {
				row := &r.Rows[i]
				if row.Parts.Sum() != row.RTT {
					t.Fatalf("%+v adds up to %d", row, row.Parts.Sum())
				}
				switch row.Side {
				case sides[row.RTT].String():
					right++
				case "unknown", "elsewhere":
				default:
					wrong++
				}
			}
			if n := len(r.Rows); right < 97*n/100 || wrong > n/100 {
				t.Errorf("%+v: %d right and %d wrong of %d; %s; %+v", c, right, wrong, n, r.Aligned, r.Shares)
			}
			if rowTotals(r) != before {
				t.Errorf("%+v: the rows' round trips changed", c)
			}
			if text := strings.Join(r.Lines(), "\n"); !strings.Contains(text, "polling thread descheduled on cpu 1: hog ") {
				t.Errorf("%+v: %s", c, text)
			}
		}
	}
}

func rowTotals(r *Result) (sum int64) {
	for i := range r.Rows {
		sum += r.Rows[i].RTT
	}
	return sum
}

// If the responder's gaps explain none of the round trips, no alignment is invented, but a stated bound of the clocks tells the sides.
func TestAddResponderWithoutAlignment(t *testing.T) {
	for _, far := range []int{0, 3} {
		r, l, _ := planted(500_000, 0, far, 100, 900-far)
		if err := r.AddResponder(l, 100_000, -1); err == nil {
			t.Errorf("aligned by %d: %s", far, r.Aligned)
		}
		must.OK(t, r.AddResponder(l, 100_000, 1_000_000))
		for _, s := range r.Shares {
			if s.Side == Network.String() && s.Share < 0.8 {
				t.Errorf("%d: %+v", far, r.Shares)
			}
		}
	}
}

// What cannot be added is refused with the reason.
func TestAddResponderRefuses(t *testing.T) {
	r, l, _ := planted(0, 0, 100, 0, 0)
	l.Start, l.End = l.Start+100e9, l.End+100e9
	if err := r.AddResponder(l, 1, -1); !errors.Is(err, ErrNoOverlap) {
		t.Error(err)
	}
	l.Start, l.End, l.Intervals = l.Start-100e9, l.End-100e9, nil
	if err := r.AddResponder(l, 1, -1); !errors.Is(err, ErrNoGaps) {
		t.Error(err)
	}
	if err := (*Result)(nil).AddResponder(l, 1, -1); !errors.Is(err, ErrNoRows) {
		t.Error(err)
	}
}
