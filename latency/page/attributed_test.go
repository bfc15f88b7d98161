package page

import (
	"math"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// tailed is a report with attributed round trips: some waited for the responder, some for this host, and some for both.
func tailed() *report.Report {
	var sample, slow []attribution.Probe
	for i := range int64(4096) {
		sample = append(sample, attribution.Probe{Intended: 1000, Sent: 1000, Left: 4000, Looked: 10_900,
			Seen: 11_000 + i%100, Residence: 400, FarWait: 150, ClockError: -1})
	}
	for i := range int64(1000) {
		p := sample[i]
		more := 300_000 - 100*i
		switch i % 3 {
		case 0:
			p.FarWait, p.Looked, p.Seen = more, p.Looked+more, p.Seen+more
		case 1:
			p.Seen += more
		default:
			p.FarWait, p.Seen = more, p.Seen+more
		}
		slow = append(slow, p)
	}
	r := synthetic.Link{Seed: 5, Median: 3400, Spread: 0.12, Runs: 8, Seconds: 4, Rate: 3000}.Report()
	r.Label = "attributed"
	r.Attribution = attribution.Explain(slow, sample, attribution.About{Total: 100_000,
		Direction: "clocks are not synchronised", How: "counters only: no CAP_BPF and CAP_PERFMON",
		MissedCauses: 7}, []attribution.Cause{{Start: 0, End: 1 << 40, Side: attribution.Here,
		Text: "softirq RCU on cpu 0", Weak: true}})
	for i := range int64(shownCauses + 2) {
		track := attribution.Track{Side: "this host", Text: "softirq <RCU> on cpu 0", Name: string(rune('a' + i)),
			Took: 1e6 * (i + 1)}
		if i == 3 {
			track.Side = "responder's host"
		}
		for k := range i + 1 {
			track.Spans = append(track.Spans, attribution.Span{At: r.Start.UnixMicro() + 1e6*(k+1), Length: 1000,
				Took: 1e6})
		}
		r.Attribution.Timeline = append(r.Attribution.Timeline, track)
	}
	return r
}

// The page says what each percentile is made of, shows the slowest ten with their nine times, and says what is known
// and how. A report without attribution has nothing of it.
func TestAttributedPage(t *testing.T) {
	r := tailed()
	r.Attribution.Related, r.Attribution.Aligned = "by the round trips themselves", "aligned by 9 of the slowest"
	html := show(t, Report, r)
	for _, want := range []string{"What is p99.9 made of?", "The slowest round trips",
		"responder&#39;s host, before its loop saw the probe", "unknown part", "reached the responder&#39;s NIC",
		"What is known, and how", "counters only: no CAP_BPF", "7 more were not kept", "Clocks are not synchronised",
		"by the round trips themselves", "aligned by 9 of the slowest",
		"This host: softirq RCU on cpu 0 (weak hint, by counters): 333. Unknown: both"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	// What was observed around the slowest is the weaker of two answers to one question: it is only shown without the
	// attribution.
	r.Tail = &report.Tail{Probes: 1000, Causes: []report.Cause{{What: "softirq NET_RX", Probes: 500}}}
	for _, attributed := range []bool{true, false} {
		if !attributed {
			r.Attribution = nil
		}
		if strings.Contains(show(t, Report, r), "of the slowest 1,000: softirq NET_RX") == attributed {
			t.Errorf("attributed %v: the page has both answers, or none", attributed)
		}
	}
	r = tailed()
	bands := bandPlot(r.Attribution)[0]
	for _, want := range []string{"p50: usual path", "p99.9\tresponder&#39;s host\t", "p99.9\tthis host\t",
		"p99.9\tunknown\t"} {
		if !strings.Contains(string(bands.SVG), want) {
			t.Errorf("the bands lack %q", want)
		}
	}
	// The parts of each bar touch, and reach its round trip.
	for _, row := range slowest(r.Attribution) {
		parts, sum := partsOf(&row.Parts, waySections(), 1)
		for i := 1; i < len(parts); i++ {
			check.Equal(t, parts[i].from, parts[i-1].to, "a part starts at %v")
		}
		check.Equal(t, sum, float64(row.RTT), "the parts are %v ns")
	}
	if svg := string(waterfallPlot(r.Attribution)[0].SVG); strings.Contains(svg, "<title>seen by the responder") ||
		strings.Count(svg, "<title>seen 3") != 2*shownRows {
		t.Error("the waterfall marks a time that may be anywhere, or lacks one that is known")
	}
	check.Equal(t, strings.Count(string(waterfallPlot(r.Attribution)[0].SVG), `class="chart`), 2, "%d drawings")

	r.Attribution = nil
	for _, no := range []string{"made of?", "The slowest round trips", "What is known, and how"} {
		if strings.Contains(show(t, Report, r), no) {
			t.Errorf("a report without attribution has %q", no)
		}
	}
}

// A damaged file's attribution does no harm.
func TestAttributedDamaged(t *testing.T) {
	r := tailed()
	a := r.Attribution
	a.Points = a.Points[:3]
	a.Rows[0].Parts.Unknown, a.Bands[0].Parts = math.MaxInt64, attribution.Parts{}
	show(t, Report, r)
	a.Rows, a.Bands = nil, nil
	show(t, Report, r)
	for n := range tailed().Attribution.Points {
		r := tailed()
		a := r.Attribution
		a.Points = a.Points[:n]
		for i := range a.Rows {
			a.Rows[i].Times, a.Rows[i].Errors = a.Rows[i].Times[:n], a.Rows[i].Errors[:n]
		}
		show(t, Report, r)
	}
}

// Whether the kernel's tracepoints could be used is the field's, not the text's.
func TestRights(t *testing.T) {
	r := tailed()
	rights := func() string { return attributedOf(r).Limits[1].Values[0] }
	check.Contains(t, rights(), "counters only") // an older report
	r.Attribution.CausesBy, r.Attribution.How = attribution.Tracepoints, "BPF"
	check.Equal(t, rights(), "does not apply", "with rights: %s")
	r.Attribution.CausesBy = attribution.Counters
	check.Contains(t, rights(), "BPF; 7 more")
}

// Below the timeline are the five kinds that had a core for the longest, at their times, named in the legend.
func TestCausesOverTime(t *testing.T) {
	r := tailed()
	r.Attribution.Related, r.Attribution.Aligned = "by the round trips themselves", "aligned by 9 of the slowest"
	html := show(t, Report, r)
	for _, want := range []string{"1: this host, softirq &lt;RCU&gt; on cpu 0: g, 7.000 ms</li>",
		"4: responder&#39;s host, softirq &lt;RCU&gt; on cpu 0: d, 4.000 ms</li>", "2 more kinds that took less"} {
		if !strings.Contains(html, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	svg := string(timeFigure(r, r.Main(), "round trip"))
	check.Equal(t, strings.Count(svg, `<rect class="cause c3"`), 2*(7+6+5+3), "%d marks of this host")
	check.Equal(t, strings.Count(svg, `<rect class="cause c4"`), 2*4, "%d marks of the responder's host")
	check.Equal(t, strings.Count(svg, `viewBox="0 0 920 460"`), 1, "%d wide drawings with five rows")
	check.Contains(t, svg, "5: this host, softirq &lt;RCU&gt; on cpu 0: c, 3.000 ms: 1.000 ms from 2.000 s")
	r.Attribution.Timeline = nil
	if html := show(t, Report, r); strings.Contains(html, `class="cause`) ||
		strings.Contains(html, "rows below the axis") {
		t.Error("a report without a timeline of causes has rows")
	}
}
