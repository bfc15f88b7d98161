package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// lines are command lines of rebound-bench.
const lines = `report nights/a
report -v nights/b bench
report -v bench
report -html one.html nights/c
report -html one.html nights/c nights/d
report -responder responder bench
report -responder responder nights/a
report -responder bench nights/a
report -responder absent nights/a
report -responder responder nights
report -anonymous nights
report -anonymous nights/h
report -html all.html nights
report nights
report empty
report mixed
report absent
report
report ping.txt
report -html ping.html ping.txt
report -json ping.txt nights/absent
compare nights/a nights/g
compare -v nights/a nights/g
compare -html ab.html nights/a nights/b nights/c
compare -fail-if p50>+5% nights/a nights/g
compare -fail-if p50>+5% nights/a nights/b
compare -fail-if nonsense nights/a nights/b
compare nights/a
compare prom:http://h nights/a
history nights
history -stat min,max,mean,p99.9 -out tail.html nights
history -stat p1000 nights
history -out f.html nights/a nights/b
history empty
history mixed
history absent
history
history -out mixed.html nights ping.txt mixed
explain
explain bench
explain bench absent
explain absent responder
explain nights/a responder
explain bench nights/a
explain bench without
explain bench xdp
explain bench responder
explain -clock-error 1us bench responder
demo x
demo -rounds 0
demo -duration 0s
demo -driver ena
demo -out nights/a -rounds 1
versus 10.0.0.1
run
run 10.0.0.1 -out nights/a
run 10.0.0.1 -closed -rate 1k
run 10.0.0.1 -lossless 1M -rate 1k
run 10.0.0.1 -lossless 1M -closed
run 10.0.0.1 -lossless 1M -arrivals poisson
run 10.0.0.1 -lossless 1M -count 5
run 10.0.0.1 -lossless 1M,2M
run 10.0.0.1 -lossless x
run -target 10.0.0.1 -lossless 1M -ab dscp=0 -ab dscp=1
run -target 10.0.0.1 -ab dscp=0
run -target 10.0.0.1 -ab dscp=0,do=true -ab dscp=1
run -target 10.0.0.1 -ab nonsense=0 -ab dscp=1
run 10.0.0.1 -runs 0
run 10.0.0.1 -runs 10001
run 10.0.0.1 -count -1
run 10.0.0.1 -auto-within 1m
run 10.0.0.1 -slice 1s
run 10.0.0.1 -do-within 1s
run 10.0.0.1 10.0.0.2 -slice 9ms
run 10.0.0.1 -auto p50
run 10.0.0.1 -under true -rate 1k,2k
run 10.0.0.1 -under true -lossless 1M
run 10.0.0.1 -live=nonsense
run 10.0.0.1 -duration 5
run 10.0.0.1 -transport socket -gateway 10.0.0.9
run 10.0.0.1 -nic.pin
`

// explained is a report with slow round trips, and the report of the responder that had a gap for each.
func explained() (rep, far *report.Report) {
	rep = synthetic.Link{Seed: 4, Median: 10_000, Seconds: 20, Rate: 500, Runs: 1}.Report()
	rep.Traffic.Target, rep.Traffic.Protocol = "10.0.0.2", "icmp"
	far = report.New("responder", report.Turnaround)
	far.Version, far.Args, far.Start, far.End = rep.Version, rep.Args, rep.Start.Add(-time.Second), rep.End
	far.Addresses, far.Counts.Sent = []string{"10.0.0.2"}, rep.Counts.Received
	far.Gaps = &report.Gaps{From: 5000, How: "the kernel's tracepoints"}
	var gaps latency.Tally
	var slow, sample []attribution.Probe
	for i := range int64(100) {
		at := i * 150_000_000
		usual := attribution.Probe{Intended: at, Sent: at, Left: at + 1000, Looked: at + 9900, Seen: at + 10_000,
			FarWait: -1, Residence: -1, ClockError: -1}
		sample = append(sample, usual)
		took := 100_000 + i*i*1000%77_000 + i*100
		usual.Seen, usual.Looked = usual.Seen+took, usual.Looked+took
		slow = append(slow, usual)
		far.Gaps.All = append(far.Gaps.All, report.Gap{Core: 3, Start: rep.Start.UnixNano() + at + 4000,
			Duration: took + 1000}, report.Gap{Core: 3, Start: rep.Start.UnixNano() + at + 4100,
			Duration: took, Text: "polling thread descheduled on cpu 3", Name: "hog"})
		gaps.Record(took)
	}
	far.Series = []*latency.Series{polled(gaps.Histogram())}
	rep.Attribution = attribution.Explain(slow, sample, attribution.About{Total: rep.Counts.Received,
		Epoch: rep.Start.UnixNano(), FarLoop: "ICMP", Direction: "ICMP"}, nil)
	return rep, far
}

// polled are polling gaps.
func polled(h *latency.Histogram) *latency.Series {
	s := &latency.Series{Name: latency.GapSeries, Intervals: []latency.Interval{{Start: 0, End: 1e9, Histogram: h}}}
	s.Sum()
	return s
}

// What each command prints, with its exit status, and the files that it leaves.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	save := func(name string, rep *report.Report) {
		rep.Version, rep.Args = "1", nil
		must.OK(t, report.Write(filepath.Join(dir, name), rep, page.Report))
	}
	for i, median := range []float64{4000, 4010, 4020, 4000, 4010, 4020, 6000, 6010, 6000, 6020, 6010, 6000} {
		rep := synthetic.Link{Seed: uint64(i + 1), Median: median, Seconds: 1, Rate: 1000, Runs: 10}.Report()
		rep.Traffic = report.Traffic{Protocol: "udp", Target: "10.0.0.2:7", FrameSize: 60, Mode: "closed",
			Transport: "raw"}
		rep.Start, rep.End = rep.Start.AddDate(0, 0, i), rep.End.AddDate(0, 0, i)
		rep.Notes, rep.Warnings = []string{"a note"}, []string{"a warning"}[:i%2]
		rep.Counts.Lost = int64(i % 3)
		rep.Counts.Received -= rep.Counts.Lost
		rep.Tail = &report.Tail{Probes: 50, From: 4200, Excess: 90_000, Own: 0.25, Causes: []report.Cause{
			{What: "an interrupt", Probes: 7, Explains: new(0.125)}, {What: "a switch", Probes: 3, Within: 1000}}}
		rep.Series = append(rep.Series, polled(latency.FromCounts([]int64{100, 5000}, []int64{1_000_000, 3})))
		rep.Order = &report.Order{ReorderedRatio: 0.01, Extent: 1, LossPeriods: int64(i), LongestLoss: 2}
		save(fmt.Sprintf("nights/%c", 'a'+i), rep)
	}
	rep, far := explained()
	save("bench", rep)
	save("responder", far)
	without := *far
	without.Gaps = nil
	save("without", &without)
	without.Device.Driver = "xdp"
	save("xdp", &without)
	must.OK(t, os.MkdirAll(filepath.Join(dir, "mixed/.hidden"), 0o755))
	must.OK(t, os.MkdirAll(filepath.Join(dir, "empty"), 0o755))
	const ping = "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.1 ms\n" +
		"64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=0.2 ms\n"
	must.OK(t, os.WriteFile(filepath.Join(dir, "ping.txt"), []byte(ping), 0o644))
	for _, name := range []string{"mixed/a.txt", "mixed/b.html", "mixed/.hidden/c.txt", "mixed/.d"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("nonsense\n"), 0o644))
	}
	file := must.Get(filepath.Abs("testdata/commands.txt"))(t)
	t.Chdir(dir)
	var all strings.Builder
	for line := range strings.Lines(lines) {
		var out, log bytes.Buffer
		code := Run(strings.Fields(line), &out, &log)
		fmt.Fprintf(&all, "$ rebound-bench %s%s%s-> %d\n", line, out.String(), log.String(), code)
	}
	var reports []*report.Report
	for _, name := range []string{"a", "g", "b", "h", "c", "d", "e"} {
		rep := must.Get(report.Read("nights/" + name))(t)
		rep.Traffic.Protocol = []string{"icmp", "udp"}[len(reports)/2%2]
		reports = append(reports, rep)
	}
	// lines of other packages
	detail := regexp.MustCompile(`(?m)^( |\t|around|too few|intervals|runs|\? |.* needs |\+ |$).*\n`)
	title, link := regexp.MustCompile(`<title>([^<]+)`), regexp.MustCompile(`\w+/report.html`)
	must.OK(t, os.Remove("nights/index.html"))
	print := func(what string, do func(*command.Env) error) {
		var out bytes.Buffer
		must.OK(t, do(&command.Env{Stdout: &out}))
		text := out.String()
		if strings.HasPrefix(text, "{") {
			var got struct {
				Reports       []struct{ Dir string }
				Trials, Table []map[string]any
			}
			must.OK(t, json.Unmarshal(out.Bytes(), &got))
			text = fmt.Sprintf("%v\n%v\n%v\n", got.Reports, got.Trials, got.Table)
		}
		fmt.Fprintf(&all, "$ %s\n%s", what, detail.ReplaceAllString(text, ""))
		if index, err := os.ReadFile("nights/index.html"); err == nil {
			fmt.Fprintf(&all, "%s%q\n", title.FindSubmatch(index)[1], link.FindAllString(string(index), -1))
			must.OK(t, os.Remove("nights/index.html"))
		}
	}
	for _, n := range []int{0, 1, 2, 7} {
		for _, paired := range []bool{false, true} {
			for form, name := range []string{"short", "verbose", "json"} {
				print(fmt.Sprintf("%d reports, paired %t, %s", n, paired, name), func(e *command.Env) error {
					return printResult(e, &measure.Result{Reports: reports[:n]}, paired, form == 2, form == 1)
				})
			}
		}
	}
	found := &measure.SearchResult{Result: measure.Result{Reports: reports[:1]}, Trials: []measure.Trial{
		{Size: 60, Rate: 1e6, Counts: report.Counts{Sent: 10, Received: 9, Lost: 1}, Why: "loss"},
		{Size: 60, Rate: 1e3, Passed: true}}}
	for _, asJSON := range []bool{false, true} {
		print(fmt.Sprint("search, json ", asJSON), func(e *command.Env) error {
			return errors.Join(printSearch(e, nil, asJSON), printSearch(e, found, asJSON))
		})
		print(fmt.Sprint("versus, verbose ", asJSON), func(e *command.Env) error {
			return printVersus(e, []string{"10.0.0.1", "10.0.0.2"}, "",
				reports[:4], asJSON)
		})
	}
	must.OK(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".html" {
			fmt.Fprintln(&all, path)
		}
		return err
	}))
	golden.Equal(t, file, all.String())
}
