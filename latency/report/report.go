// Package report is the folder that a measurement leaves behind: what was measured, where, and its histograms.
package report

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/plain"
)

// Schema is the version of report.json that this package writes. It reads this one and all before it.
const Schema = 3

// Metric says what the main series of a report is. Reports of different metrics are not compared.
type Metric string

const (
	RoundTrip  Metric = "round trip"      // request sent to reply seen
	HalfTrip   Metric = "half round trip" // the same, divided by two by the tool that made it
	Turnaround Metric = "turnaround"      // a responder's frame seen to reply posted
	LoopGap    Metric = "gap"             // a polling loop's time between passes

	// Metrics of other tools.
	Response  Metric = "response time"       // of an HTTP request
	Delay     Metric = "one-way delay"       // by two clocks
	Smoothed  Metric = "smoothed round trip" // a TCP sender's average
	WakeUp    Metric = "wake-up latency"     // from a timer to its thread
	Unlabeled Metric = "latency"             // the file does not say of what
)

// Report is one measurement with all that is needed to judge it. A zero field is unknown.
type Report struct {
	Schema  int      `json:"schema"`
	Tool    string   `json:"tool"`    // "bench", "responder"
	Version string   `json:"version"` // of the tool
	Label   string   `json:"label"`   // what a table calls it; the folder's name if empty
	Args    []string `json:"args"`    // the command line
	Metric  Metric   `json:"metric"`

	Anonymous bool `json:"anonymous,omitempty"` // Anonymize was called: what identifies the machine is left out, not unknown

	// Session is the same in reports that one command measured alternately (rebound-bench run -ab), run by run: their runs are
	// then compared in pairs.
	Session  string    `json:"session,omitempty"`
	Schedule *Schedule `json:"schedule,omitempty"` // of such a session; older versions measured in a fixed order and wrote none

	Unfinished *Unfinished `json:"unfinished,omitempty"` // the measurement has not ended, or was cut short; nil for a whole report

	Start time.Time `json:"start"`
	End   time.Time `json:"end"`

	Traffic Traffic           `json:"traffic"`
	Device  Device            `json:"device"`
	Host    host.Facts        `json:"host"`
	Clock   latency.ClockInfo `json:"clock"`
	Counts  Counts            `json:"counts"`
	Drops   []Drop            `json:"drops,omitempty"` // counters that say where frames were dropped, those above zero
	Order   *Order            `json:"order,omitempty"` // bench only
	Tail    *Tail             `json:"tail,omitempty"`  // bench only
	STAMP   *STAMP            `json:"stamp,omitempty"` // of STAMP only
	// Warnings are what a reader must know before using the numbers, like an interruption.
	Warnings []string `json:"warnings,omitempty"`
	Notes    []string `json:"notes,omitempty"` // how it was measured, fallbacks included

	Interval  int64             `json:"interval_ns"`
	Runs      []latency.Run     `json:"runs"`
	Series    []*latency.Series `json:"series"`
	Transfers map[string]int64  `json:"bus_transactions,omitempty"` // backend sim: PCIe transactions by kind ("mmio write", "dma read"), of all replies

	Raw        []latency.Sample `json:"-"`
	RawDropped int64            `json:"raw_dropped,omitempty"` // samples beyond those in raw.csv.zst

	Dir        string   `json:"-"` // where it was read from
	Foreign    *Foreign `json:"-"` // set where another tool wrote it
	Resolution float64  `json:"-"` // width of the coarsest bucket as a share of its values; 0 for values that this package recorded
}

// Schedule is the order of the slices in a session that alternated. Each block has one slice of each variant, in random
// order, and its slices are of one length, which varies at random from block to block.
type Schedule struct {
	Seed   string `json:"seed"`   // hexadecimal, of package schedule's generator; the same in all reports of the session
	Places []int  `json:"places"` // of this report's slices, its runs: the place within each block, from 0, as measured
	// Looks is how many times the session was planned to be tested, the end included, because a verdict could end it. All of these tests
	// share one chance of a false verdict. 0 is 1.
	Looks int `json:"looks,omitempty"`
}

// Marks returns what of the VLAN tag, DSCP, ECN and TTL is not the default, like "VLAN 5" and "TTL 3".
func (t *Traffic) Marks() (out []string) {
	for _, m := range []struct {
		name  string
		value int
	}{{"VLAN", t.VLAN}, {"DSCP", t.DSCP}, {"ECN", t.ECN}, {"TTL", t.TTL}} {
		if m.value != 0 {
			out = append(out, fmt.Sprintf("%s %d", m.name, m.value))
		}
	}
	return out
}

// Spread describes how an open loop spread its probes, empty for evenly.
func (t *Traffic) Spread() string {
	name, rest, _ := strings.Cut(t.Arrivals, ":")
	switch name {
	case "poisson":
		return "Poisson arrivals"
	case "burst":
		return "bursts of " + rest
	case "replay":
		return "times between packets from " + rest
	}
	return t.Arrivals
}

// Traffic is what was sent.
type Traffic struct {
	Target      string  `json:"target"`             // address, with port where there is one
	Protocol    string  `json:"protocol"`           // "icmp", "udp", "stamp"; of messages "ud", "srd", "stamp-ud", "stamp-srd"
	IPVersion   int     `json:"ip_version"`         // 4, 6; 0 for messages
	FrameSize   int     `json:"frame_size"`         // bytes from the Ethernet header to the end of the payload, without FCS; or of a message
	Mode        string  `json:"mode"`               // "closed", "open"
	Rate        float64 `json:"rate,omitempty"`     // open: frames intended per second
	Arrivals    string  `json:"arrivals,omitempty"` // open: "poisson", "burst:N", "replay:FILE"; empty for evenly spread
	Outstanding int     `json:"outstanding"`        // closed: requests under way at a time
	Transport   string  `json:"transport"`          // "raw" frames through a driver, "socket", "message"
	DSCP        int     `json:"dscp,omitempty"`
	ECN         int     `json:"ecn,omitempty"`
	TTL         int     `json:"ttl,omitempty"`          // or hop limit; 0 is the default of 64
	VLAN        int     `json:"vlan,omitempty"`         // 802.1Q VID of a tag that frame_size leaves out; 0 for none
	SourcePorts int     `json:"source_ports,omitempty"` // UDP source ports used in turn; 0 is 1
	Warmup      int64   `json:"warmup,omitempty"`       // round trips left out at the beginning of each run
}

// Device is the interface that the bench, or the responder, drove. Its fields are those of nic.Info.
type Device struct {
	Driver   string            `json:"driver"`
	Device   string            `json:"device"`
	Model    string            `json:"model"`
	MAC      string            `json:"mac"`
	MTU      int               `json:"mtu"`
	Queues   int               `json:"queues"`
	Backend  string            `json:"backend"` // "silicon", "sim", "socket"
	Push     string            `json:"push"`
	Notes    []string          `json:"notes,omitempty"`
	Speed    int               `json:"speed_mbps,omitempty"`
	Counters map[string]uint64 `json:"counters,omitempty"` // the device's own, at the end
}

// Sim reports whether the device was a model, so that no nanosecond of the report is a card's.
func (d *Device) Sim() bool { return d.Backend == "sim" }

// Counts is what became of the frames of all runs, warm-up excluded.
type Counts struct {
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"` // requests answered in time, each once
	// Lost is how many probes were lost between the hosts at most: those that got no reply, without what counters say was
	// dropped elsewhere. It includes what the target dropped or refused while its counters were not read. In schema 1 it is every probe without a reply.
	Lost int64 `json:"lost"`
	// LostUncertain is how many of Lost may have been dropped elsewhere: the counters that say so have other traffic, too.
	LostUncertain int64 `json:"lost_uncertain,omitempty"`

	Late        int64 `json:"late"` // answered after the deadline; in the histograms all the same
	Duplicates  int64 `json:"duplicates"`
	Reordered   int64 `json:"reordered"`
	CE          int64 `json:"ce_marked,omitempty"`             // replies marked Congestion Experienced (RFC 3168)
	Corrupt     int64 `json:"corrupt"`                         // replies with a wrong header, checksum or payload
	CorruptOnly int64 `json:"answered_corrupt_only,omitempty"` // probes that only corrupt replies answered
	SendFailed  int64 `json:"send_failed,omitempty"`           // not sent: this host's transmit path was full or failed

	// How many probes without a reply were dropped elsewhere than between the hosts, at most: by this host's receive ring, NIC or
	// kernel, by the target on purpose, and by the target's NIC or ring. Report.Drops has what the counters say.
	DroppedHere  int64 `json:"dropped_here,omitempty"`
	RefusedThere int64 `json:"refused_there,omitempty"`
	DroppedThere int64 `json:"dropped_there,omitempty"`
	// How many of SendFailed and of those may have been lost elsewhere: the counters may have other traffic, the warm-up, or probes that
	// were not awaited. If these and LostUncertain are 0, Sent is the sum of Received, Late, CorruptOnly, SendFailed, Lost and those.
	SendFailedUncertain   int64 `json:"send_failed_uncertain,omitempty"`
	DroppedHereUncertain  int64 `json:"dropped_here_uncertain,omitempty"`
	RefusedThereUncertain int64 `json:"refused_there_uncertain,omitempty"`
	DroppedThereUncertain int64 `json:"dropped_there_uncertain,omitempty"`
	// Whether counters had the frames dropped at a place during all runs. If not, 0 means unknown.
	DroppedHereCounted  bool `json:"dropped_here_counted,omitempty"`
	RefusedThereCounted bool `json:"refused_there_counted,omitempty"`
	DroppedThereCounted bool `json:"dropped_there_counted,omitempty"`

	// Where the protocol numbers both directions (stateful STAMP): which way the lost ones went. Nil where it does not. Of those that were
	// lost before the first reply of a run, or after its last, nobody knows the way.
	LostForward  *int64 `json:"lost_forward,omitempty"`
	LostBackward *int64 `json:"lost_backward,omitempty"`
	LostEither   *int64 `json:"lost_either_way,omitempty"`
}

// Order is what the order of the replies, and the gaps in it, tell.
type Order struct {
	// Replies that a later probe's reply overtook, as a part of all replies (RFC 4737 §4.1), and the greatest extent: how
	// many replies came between the first that overtook one and that one (§4.2.1). 255 stands for 255 or more.
	ReorderedRatio float64 `json:"reordered_ratio"`
	Extent         int64   `json:"reordering_extent"`

	// Losses in a row (RFC 3357 §3: loss periods), how many there were by their length, and the longest. A length of 32
	// stands for 32 or more.
	LossPeriods int64        `json:"loss_periods"`
	LongestLoss int64        `json:"longest_loss"`
	LossLengths []LossLength `json:"loss_lengths,omitempty"`
}

// LossLength is the number of loss periods of a length.
type LossLength struct {
	Length int   `json:"length"`
	Count  int64 `json:"count"`
}

// New returns a report that knows its tool, command line and Go build.
func New(tool string, m Metric) *Report {
	return &Report{Schema: Schema, Tool: tool, Version: buildVersion(), Args: slices.Clone(os.Args), Metric: m, Start: time.Now()}
}

// Fill takes over what a recorder kept: series, runs, clock, start and end. Start stays where nothing was recorded.
func (r *Report) Fill(rec latency.Recording) {
	r.Clock, r.Interval, r.Runs, r.Raw, r.RawDropped = rec.Clock, rec.Interval.Nanoseconds(), rec.Runs, rec.Raw, rec.RawDropped
	if len(rec.Runs) > 0 {
		r.Start, r.End = rec.Start, rec.End
	}
	r.Series = append(r.Series, rec.Series...)
}

// Main returns the series that the report is about, nil if it has none.
func (r *Report) Main() *latency.Series { return r.Find(latency.MainSeries) }

// Find returns the series with that name, or nil.
func (r *Report) Find(name string) *latency.Series {
	for _, s := range r.Series {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Add adds a series of which there is only the whole: a self-test, a polling loop's gaps.
func (r *Report) Add(name string, h *latency.Histogram) {
	s := &latency.Series{Name: name, Intervals: []latency.Interval{{End: max(r.End.Sub(r.Start).Nanoseconds(), 0), Histogram: h}}}
	s.Sum()
	r.Series = append(r.Series, s)
}

// ByRun returns the main series of each run; nil for a run with nothing in it.
func (r *Report) ByRun() []*latency.Histogram {
	out := make([]*latency.Histogram, len(r.Runs))
	if r.Main() == nil {
		return out
	}
	parts := make([][]*latency.Histogram, len(r.Runs))
	for _, iv := range r.Main().Intervals {
		middle := iv.Start/2 + iv.End/2 // a log rounds its ends
		i := sort.Search(len(r.Runs), func(i int) bool { return r.Runs[i].End >= middle })
		if i < len(r.Runs) && r.Runs[i].Start <= middle && iv.Histogram.Count > 0 {
			parts[i] = append(parts[i], iv.Histogram)
		}
	}
	for i, hs := range parts {
		if len(hs) > 0 {
			out[i] = latency.Merge(hs...)
		}
	}
	return out
}

// Measured reports whether there is a main series with anything in it.
func (r *Report) Measured() bool {
	return r.Main() != nil && (r.Main().Total.Count > 0 || r.Foreign != nil && len(r.Foreign.Points) > 0)
}

// Name returns what a table calls the report.
func (r *Report) Name() string {
	switch {
	case r.Label != "":
		return r.Label
	case r.Dir != "":
		return plain.Text(filepath.Base(r.Dir))
	}
	return r.Title()
}

// Title is Name without the folder: the label, or what was measured.
func (r *Report) Title() string {
	if r.Label != "" {
		return r.Label
	}
	if r.Traffic.Target != "" {
		return strings.ToUpper(r.Traffic.Protocol) + " " + r.Traffic.Target
	}
	return strings.TrimSpace(r.Device.Driver + " " + r.Device.Device + " " + string(r.Metric))
}

// PerReply returns the bus transactions of one kind that one reply cost.
func (r *Report) PerReply(kind string) float64 {
	return float64(r.Transfers[kind]) / float64(max(r.Counts.Received, 1))
}
