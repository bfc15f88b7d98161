package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

func TestTargetsArePositional(t *testing.T) {
	for _, c := range []struct {
		args    string
		targets string
	}{
		{"10.0.0.1", "10.0.0.1"},
		{"10.0.0.1 -rate 20k", "10.0.0.1"},
		{"-rate 20k 10.0.0.1", "10.0.0.1"},
		{"-target 10.0.0.1", "10.0.0.1"},
		{"--target 10.0.0.1", "10.0.0.1"},
		{"10.0.0.1 -rate 20k 10.0.0.2", "10.0.0.1 10.0.0.2"},
		{"-- 10.0.0.1", "10.0.0.1"},
	} {
		o := must.Get(runFlags(new(command.Env), strings.Fields(c.args)))(t)
		var targets []string
		for _, v := range o.Variants {
			targets = append(targets, v.Target.String())
		}
		if strings.Join(targets, " ") != c.targets || o.Paired != (len(targets) > 1) {
			t.Errorf("%s: targets %q, paired %v; want %q", c.args, targets, o.Paired, c.targets)
		}
	}
	for args, want := range map[string]string{
		"10.0.0.1 -target 10.0.0.2":                            "given twice",
		"10.0.0.1 10.0.0.2 -lossless 1M":                       "cannot be combined with",
		"10.0.0.1 -runs 8 -lossless 1M":                        "cannot be combined",
		"10.0.0.1 -driver afpacket -push-max 64":               "push_max: has no effect with driver afpacket",
		"10.0.0.1 -transport raw -push-max 64":                 "push_max: has no effect",
		"127.0.0.1 -transport socket -driver afpacket":         "-driver has no effect with -transport socket",
		"10.0.0.1 -queue 1 -ab driver=afpacket -ab driver=ena": "queue: has no effect",
		"10.0.0.1 10.0.0.2 -ab dscp=0 -ab dscp=46":             "cannot be combined with",
		"":                     "-target",
		"10.0.0.1 -nosuchflag": "nosuchflag",
	} {
		check.Fails(t, args, check.Err(runFlags(new(command.Env), strings.Fields(args))), nil, want)
	}
}

// Before it measures, -ab checks whether its slices can give a verdict, and says which flag to change if they cannot.
// -auto plans when to look for one.
func TestPlanIsChecked(t *testing.T) {
	for args, want := range map[string]string{
		"-duration 6s -ab do=true,name=a -ab do=true,name=b": "no verdict is possible: it needs 9 slices of each variant, and there are 6 (use -duration 9s)",
		"-duration 6s -slice 250ms -ab dscp=0 -ab dscp=46":   "",
		"-duration 10s -rate 20 -slice 100ms -ab ttl=3":      "no verdict is possible: it needs 126 slices of each variant, and there are 100 (use -duration 12.6s or -rate 25)",
		"-duration 10s -rate 1k -slice 1s -ab dscp=0":        "p99 needs 18 slices of each variant, and there are 10 (use -duration 18s or -rate 1334); p99.9 needs 126 (use -duration 2m6s or -rate 13334)",
		"-auto p99.9 -rate 1k -slice 1s -ab dscp=0":          "10m0s [150 300 600]",
		"-runs 10 -duration 10s -rate 1k":                    "10 runs: in a comparison with another report, a verdict at p99.9 needs 80 runs like these (use -runs 80 -duration 1m20s, or -runs 10 -duration 1m40s)",
		"-runs 2 -duration 2s -rate 1k":                      "2 runs: in a comparison with another report, a verdict at p50 needs 8 runs like these (use -runs 8 -duration 8s)",
		"-runs 10 -count 5000":                               "10 runs: in a comparison with another report, a verdict at p99 needs 16 runs like these (use -runs 16 -count 8000, or -runs 10 -count 10000), and at p99.9 needs 160",
		"-runs 10 -duration 100s -rate 1k":                   "",
		"-runs 5000 -duration 1s":                            "-runs 5000 -duration 1s: each run would last 200µs: want 1ms or more (-duration is the time of all runs together)",
		"-runs 10 -duration 1s -closed":                      "",
		"-auto p50 -ab do=true -ab do=false":                 "10m0s [18 37 75 150 300 600]",
		"-auto p50 -duration 1m -ab do=true -ab do=false":    "10m0s [75 150 300 600]",
		"-auto p50 -auto-within 12s -ab do=true -ab do=true": "12s [12]",
		"-auto p50 -auto-within 5s -ab do=true -ab do=true":  "-auto p50 needs 9s of each variant, and -auto-within is 5s",
		"-auto p50 -duration 20m -ab dscp=0":                 "-auto p50 needs 20m0s of each variant",
		"-auto p50 -runs 2 -ab dscp=0":                       "-auto needs -ab, and cannot be combined with",
		"-auto p95 -ab dscp=0":                               "-auto \"p95\": want one of",
		"-auto p99.9 -rate 10 -auto-within 1m -ab dscp=0":    "-auto p99.9 needs",
		"-auto p99 -count 100 -ab dscp=0":                    "-auto needs -ab, and cannot be combined with -count",
		"-auto max -ab dscp=0":                               "-auto",
	} {
		if n := strings.Count(args, "-ab"); n == 1 {
			args += " -ab dscp=8"
		}
		o, err := runFlags(new(command.Env), strings.Fields(args+" -target 10.0.0.1"))
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case strings.HasPrefix(args, "-auto"):
			if !strings.HasPrefix(o.advice, "a verdict at p") {
				t.Errorf("%s says before the run: %q", args, o.advice)
			}
			got = fmt.Sprint(o.Duration, " ", o.Looks)
		default:
			got = o.advice
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// -under measures the same before, during and after the load. -auto ends at the first look at which each variant has a
// verdict at its percentile.
func TestUnderAndAuto(t *testing.T) {
	o := must.Get(runFlags(new(command.Env), strings.Fields("10.0.0.1 -rate 1k -under true")))(t)
	var names []string
	for _, v := range o.Variants {
		names = append(names, fmt.Sprint(v.Name, " ", v.Rates, " ", v.Target))
	}
	check.Same(t, names, []string{"before [1000] 10.0.0.1", "during [1000] 10.0.0.1", "after [1000] 10.0.0.1"}, "%q")
	var said bytes.Buffer
	o = must.Get(runFlags(&command.Env{Stderr: &said}, strings.Fields("10.0.0.1 10.0.0.2 10.0.0.3 -auto p50")))(t)
	at := func(median float64, runs int) *report.Report {
		return synthetic.Link{Seed: 1, Median: median, Seconds: 1, Rate: 1000, Runs: runs}.Report()
	}
	for runs, want := range map[[3]int]string{
		{20, 20, 20}: "",
		{20, 20, 2}:  "no verdict at p50 yet, after 5.000 s of 600.0 s of each variant\n",
		{20, 2, 20}:  "no verdict at p50 yet, after 5.000 s of 600.0 s of each variant\n",
		{2, 20, 20}:  "no verdict at p50 yet, after 500.0 ms of 600.0 s of each variant\n",
	} {
		said.Reset()
		got := o.Enough([]*report.Report{at(4000, runs[0]), at(6000, runs[1]), at(6000, runs[2])})
		if got != (want == "") || said.String() != want {
			t.Errorf("%v: %t, %q, want %q", runs, got, &said, want)
		}
	}
}

// Diagnostics require -v: without it a result fits on a screen, and starts with its headline.
func TestDiagnosticsNeedVerbose(t *testing.T) {
	const dir = "../../results/demo/01-kernel"
	rep := must.Get(report.Read(dir))(t)
	var short, long strings.Builder
	must.OK(t, errors.Join(printReport(&short, rep, false), printReport(&long, rep, true)))
	if !strings.HasPrefix(short.String(), "round trip p50 ") || strings.Count(short.String(), "\n") > 12 ||
		!strings.Contains(short.String(), "report "+dir) {
		t.Errorf("without -v:\n%s", &short)
	}
	if extra := strings.Count(long.String(), "\n") - strings.Count(short.String(), "\n"); extra < 3 {
		t.Errorf("-v adds %d lines:\n%s", extra, &long)
	}
}

// The tables of a sweep and of a search for a rate have a column for each place where frames were dropped, and for late
// replies, if any row has a count. A place without a counter is unknown.
func TestTablesShowPlacesOfLoss(t *testing.T) {
	a, b := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report(),
		synthetic.Link{Seed: 2, Median: 8000, Seconds: 1, Rate: 100}.Report()
	tables := func() []string {
		var sweep, search bytes.Buffer
		found := &measure.SearchResult{Trials: []measure.Trial{{Counts: a.Counts}, {Counts: b.Counts}}}
		must.OK(t, errors.Join(printSweep(&sweep, []*report.Report{a, b}),
			printSearch(&command.Env{Stdout: &search}, found, false)))
		return []string{sweep.String(), search.String()}
	}
	for _, text := range tables() {
		for _, absent := range []string{"not sent", "dropped", "refused", "late", "unknown"} {
			if strings.Contains(text, absent) {
				t.Errorf("%q without a count in\n%s", absent, text)
			}
		}
	}
	a.Counts = report.Counts{Sent: 100, Received: 50, SendFailed: 11, DroppedHere: 12, DroppedHereCounted: true,
		RefusedThere: 13, RefusedThereCounted: true,
		DroppedThere: 14, DroppedThereCounted: true, Late: 15}
	b.Counts = report.Counts{Sent: 100, Received: 99, Lost: 1, LostUncertain: 1}
	for _, text := range tables() {
		for _, want := range []string{`p50 .* sent +lost +not sent +dropped here +refused there +dropped there +late `,
			`100 +0 +11 +12 +13 +14 +15 `,
			`100 +between 0 and 1 +0 +unknown +unknown +unknown +0 `} {
			if !regexp.MustCompile(want).MatchString(text) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
	check.Contains(t, tables()[0], "; 0 of 2 points lost probes, 1 more may have\n")
}

// The rate on the wire includes a VLAN tag, and is not stated for messages.
func TestOnTheWire(t *testing.T) {
	for _, c := range []struct {
		of   report.Traffic
		want string
	}{{report.Traffic{FrameSize: 60, Rate: 1e6}, " (672 Mbit/s on the wire with FCS, preamble and gap)"},
		{report.Traffic{FrameSize: 60, Rate: 1e6, VLAN: 7}, " (704 Mbit/s on the wire with FCS, preamble and gap)"},
		{report.Traffic{FrameSize: 60, Rate: 1e6, Transport: "message"}, ""}} {
		check.Equal(t, onTheWire(&c.of), c.want, "%q")
	}
}

// A sweep starts with its answer.
func TestSweepAnswer(t *testing.T) {
	a, b := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report(),
		synthetic.Link{Seed: 2, Median: 8000, Seconds: 1, Rate: 100}.Report()
	a.Label, b.Label, b.Counts.Lost = "1k/s", "10k/s", 3
	var out bytes.Buffer
	must.OK(t, printSweep(&out, []*report.Report{b, a}))
	a.Warnings, a.Traffic.Rate = []string{"this host could not keep to the rate asked for"}, 0.4
	out.Reset()
	must.OK(t, printSweep(&out, []*report.Report{b, a}))
	check.Contains(t, out.String(), "\nwarning: 1k/s: this host could not keep to the rate asked for\n", " 0.4 ")
	if first, _, _ := strings.Cut(out.String(), "\n"); !regexp.MustCompile(
		`^p50 from \S+ µs \(1k/s\) to \S+ µs \(10k/s\); 1 of 2 points lost probes$`).MatchString(first) {
		t.Errorf("the first line is %q", first)
	}
}

// A search starts with its answer: for each size the rate, its round trips, and the limit above it. Warnings come
// before the trials.
func TestSearchAnswer(t *testing.T) {
	small, big := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 100}.Report(),
		synthetic.Link{Seed: 2, Median: 8000, Seconds: 1, Rate: 100}.Report()
	dir := t.TempDir()
	small.Traffic.Rate, small.Traffic.FrameSize, small.Dir, big.Dir = 500_000, 60, filepath.Join(dir, "01-60"),
		filepath.Join(dir, "02-1514")
	small.Notes = []string{measure.LimitNote + string(measure.Network), "the highest of the rates tried"}
	big.Traffic.Rate, big.Traffic.FrameSize, big.Warnings = 80_000, 1514, []string{measure.CutShort}
	found := &measure.SearchResult{Result: measure.Result{Reports: []*report.Report{small, big}},
		Trials: []measure.Trial{{Rate: 1e6}, {Rate: 500_000, Passed: true}}}
	var out bytes.Buffer
	must.OK(t, printSearch(&command.Env{Stdout: &out}, found, false))
	want := `^500,000 probes per second without loss at 60 bytes \(336 Mbit/s .*\): p50 \S+ µs, p99 \S+ µs; above that the limit is the network
80,000 probes per second without loss at 1514 bytes .*: p50 \S+ µs, p99 \S+ µs
warning: interrupted by a signal.*

 *frame bytes +rate/s`
	if !regexp.MustCompile(want).MatchString(out.String()) ||
		!strings.Contains(out.String(), "\nreport "+small.Dir+"\nreport "+big.Dir+"\npage "+
			filepath.Join(dir, "index.html")+"\n") {
		t.Error(out.String())
	}
	out.Reset()
	if err := printSearch(&command.Env{Stdout: &out}, &measure.SearchResult{Trials: []measure.Trial{{Rate: 1e6}}},
		false); err != nil || !strings.HasPrefix(out.String(), "no rate without loss was found\n") {
		t.Error(out.String())
	}
}

func TestUnused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bench-20261122-090727")
	for _, want := range []string{name, name + "-2", name + "-3"} {
		must.Equal(t, unused(name), want, "unused gives %s")
		must.OK(t, os.Mkdir(want, 0o755))
	}
}

// One measurement is divided into the runs that a comparison needs, if they are long enough.
func TestRunsByDefault(t *testing.T) {
	type runs struct {
		n        int
		count    int64 // of each run
		duration time.Duration
	}
	for args, want := range map[string]runs{
		"":                                  {10, 0, time.Second},
		"-duration 300ms":                   {3, 0, 100 * time.Millisecond},
		"-duration 1m":                      {24, 0, 2500 * time.Millisecond},
		"-count 10001":                      {10, 1001, 0},
		"-count 2999":                       {2, 1500, 0},
		"-count 900":                        {1, 900, 0},
		"-count 30 -runs 2":                 {2, 15, 0},
		"-count 31 -runs 2":                 {2, 16, 0},
		"-runs 8":                           {8, 0, 1250 * time.Millisecond},
		"-duration 4s -runs 8":              {8, 0, 500 * time.Millisecond},
		"-duration 4s -runs 1":              {1, 0, 4 * time.Second},
		"-duration 4s -runs 8 -rate 1k,10k": {8, 0, 500 * time.Millisecond},
	} {
		o := must.Get(runFlags(new(command.Env), strings.Fields("10.0.0.1 "+args)))(t)
		check.Equal(t, runs{o.Runs, o.Count, o.Duration}, want, args+": %+v")
	}
}
