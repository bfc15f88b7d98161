// Package report writes and reads the folder of a measurement: what was measured, where, and its histograms.
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
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Schema is the version of report.json that this package writes. It reads this version and all earlier ones.
const Schema = 3

// Metric is the quantity of a report's main series. Reports with different metrics are not compared.
type Metric string

const (
	RoundTrip  Metric = "round trip"      // request sent to reply seen
	HalfTrip   Metric = "half round trip" // the same, divided by two by the tool that measured it
	Turnaround Metric = "turnaround"      // a responder's frame seen to reply posted
	LoopGap    Metric = "gap"             // time between iterations of a polling loop

	// Metrics of other tools.
	Response  Metric = "response time"       // of an HTTP request
	Delay     Metric = "one-way delay"       // by two clocks
	Smoothed  Metric = "smoothed round trip" // a TCP sender's average
	WakeUp    Metric = "wake-up latency"     // from a timer's expiry to its thread
	RunTime   Metric = "run time"            // of a command
	Unlabeled Metric = "latency"             // the file does not name the quantity
)

// Report is one measurement with everything needed to assess it. A zero field is unknown.
type Report struct {
	Schema  int      `json:"schema"`
	Tool    string   `json:"tool"`    // "bench", "responder"
	Version string   `json:"version"` // of the tool
	Label   string   `json:"label"`   // name in tables; the folder's name if empty
	Args    []string `json:"args"`    // the command line
	Metric  Metric   `json:"metric"`

	// Anonymize was called: what identifies the machine was removed, not unknown
	Anonymous bool `json:"anonymous,omitempty"`

	// Session is the same in reports that one command measured alternately (rebound-bench run -ab), run by run, so that
	// their runs are compared in pairs.
	Session string `json:"session,omitempty"`
	// order of the slices in such a session; older versions measured in a fixed order and wrote none
	Schedule *Schedule `json:"schedule,omitempty"`

	// the measurement has not ended, or was interrupted; nil for a complete report
	Unfinished *Unfinished `json:"unfinished,omitempty"`

	Start time.Time `json:"start"`
	End   time.Time `json:"end"`

	Traffic Traffic           `json:"traffic"`
	Device  Device            `json:"device"`
	Host    host.Facts        `json:"host"`
	Clock   latency.ClockInfo `json:"clock"`
	Counts  Counts            `json:"counts"`
	Drops   []Drop            `json:"drops,omitempty"` // counters above zero that show where frames were dropped
	// Rejected has the replies that the bench did not accept, by the first thing that is wrong in them: counts.corrupt
	// is their sum. Older versions wrote none.
	Rejected []Rejection `json:"rejected,omitempty"`
	Order    *Order      `json:"order,omitempty"` // bench only
	Tail     *Tail       `json:"tail,omitempty"`  // bench only
	// Attribution divides the slowest round trips between the hosts and the network. Older versions wrote none.
	Attribution *attribution.Result `json:"attribution,omitempty"` // bench only
	STAMP       *STAMP              `json:"stamp,omitempty"`       // STAMP only
	// Addresses are those that a responder answers for. Older versions and anonymous reports have none.
	Addresses []string `json:"addresses,omitempty"`
	Gaps      *Gaps    `json:"gaps,omitempty"` // responder only; nil if its driver has no loop. Older versions wrote none
	// Own names the percentiles of the round trips that this host's own lag accounts for, such as "p99.9". Older
	// versions wrote none.
	Own []string `json:"own_percentiles,omitempty"`
	// Warnings are what a reader must know before using the numbers, such as an interruption.
	Warnings []string `json:"warnings,omitempty"`
	Notes    []string `json:"notes,omitempty"` // how it was measured, fallbacks included

	Interval int64             `json:"interval_ns"`
	Runs     []latency.Run     `json:"runs"`
	Series   []*latency.Series `json:"series"`
	// backend sim: PCIe transactions by kind ("mmio write", "dma read"), total for all replies
	Transfers map[string]int64 `json:"bus_transactions,omitempty"`

	Raw        []latency.Sample `json:"-"`
	RawDropped int64            `json:"raw_dropped,omitempty"` // samples in excess of those in raw.csv.zst

	Dir     string   `json:"-"` // the folder that it was read from
	Foreign *Foreign `json:"-"` // set if another tool wrote it
	// width of the coarsest bucket relative to its values; 0 for values that this package recorded
	Resolution float64 `json:"-"`
}

// Schedule is the order of the slices in a session that alternated. Each block has one slice of each variant, in random
// order. The slices of a block have the same length, which varies randomly from block to block.
type Schedule struct {
	// hexadecimal seed of package schedule's generator; the same in all reports of the session
	Seed   string `json:"seed"`
	Places []int  `json:"places"` // of this report's slices, which are its runs: the position within each block, from 0, as measured
	// Looks is how many tests of the session were planned, including the one at the end, because a verdict could end
	// it. All of these tests share one chance of a false verdict. 0 means 1.
	Looks int `json:"looks,omitempty"`
}

// Marks returns which of VLAN tag, DSCP, ECN and TTL differ from the default, such as "VLAN 5" and "TTL 3".
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

// Spread describes how an open loop spread its probes over time; it is empty if they were even.
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

// Traffic describes the probes that were sent.
type Traffic struct {
	Target string `json:"target"` // address, with the port if there is one
	// "icmp", "udp", "stamp"; for messages "ud", "srd", "stamp-ud", "stamp-srd"
	Protocol  string `json:"protocol"`
	IPVersion int    `json:"ip_version"` // 4, 6; 0 for messages
	// bytes from the Ethernet header to the end of the payload, without FCS; or the size of a message
	FrameSize   int     `json:"frame_size"`
	Mode        string  `json:"mode"`               // "closed", "open"
	Rate        float64 `json:"rate,omitempty"`     // open: frames intended per second
	Arrivals    string  `json:"arrivals,omitempty"` // open: "poisson", "burst:N", "replay:FILE"; empty if evenly spread
	Outstanding int     `json:"outstanding"`        // closed: number of outstanding requests
	Transport   string  `json:"transport"`          // "raw" frames through a driver, "socket", "message"
	DSCP        int     `json:"dscp,omitempty"`
	ECN         int     `json:"ecn,omitempty"`
	TTL         int     `json:"ttl,omitempty"` // or hop limit; 0 is the default of 64
	// VLAN ID of the 802.1Q tag, which frame_size does not include; 0 for none
	VLAN        int   `json:"vlan,omitempty"`
	SourcePorts int   `json:"source_ports,omitempty"` // number of UDP source ports used in rotation; 0 means 1
	Warmup      int64 `json:"warmup,omitempty"`       // round trips left out at the start of each run
}

// Device is the interface that the bench, or the responder, used. Its fields are those of nic.Info.
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
	Counters map[string]uint64 `json:"counters,omitempty"` // the device's own counters, at the end
}

// Sim reports whether the device was a model, so that no time in the report is that of a card.
func (d *Device) Sim() bool { return d.Backend == "sim" }

// Counts has the number of frames with each outcome in all runs, warm-up excluded.
type Counts struct {
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"` // requests answered in time, without duplicates
	// Lost is the greatest number of probes that may have been lost between the hosts: those without a reply, except
	// those that counters report as dropped elsewhere. It includes probes that the target dropped or refused while its
	// counters were not read. In schema 1 it is every probe without a reply.
	Lost int64 `json:"lost"`
	// LostUncertain is how many of Lost may have been dropped elsewhere: the counters that report these drops include
	// other traffic.
	LostUncertain int64 `json:"lost_uncertain,omitempty"`

	Late       int64 `json:"late"` // answered after the deadline; included in the histograms
	Duplicates int64 `json:"duplicates"`
	Reordered  int64 `json:"reordered"`
	CE         int64 `json:"ce_marked,omitempty"` // replies marked Congestion Experienced (RFC 3168)
	// rejected replies: from another address, or with a wrong header, identifier, number, length, checksum or payload;
	// Report.Rejected has the reasons
	Corrupt     int64 `json:"corrupt"`
	CorruptOnly int64 `json:"answered_corrupt_only,omitempty"` // probes with only rejected replies
	SendFailed  int64 `json:"send_failed,omitempty"`           // not sent: this host's transmit path was full or failed
	// lines of another tool's output that may be outcomes of probes and were not understood
	Unparsed int64 `json:"unparsed,omitempty"`
	// probes whose timeout had not passed when the run was interrupted or the port failed; not in Sent
	NotAwaited int64 `json:"not_awaited,omitempty"`

	// The greatest number of probes without a reply that may have been dropped elsewhere than between the hosts: by
	// this host's receive ring, NIC or kernel, by the target on purpose, and by the target's NIC or ring. Report.Drops
	// has the counters.
	DroppedHere  int64 `json:"dropped_here,omitempty"`
	RefusedThere int64 `json:"refused_there,omitempty"`
	DroppedThere int64 `json:"dropped_there,omitempty"`
	// The greatest number of probes without a reply whose replies this host's kernel may have rejected before the bench
	// could see them: for a wrong identifier, address or checksum. It is unknown whether these probes were lost.
	Unknown int64 `json:"unknown,omitempty"`
	// How many of SendFailed and of the four above may have been lost elsewhere: the counters may include other
	// traffic, the warm-up, or probes whose replies were not awaited. If these and LostUncertain are 0, Sent is the sum
	// of Received, Late, CorruptOnly, SendFailed, Lost and those four.
	SendFailedUncertain   int64 `json:"send_failed_uncertain,omitempty"`
	DroppedHereUncertain  int64 `json:"dropped_here_uncertain,omitempty"`
	RefusedThereUncertain int64 `json:"refused_there_uncertain,omitempty"`
	DroppedThereUncertain int64 `json:"dropped_there_uncertain,omitempty"`
	UnknownUncertain      int64 `json:"unknown_uncertain,omitempty"`
	// Whether counters covered the frames dropped at a place during all runs. If not, 0 means unknown.
	DroppedHereCounted  bool `json:"dropped_here_counted,omitempty"`
	RefusedThereCounted bool `json:"refused_there_counted,omitempty"`
	DroppedThereCounted bool `json:"dropped_there_counted,omitempty"`
	UnknownCounted      bool `json:"unknown_counted,omitempty"` // also set if the bench sees every reply itself

	// The direction in which probes were lost, if the protocol numbers both directions (stateful STAMP), otherwise nil.
	// The direction of those lost before the first reply of a run, or after its last, is unknown.
	LostForward  *int64 `json:"lost_forward,omitempty"`
	LostBackward *int64 `json:"lost_backward,omitempty"`
	LostEither   *int64 `json:"lost_either_way,omitempty"`
}

// Order describes the order of the replies, and the gaps in it.
type Order struct {
	// The share of replies that a later probe's reply overtook (RFC 4737 §4.1), and the greatest extent of reordering:
	// how many replies came between the first one that overtook a reply and that reply (§4.2.1). 255 means 255 or more.
	ReorderedRatio float64 `json:"reordered_ratio"`
	Extent         int64   `json:"reordering_extent"`

	// Consecutive losses (RFC 3357 §3: loss periods): how many there were, by length, and the longest. A length of 32
	// means 32 or more.
	LossPeriods int64        `json:"loss_periods"`
	LongestLoss int64        `json:"longest_loss"`
	LossLengths []LossLength `json:"loss_lengths,omitempty"`
}

// LossLength is the number of loss periods of one length.
type LossLength struct {
	Length int   `json:"length"`
	Count  int64 `json:"count"`
}

// New returns a report with its tool, command line and Go build set.
func New(tool string, m Metric) *Report {
	return &Report{Schema: Schema, Tool: tool, Version: buildVersion(), Args: slices.Clone(os.Args), Metric: m,
		Start: time.Now()}
}

// Fill copies a recorder's data: series, runs, clock, start and end. Start is unchanged if nothing was recorded.
func (r *Report) Fill(rec latency.Recording) {
	r.Clock, r.Interval, r.Runs, r.Raw, r.RawDropped = rec.Clock, rec.Interval.Nanoseconds(), rec.Runs, rec.Raw,
		rec.RawDropped
	if len(rec.Runs) > 0 {
		r.Start, r.End = rec.Start, rec.End
	}
	r.Series = append(r.Series, rec.Series...)
}

// Main returns the report's main series, nil if it has none.
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

// Add adds a series that has no intervals, such as a self-test or a polling loop's gaps.
func (r *Report) Add(name string, h *latency.Histogram) {
	s := &latency.Series{Name: name, Intervals: []latency.Interval{
		{End: max(r.End.Sub(r.Start).Nanoseconds(), 0), Histogram: h}}}
	s.Sum()
	r.Series = append(r.Series, s)
}

// ByRun returns the main series of each run, with nil for an empty run.
func (r *Report) ByRun() []*latency.Histogram {
	out := make([]*latency.Histogram, len(r.Runs))
	if r.Main() == nil {
		return out
	}
	parts := make([][]*latency.Histogram, len(r.Runs))
	for _, iv := range r.Main().Intervals {
		middle := iv.Start/2 + iv.End/2 // a log rounds the ends of intervals
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

// Measured reports whether there is a non-empty main series.
func (r *Report) Measured() bool {
	return r.Main() != nil && (r.Main().Total.Count > 0 || r.Foreign != nil && len(r.Foreign.Points) > 0)
}

// Name returns the report's name in tables.
func (r *Report) Name() string {
	switch {
	case r.Label != "":
		return r.Label
	case r.Dir != "":
		return sanitize.Text(filepath.Base(r.Dir))
	}
	return r.Title()
}

// Title is Name without the folder: the label, or a description of what was measured.
func (r *Report) Title() string {
	if r.Label != "" {
		return r.Label
	}
	if r.Traffic.Target != "" {
		return strings.ToUpper(r.Traffic.Protocol) + " " + r.Traffic.Target
	}
	return strings.TrimSpace(r.Device.Driver + " " + r.Device.Device + " " + string(r.Metric))
}

// PerReply returns the number of bus transactions of one kind per reply: those that a bench received, or that a
// responder sent.
func (r *Report) PerReply(kind string) float64 {
	replies := r.Counts.Received
	if r.Tool == "responder" {
		replies = r.Counts.Sent
	}
	return float64(r.Transfers[kind]) / float64(max(replies, 1))
}

// NotOffered starts the warning of a report whose host could not send at the requested rate.
const NotOffered = "this host could not keep the requested rate"
