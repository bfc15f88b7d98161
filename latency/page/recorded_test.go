package page

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// head matches what all pages have, and files to save, whose content is in other tests.
var head = regexp.MustCompile(`(?s)<style>.*?</style>|<script>.*?</script>|(<meta|<link|<!doc)[^\n]*\n|;base64,[^"]*`)

// data matches the rows of a figure's data. All pages write them the same way, so only one has the first of them in its
// file; all have their number and a checksum.
var data = regexp.MustCompile(`(?s)(<template class="data">[^\n]*\n)(.*?)(</template>)`)

// small is a report with few points, so that what is written of it is short.
func small(seed uint64, label string, median float64, runs int, change func(*report.Report)) *report.Report {
	m := synthetic.Machine{Rnd: rand.New(rand.NewPCG(seed, 1)), Samples: 300, Noise: 0.002, Tail: 0.05,
		Level: synthetic.Quiet}
	r, _ := m.Both(median, median, synthetic.Slices(7, runs, 2, 0.5), 2)
	r.Label, r.Args, r.Version, r.Session, r.Schedule = label, []string{"bench"}, "v1", "", nil
	r.Traffic = report.Traffic{Target: "10.0.0.2", Protocol: "udp", FrameSize: 64, Mode: "closed", Outstanding: 1}
	if change != nil {
		change(r)
	}
	return r
}

// eventful has of everything that a report may have.
func eventful(r *report.Report) {
	few := int64(2)
	r.Traffic = report.Traffic{Target: "10.0.0.2", Protocol: "stamp", FrameSize: 1514, Mode: "open", Rate: 1500,
		Arrivals: "poisson", VLAN: 5, DSCP: 46}
	r.Device = report.Device{Driver: "mlx5", Device: "eth1", Model: "CX", Backend: "silicon", MTU: 1500, Speed: 25_000,
		Notes: []string{"a note", "another"}}
	r.Clock = latency.ClockInfo{Source: "tsc", Frequency: 2.5e9, ErrorPPM: 0.123, Method: "measured", ReadNS: 7.25,
		StepNS: 0.4, Notes: []string{"steady"}}
	r.Counts = report.Counts{Sent: 10_000, Received: 9000, Lost: 12, LostUncertain: 5, Late: 3, Duplicates: 4,
		Reordered: 5, CE: 6, Corrupt: 7, CorruptOnly: 8, SendFailed: 9, DroppedHere: 10, RefusedThere: 11,
		DroppedThere: 12, DroppedThereUncertain: 2, Unknown: 13, DroppedHereCounted: true, DroppedThereCounted: true,
		LostForward: &few, LostBackward: &few, LostEither: &few}
	r.Rejected = []report.Rejection{{Reason: "wrong source", Frames: 7}}
	r.Drops = []report.Drop{{Place: report.DroppedHere, By: "ring", Frames: 10, Ours: true}}
	r.Transfers = map[string]int64{"mmio write": 18_000, "dma read": 9000}
	r.Runs[len(r.Runs)-1].End += 33e9
	late := *r.Main()
	late.Name, late.Intervals = latency.UncorrectedSeries, late.Intervals[1:]
	late.Sum()
	r.Series = append(r.Series, &late)
	r.Add(latency.ThereSeries, latency.FromValues([]int64{1000, 2000}))
	r.Add(latency.JitterSeries, latency.FromValues([]int64{20, 21, 900_000}))
	r.Add(latency.GapSeries, latency.FromValues([]int64{700, 800, 90_000}))
	r.Find(latency.GapSeries).Gaps()
	r.STAMP = &report.STAMP{OneWay: report.OneWay{ErrorNS: 1500}}
	r.Warnings = []string{"one", "two", "three", "four"}
	r.Notes = []string{"note one", "note two"}
	r.Gaps = &report.Gaps{From: 5000, Kept: 2, Causes: []report.GapCause{{Text: "descheduled", Name: "x", Gaps: 1}}}
	a := tailed().Attribution
	for i := range a.Timeline {
		for k := range a.Timeline[i].Spans {
			s := &a.Timeline[i].Spans[k]
			s.At += r.Start.UnixMicro() - tailed().Start.UnixMicro()
			s.Length = 20_000
		}
	}
	a.Points[reached].Clock, a.Cost, a.FarLoop, a.Aligned = "the card's", "nothing", "no answer", "aligned"
	for i := range a.Rows {
		a.Rows[i].Times[reached], a.Rows[i].Errors[reached] = a.Rows[i].RTT-3000, 250
	}
	a.Rows[1].Times[reached] = math.MinInt64
	r.Attribution = a
}

// Everything that is written of some reports and comparisons, as it was recorded: review a difference before the file
// is written again. Only the numbers of one architecture are recorded, because others round intermediate results
// differently.
func TestRecorded(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the recorded numbers are those of amd64")
	}
	sizes := figureSizes
	defer func() { figureSizes = sizes }()
	texts := func(b io.Writer, c *compare.Comparison) {
		for _, write := range []func(io.Writer, *compare.Comparison) error{PrintComparison, PrintSummary, PrintMarkdown,
			PrintJSON} {
			must.OK(t, write(b, c))
			fmt.Fprintln(b)
		}
	}
	plain := func(seed uint64, label string, median float64) *report.Report {
		return small(seed, label, median, 12, nil)
	}
	full := small(1, "", 4000, 2, eventful)
	silent := small(2, "silent", 4000, 2, func(r *report.Report) { r.Counts.Received, r.Series = 0, nil })
	other := small(3, "other", 4000, 2, func(r *report.Report) {
		r.Foreign = &report.Foreign{Format: "ping output", Unit: "ms", Single: "no order", Limits: []string{"a limit"}}
		r.Traffic.Target, r.Traffic.FrameSize, r.Traffic.Mode = "", 0, "open"
	})
	points := small(4, "points", 4000, 1, func(r *report.Report) {
		r.Foreign = &report.Foreign{Format: "k6", Unit: "ms", Points: []latency.Percentile{{Quantile: 0.5, Value: 4000},
			{Quantile: 0.99, Value: 9000}}, Min: 3000, Max: 20_000, Mean: 4500}
	})
	sim := small(5, "", 300, 2, func(r *report.Report) {
		r.Device.Backend, r.Transfers, r.Traffic = "sim", map[string]int64{"mmio write": 500}, report.Traffic{}
	})
	cutShort := small(6, "cut", 4000, 1, func(r *report.Report) {
		r.Unfinished, r.Anonymous = &report.Unfinished{Runs: 3, Run: 2e9}, true
		r.Traffic.Transport, r.Warnings = "message", []string{report.NotOffered}
	})
	var b strings.Builder
	for _, r := range []*report.Report{full, silent, other, points, sim, cutShort} {
		must.OK(t, PrintReport(&b, r))
		fmt.Fprintln(&b)
	}
	base := plain(11, "base", 4000)
	texts(&b, compare.Reports(base, plain(12, "slower", 4400), plain(13, "same", 4000)))
	texts(&b, compare.Reports(base, full, sim))
	texts(&b, compare.Reports(other, points))
	limits := must.Get(compare.ParseLimits("p95>+5%,p50>+1%"))(t)
	texts(&b, compare.Against(limits, base, plain(14, "faster", 2000)))
	sweep := Table{Kind: SweepTable}
	var all []*report.Report
	for i, rate := range []float64{100, 1000, 10_000} {
		for k, size := range []int{60, 1514} {
			all = append(all, small(uint64(20+2*i+k), "", 4000+float64(size)+rate/4, 2, func(r *report.Report) {
				r.Label, r.Traffic.Mode = fmt.Sprint(rate, " of ", size), "open"
				r.Traffic.Rate, r.Traffic.FrameSize, r.Counts.Lost = rate, size, int64(i*k)
			}))
			sweep.Points = append(sweep.Points, PointOf(all[2*i+k], Link{Name: all[2*i+k].Label, Href: "x"}))
		}
	}
	must.OK(t, sweep.Print(&b))
	fmt.Fprintf(&b, "%s\n%v\n%s\n", sweep.CSV(), sweep.JSON(), SweepAnswer(all))
	golden.Equal(t, "testdata/recorded.txt", b.String())

	for name, write := range map[string]func(io.Writer) error{
		"report":  func(w io.Writer) error { return Report(w, full) },
		"plain":   func(w io.Writer) error { return Report(w, sim) },
		"silent":  func(w io.Writer) error { return Report(w, silent) },
		"foreign": func(w io.Writer) error { return Report(w, points) },
		"cut":     func(w io.Writer) error { return Report(w, cutShort) },
		"compare": func(w io.Writer) error {
			return Comparison(w, compare.Reports(base, plain(12, "slower", 4400), full), Link{Name: "a", Href: "b"})
		},
		"sweep": func(w io.Writer) error { return Sweep(w, all, links(all)) },
		"sizes": func(w io.Writer) error { return Sweep(w, all[:2], links(all[:2])) },
		"overview": func(w io.Writer) error {
			c := compare.Reports(base, plain(12, "slower", 4400))
			return Overview(w, "both", []Item{{Link{"base", "b"}, c.Reports[0]}, {Link{"slower", "s"}, c.Reports[1]},
				{Link{"sim", "m"}, sim}, {Link{"silent", "n"}, silent}}, c)
		},
		"versus": func(w io.Writer) error {
			return (&Versus{A: "a", B: "b", OnlyICMP: "why", Parts: []VersusPart{{Name: "ICMP",
				C: compare.Reports(base, plain(12, "slower", 4400))}}}).Write(w)
		},
		"status": func(w io.Writer) error {
			return WriteStatus(w, &Status{Over: "o", Title: "t", Answer: "a", Alerts: []string{"x"}, Name: "target",
				Columns: []string{"c"}, Rows: []StatusRow{{"n", "up", [][]string{{"1", "2"}}}}, Reload: "?every=10",
				Changes: []StatusChange{{time.Unix(1_700_000_000, 0), "n", "fell", "d", true}}, ChangesFoot: "f"})
		},
	} {
		figureSizes = sizes[:1]
		if name == "plain" { // both sizes of one
			figureSizes = sizes
		}
		var page bytes.Buffer
		must.OK(t, write(&page))
		text := head.ReplaceAllString(page.String(), "")
		text = data.ReplaceAllStringFunc(text, func(all string) string {
			m := data.FindStringSubmatch(all)
			first := ""
			if name == "report" {
				first = strings.Join(strings.SplitAfter(m[2], "\n")[:2], "")
			}
			return fmt.Sprintf("%s%s%d rows, CRC-32 %08x%s", m[1], first, strings.Count(m[2], "\n"),
				crc32.ChecksumIEEE([]byte(m[2])), m[3])
		})
		golden.Equal(t, "testdata/recorded/"+name+".html", strings.ReplaceAll(text, "><", ">\n<"))
	}
	check.Equal(t, len(slices.Collect(full.Main().Total.Buckets)) > 10, true, "the report has a distribution: %t")
}
