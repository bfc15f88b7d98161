package report

import (
	"fmt"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// Tail says what was seen around the slowest round trips, at most a thousand.
type Tail struct {
	Probes int   `json:"probes"`
	From   int64 `json:"from_ns"` // the fastest of them

	// Excess is the sum of what they lie above the median, in ns, and Own the part of it (0 to 1) in which the bench's own
	// host did not look for replies or had not sent yet.
	Excess float64 `json:"excess_ns"`
	Own    float64 `json:"own"`
	Causes []Cause `json:"causes"`
}

// Cause is something that was seen around some of the slowest round trips.
type Cause struct {
	What   string `json:"what"`
	Probes int    `json:"probes"` // around how many it was seen

	// Explains is the part of the excess (0 to 1) that it can account for; nil where it was only seen, within so many ns.
	Explains *float64 `json:"explains,omitempty"`
	Within   int64    `json:"within_ns,omitempty"`

	// Base is the part of the slowest (0 to 1) around which it would be seen by chance: it is as frequent elsewhere. Nil
	// where it is measured for each probe by itself.
	Base *float64 `json:"base,omitempty"`
}

// Lines tells in words what stands out, the bench's own part first; none for a nil Tail. What is as frequent elsewhere, or
// explains next to nothing, is left out.
func (t *Tail) Lines() []string {
	if t == nil || t.Probes == 0 {
		return nil
	}
	out := []string{fmt.Sprintf("the slowest %d round trips (%s and more): this host's own part of what they lie above the median is %.0f %%",
		t.Probes, latency.FormatNS(float64(t.From)), 100*t.Own)}
	for _, c := range t.Causes {
		share := float64(c.Probes) / float64(t.Probes)
		if c.Explains != nil && *c.Explains < 0.01 || c.Base != nil && share < 1.2**c.Base+0.01 {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s: around %.0f %% of them", c.What, 100*share)
		if c.Explains != nil {
			fmt.Fprintf(&b, ", and may explain %.0f %% of it", 100**c.Explains)
		}
		if c.Within > 0 {
			fmt.Fprintf(&b, ", within %s", latency.FormatNS(float64(c.Within)))
		}
		if c.Base != nil {
			fmt.Fprintf(&b, " (by chance %.0f %%)", 100**c.Base)
		}
		out = append(out, b.String())
	}
	return out
}

// FarGaps says how much of this report's tail the gaps of the responder can explain, by its own report of the same time.
// The empty string says nothing: one of the two does not have what it takes.
func (r *Report) FarGaps(responder *Report) string {
	gaps := responder.Find(latency.GapSeries)
	if !r.Measured() || gaps == nil || gaps.Total.Sum == 0 {
		return ""
	}
	h := r.Main().Total
	from := h.Quantile(0.999)
	if r.Tail != nil && r.Tail.Probes > 0 {
		from = r.Tail.From
	}
	more := from - h.Quantile(0.5)
	slow := h.CountAbove(from - from/500) // a bucket below: histograms have three digits
	if more <= 0 || slow == 0 {
		return ""
	}
	met := gaps.Total.WaitAbove(more)
	return fmt.Sprintf("the responder's own gaps made %s of all frames wait %s or longer; %s of the round trips are so far above the median: %.0f %% of these may be its own",
		latency.FormatShare(met), latency.FormatNS(float64(more)), latency.FormatShare(float64(slow)/float64(h.Count)), 100*min(met*float64(h.Count)/float64(slow), 1))
}
