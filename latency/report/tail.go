package report

import (
	"fmt"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// Tail describes the events around the slowest round trips, at most a thousand of them.
type Tail struct {
	Probes int   `json:"probes"`
	From   int64 `json:"from_ns"` // the fastest of these round trips

	// Excess is the sum of their durations above the median, in ns, and Own the share of it (0 to 1) during which the
	// bench's own host was not polling for replies or had not sent the probe yet.
	Excess float64 `json:"excess_ns"`
	Own    float64 `json:"own"`
	Causes []Cause `json:"causes"`
}

// Cause is an event that was observed around some of the slowest round trips.
type Cause struct {
	What   string `json:"what"`
	Probes int    `json:"probes"` // number of round trips around which it was observed

	// Explains is the share of the excess (0 to 1) that it can account for; nil if it was only observed within the
	// given number of ns.
	Explains *float64 `json:"explains,omitempty"`
	Within   int64    `json:"within_ns,omitempty"`

	// Base is the share of the slowest (0 to 1) around which it would be observed by chance, because it is as frequent
	// elsewhere. Nil if it is measured for each probe separately.
	Base *float64 `json:"base,omitempty"`
}

// TailLines are the lines of Tail; none if the slowest round trips are attributed, because Attribution says more.
func (r *Report) TailLines() []string {
	if r.Attribution != nil && r.Attribution.Probes > 0 {
		return nil
	}
	return r.Tail.Lines()
}

// Lines describes what was observed around the slowest, which hints at a cause; none for a nil Tail. Causes that are as
// frequent elsewhere, or explain almost nothing, are left out.
func (t *Tail) Lines() []string {
	if t == nil || t.Probes == 0 {
		return nil
	}
	var out []string
	for _, c := range t.Causes {
		share := float64(c.Probes) / float64(t.Probes)
		if c.Explains != nil && *c.Explains < 0.01 || c.Base != nil && share < 1.2**c.Base+0.01 {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "around %.0f %% of the slowest %s: %s", 100*share, latency.FormatCount(t.Probes), c.What)
		if c.Explains != nil {
			fmt.Fprintf(&b, ", up to %.0f %% of their time above the median", 100**c.Explains)
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

// FarGaps describes how much of this report's tail the gaps of the responder can explain, according to the responder's
// own report of the same time. It is empty if one of the two reports lacks the data.
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
	slow := h.CountAbove(from - from/500) // one bucket below: histograms have three digits
	if more <= 0 || slow == 0 {
		return ""
	}
	met := gaps.Total.WaitAbove(more)
	return fmt.Sprintf("the responder's own gaps made %s of all frames wait %s or longer; %s of the round trips are so far above the median: %.0f %% of these may be its own",
		latency.FormatShare(met), latency.FormatNS(float64(more)), latency.FormatShare(float64(slow)/float64(h.Count)),
		100*min(met*float64(h.Count)/float64(slow), 1))
}
