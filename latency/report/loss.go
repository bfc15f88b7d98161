package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// Place is where a probe or its reply was dropped.
type Place string

const (
	NotSent      Place = "not sent"      // by this host's transmit path: a full ring or queue, or a send error
	DroppedHere  Place = "dropped here"  // a reply, by this host's receive ring, NIC or kernel
	RefusedThere Place = "refused there" // by the target, which received the probe and did not answer it
	DroppedThere Place = "dropped there" // by the target's NIC, ring or kernel
	// Unknown is a reply that this host's kernel rejected before the bench could see whose it was: it may have been
	// ours.
	Unknown Place = "unknown"
)

// Rejection is the number of replies that were rejected for one reason.
type Rejection struct {
	Reason string `json:"reason"` // as in docs/use/reports.md: "wrong source"
	Frames int64  `json:"frames"`
}

// RejectedText lists the rejected replies by reason; it is empty if there are none.
func (r *Report) RejectedText() string {
	var all []string
	for _, x := range r.Rejected {
		all = append(all, latency.FormatCount(x.Frames)+" "+x.Reason)
	}
	return strings.Join(all, ", ")
}

// Drop is the number of frames that one counter counted as dropped during a report's runs, warm-ups included.
type Drop struct {
	Place  Place  `json:"place"`
	By     string `json:"by"` // the component that dropped them, and the counter's name: "ring: rx_dropped"
	Frames int64  `json:"frames"`

	// Ours means that the counter counts only the probes of this report and their replies. If it is unset, the frames
	// may belong to other traffic.
	Ours bool `json:"ours"`
}

// Unanswered is what is known about the probes without a reply, apart from the counters.
type Unanswered struct {
	Measured int64 // probes that were sent and got no reply, not even a late or corrupt one
	Warmup   int64 // the same for warm-up probes, which are not measured but appear in the counters
	Copies   bool  // duplicate replies were seen: a dropped frame may be a copy of a reply that arrived
	// of Measured, the probes that a stateful STAMP reflector did not receive: replies to them cannot have been dropped
	// here
	Forward int64
}

// Locate divides the probes without a reply into those lost between the hosts and those that counters report as dropped
// elsewhere, and sets Lost and the numbers of all places with their uncertainty. SendFailed must be set already. It
// returns how many of the probes without a reply were certainly dropped at each place.
func (c *Counts) Locate(u Unanswered, drops []Drop) map[Place]int64 {
	limit := func(p Place) int64 {
		if p == DroppedHere || p == Unknown {
			return u.Measured - u.Forward
		}
		return u.Measured
	}
	sure := int64(0) // dropped elsewhere than between the hosts
	sums, certain := map[Place]int64{}, map[Place]int64{}
	for _, place := range Places {
		s := int64(0)
		for _, d := range drops {
			if d.Place != place {
				continue
			}
			sums[place] += d.Frames
			// A counter with more frames than there are probes without a reply has also counted other traffic.
			if d.Ours && !u.Copies && d.Frames <= limit(place)+u.Warmup {
				s += max(d.Frames-u.Warmup, 0)
			}
		}
		certain[place] = min(s, limit(place), u.Measured-sure)
		sure += certain[place]
	}
	total := int64(0)
	for _, place := range Places {
		most := min(sums[place], limit(place), u.Measured-sure+certain[place])
		total += most
		n, uncertain := c.fields(place)
		*n += most
		*uncertain += most - certain[place]
	}
	c.Lost, c.LostUncertain = u.Measured-sure, min(total, u.Measured)-sure
	return certain
}

// fields returns the fields of a place.
func (c *Counts) fields(p Place) (n, uncertain *int64) {
	switch p {
	case NotSent:
		return &c.SendFailed, &c.SendFailedUncertain
	case DroppedHere:
		return &c.DroppedHere, &c.DroppedHereUncertain
	case RefusedThere:
		return &c.RefusedThere, &c.RefusedThereUncertain
	case Unknown:
		return &c.Unknown, &c.UnknownUncertain
	}
	return &c.DroppedThere, &c.DroppedThereUncertain
}

// Add adds the counts of other probes. The directions of loss of the sum are unknown.
func (c *Counts) Add(o *Counts) {
	c.Sent, c.Received, c.Lost, c.LostUncertain = c.Sent+o.Sent, c.Received+o.Received, c.Lost+o.Lost,
		c.LostUncertain+o.LostUncertain
	c.CE, c.NotAwaited, c.Unparsed = c.CE+o.CE, c.NotAwaited+o.NotAwaited, c.Unparsed+o.Unparsed
	c.Late, c.Duplicates, c.Reordered, c.Corrupt, c.CorruptOnly = c.Late+o.Late, c.Duplicates+o.Duplicates,
		c.Reordered+o.Reordered, c.Corrupt+o.Corrupt, c.CorruptOnly+o.CorruptOnly
	for _, p := range Places {
		n, uncertain := c.fields(p)
		more, moreUncertain := o.fields(p)
		*n, *uncertain = *n+*more, *uncertain+*moreUncertain
	}
	c.DroppedHereCounted, c.RefusedThereCounted = c.DroppedHereCounted && o.DroppedHereCounted, c.RefusedThereCounted &&
		o.RefusedThereCounted
	c.DroppedThereCounted, c.UnknownCounted = c.DroppedThereCounted && o.DroppedThereCounted, c.UnknownCounted &&
		o.UnknownCounted
	c.LostForward, c.LostBackward, c.LostEither = nil, nil, nil
}

// LostLeast returns how many probes were certainly lost between the hosts. Lost is the upper bound.
func (c *Counts) LostLeast() int64 { return max(c.Lost-c.LostUncertain, 0) }

// LostText is the number of probes lost between the hosts, or its range.
func (c *Counts) LostText() string {
	return Range(c.LostLeast(), c.Lost, latency.FormatCount[int64])
}

// LostWhere says where the lost probes were lost, as far as counters show: if those of the target were not read, the
// target may have dropped or refused them. It is empty if this host's kernel may have rejected the replies to all of
// them.
func (c *Counts) LostWhere() string {
	if c.Unknown > 0 && c.LostLeast() == 0 {
		return ""
	}
	if c.DroppedThereCounted && c.RefusedThereCounted {
		return "between the hosts"
	}
	return "on the way or in the target"
}

// UnknownText explains probes whose outcome is unknown; it is empty if there are none.
func (c *Counts) UnknownText() string {
	if c.Unknown == 0 {
		return ""
	}
	return fmt.Sprintf("%s unknown: this host's kernel rejected replies with another identifier, address or checksum, which this transport does not show "+
		"(-transport raw -driver afpacket does)", c.AtText(Unknown))
}

// Range formats a number known to be from least to most.
func Range(least, most int64, write func(int64) string) string {
	if least == most {
		return write(most)
	}
	return fmt.Sprintf("between %s and %s", write(least), write(most))
}

// Places are all places, in the order in which tables list them.
var Places = []Place{NotSent, DroppedHere, RefusedThere, DroppedThere, Unknown}

// At returns the greatest possible number of probes dropped at a place.
func (c *Counts) At(p Place) int64 {
	n, _ := c.fields(p)
	return *n
}

// counted reports whether counters covered a place during all runs.
func (c *Counts) counted(p Place) bool {
	return map[Place]bool{NotSent: true, DroppedHere: c.DroppedHereCounted, RefusedThere: c.RefusedThereCounted,
		DroppedThere: c.DroppedThereCounted, Unknown: c.UnknownCounted}[p]
}

// AtText formats the number of probes dropped at a place, or its range, or that it is unknown.
func (c *Counts) AtText(p Place) string {
	n, uncertain := c.fields(p)
	if *n == 0 && !c.counted(p) {
		return "unknown"
	}
	return Range(max(*n-*uncertain, 0), *n, latency.FormatCount[int64])
}

// Elsewhere describes where probes were dropped other than between the hosts, "" if nowhere.
func (c *Counts) Elsewhere() string {
	var out []string
	for _, p := range Places {
		if c.At(p) > 0 {
			out = append(out, fmt.Sprintf("%s %s", c.AtText(p), p))
		}
	}
	return strings.Join(out, ", ")
}

// ByCounter describes the drops at all places: "dropped here: 12 by ring: rx_dropped".
func (r *Report) ByCounter() (out []string) {
	for _, place := range Places {
		var parts []string
		other, sum := false, int64(0)
		for _, d := range r.Drops {
			if d.Place == place && d.Frames > 0 {
				sum += d.Frames
				parts = append(parts, latency.FormatCount(d.Frames)+" by "+d.By)
				other = other || !d.Ours
			}
		}
		if parts == nil {
			continue
		}
		line := fmt.Sprintf("%s: %s", place, strings.Join(parts, ", "))
		switch {
		case other:
			line += " (may include other traffic)"
		case sum > r.Counts.At(place):
			line += " (includes probes that are not in sent: of the warm-up, or not awaited)"
		}
		out = append(out, line)
	}
	return out
}

// AddDrops adds the growth of counters to those of the same name.
func AddDrops(to, more []Drop) []Drop {
	for _, d := range more {
		if i := slices.IndexFunc(to, func(t Drop) bool { return t.Place == d.Place && t.By == d.By }); i >= 0 {
			to[i].Frames += d.Frames
			to[i].Ours = to[i].Ours && d.Ours
		} else if d.Frames > 0 {
			to = append(to, d)
		}
	}
	return to
}

// countedOld sets the DroppedHereCounted fields of a report that an older version wrote: that version read all devices,
// and omitted those without a counter. Such a report does not say whether the target's counters were read.
func (r *Report) countedOld() {
	if r.Tool == "responder" {
		return
	}
	_, device := r.Device.Counters["rx_dropped"]
	r.Counts.DroppedHereCounted = r.Counts.DroppedHereCounted || device || r.Schema > 1 && r.Device.Driver == "socket"
}

// locateOld converts the counts of a schema 1 report to their current meaning: lost was every probe without a reply,
// and the device's own counter was reported separately. A socket's drops were not counted.
func (r *Report) locateOld() {
	c := &r.Counts
	c.Lost = max(0, c.Lost-c.SendFailed)
	if n, ok := r.Device.Counters["rx_dropped"]; ok {
		c.DroppedHere = min(c.Lost, int64(min(n, math.MaxInt64)))
		c.LostUncertain, c.DroppedHereUncertain = c.DroppedHere, c.DroppedHere
	} else if r.Traffic.Transport == "socket" {
		c.LostUncertain = c.Lost
	}
}
