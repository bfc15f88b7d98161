package foreign

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// golden are files that the tools wrote (testdata/make), with the tool's own statistics from the file, in ns.
var golden = []struct {
	file   string
	o      Options
	metric report.Metric
	tool   string
	count  int64
	runs   int // that compare may test
	stats  map[string]float64
	within float64 // the tool's rounding, relative to the value
}{
	{"java.hgrm", Options{Unit: "us"}, report.Unlabeled, "HdrHistogram", 4800, 1,
		map[string]float64{"min": 9.679e3, "p50": 20.095e3, "p90": 26.047e3, "p99.9": 37.375e3, "max": 39.647e3}, 0},
	{"c.hgrm", Options{Unit: "us"}, report.Unlabeled, "HdrHistogram", 2400, 1,
		map[string]float64{"min": 2000e3, "p50": 2503e3, "p90": 2899e3, "max": 2999e3}, 0},
	{"js.hgrm", Options{Unit: "us"}, report.Unlabeled, "HdrHistogram", 2000, 1,
		map[string]float64{"min": 100.031e3, "p50": 200.063e3, "p90": 535.039e3, "max": 599.551e3}, 0},
	{"vegeta.hdrplot", Options{}, report.Unlabeled, "HdrHistogram", 200, 1,
		map[string]float64{"min": 90806, "p50": 231584, "p90": 405749, "max": 7794194}, 0},
	{"java.hlog", Options{}, report.Unlabeled, "HdrHistogram", 4800, 16,
		map[string]float64{"p50": 20.095e3, "p90": 26.047e3, "max": 39.647e3}, 0},
	{"c.hlog", Options{}, report.Unlabeled, "HdrHistogram", 2400, 12,
		map[string]float64{"p50": 2503e3, "p90": 2899e3, "max": 2999e3}, 0},
	{"js.hlog", Options{Unit: "ns", Series: "read"}, report.Unlabeled, "HdrHistogram", 1000, 10, nil, 0},
	{"numbers.txt", Options{Unit: "ms"}, report.Unlabeled, "unknown tool", 200, 16,
		map[string]float64{"min": 3e3, "p50": 6e3, "p90": 16e3, "p99": 37e3, "max": 114e3, "mean": 9e3}, 0.1},
	{"table.csv", Options{}, report.Unlabeled, "unknown tool", 200, 16,
		map[string]float64{"min": 3e3, "p50": 6e3, "p90": 16e3, "p99": 37e3, "max": 114e3, "mean": 9e3}, 0.1},
	{"ping.txt", Options{}, report.RoundTrip, "ping", 200, 16, map[string]float64{"min": 3e3, "max": 114e3, "mean": 9e3}, 0.06},
	{"ping-D.txt", Options{}, report.RoundTrip, "ping", 200, 16, map[string]float64{"min": 4e3, "max": 180e3, "mean": 14e3}, 0.06},
	{"fping-c.txt", Options{Series: "127.0.0.2"}, report.RoundTrip, "fping", 30, 3, map[string]float64{"min": 7e3, "max": 62e3, "mean": 28e3}, 0.02},
	{"fping-C.txt", Options{}, report.RoundTrip, "fping", 200, 16, map[string]float64{"min": 5e3, "p50": 37e3, "p90": 46e3, "max": 77e3}, 0},
	{"fping-D.txt", Options{}, report.RoundTrip, "fping", 30, 3, map[string]float64{"mean": 41e3}, 0.02},
	{"irtt.json", Options{}, report.RoundTrip, "irtt", 40, 4, map[string]float64{"min": 35644, "max": 213881, "mean": 74860}, 0},
	// sockperf prints half of the round trip.
	{"sockperf.csv", Options{}, report.RoundTrip, "sockperf", 190, 16, map[string]float64{"min": 2 * 14752, "p50": 2 * 26579, "p90": 2 * 315777, "max": 2 * 26356903, "mean": 2 * 376750}, 0},
	{"sockperf-ul.csv", Options{}, report.RoundTrip, "sockperf", 137, 13, map[string]float64{"min": 2 * 6569, "p50": 2 * 33647, "max": 2 * 3275232, "mean": 2 * 286180}, 0},
	{"cyclictest.txt", Options{}, report.WakeUp, "cyclictest", 600, 1, map[string]float64{"min": 11e3, "max": 2069e3, "mean": 88.5e3}, 0},
	{"cyclictest.json", Options{}, report.WakeUp, "cyclictest", 600, 1, map[string]float64{"min": 12e3, "max": 792e3, "mean": (77.44 + 70.79) / 2 * 1e3}, 0},
	{"netperf.txt", Options{}, report.RoundTrip, "netperf", 0, 1, map[string]float64{"min": 9e3, "p50": 10e3, "p90": 11e3, "p99": 124e3, "max": 32483e3, "mean": 20.15e3}, 0},
	{"netperf.csv", Options{}, report.RoundTrip, "netperf", 0, 1, map[string]float64{"min": 11e3, "p50": 12e3, "p90": 13e3, "p99": 58e3, "max": 5885e3, "mean": 19.24e3}, 0},
	{"iperf3.json", Options{}, report.Smoothed, "iperf3", 12, 1, map[string]float64{"min": 8e3, "max": 25e3, "mean": 16e3}, 0.05},
	{"fortio.json", Options{}, report.Response, "fortio", 300, 1, map[string]float64{"min": 37787, "p50": 527103.5, "p75": 773403.8, "p90": 921183.9, "p99": 3000000, "p99.9": 21500144, "max": 22143064, "mean": 403697.6}, 0},
	{"vegeta.json", Options{}, report.Response, "vegeta", 200, 1, map[string]float64{"min": 90806, "p50": 231584, "p90": 405749, "p95": 695099, "p99": 2995413, "max": 7794194, "mean": 338080}, 0},
	// vegeta's percentiles are estimates between two samples.
	{"vegeta.ndjson", Options{}, report.Response, "vegeta", 200, 16, map[string]float64{"min": 90806, "p50": 231584, "p90": 405749, "max": 7794194, "mean": 338080}, 0.03},
	{"vegeta.csv", Options{}, report.Response, "vegeta", 200, 16, map[string]float64{"min": 90806, "p50": 231584, "p90": 405749, "max": 7794194, "mean": 338080}, 0.03},
	{"wrk.txt", Options{}, report.Response, "wrk", 27040, 1, map[string]float64{"p50": 39e3, "p75": 120e3, "p90": 1.61e6, "p99": 34.43e6}, 0},
	// wrk2 prints p90 as 48.19 ms, and in its spectrum, which is what we read, as 48.53 ms: its rank is one lower.
	{"wrk2.txt", Options{}, report.Response, "wrk2", 799, 1, map[string]float64{"min": 149e3, "p50": 1.17e6, "p75": 8.487e6, "p90": 48.53e6, "p99.9": 145.663e6, "max": 145.663e6, "mean": 14.279e6}, 0.002},
	{"oha.json", Options{}, report.Response, "oha", 2000, 1, map[string]float64{"min": 504108, "p50": 2028038, "p90": 3336866, "p99": 5328825, "p99.9": 6770917, "max": 8187888, "mean": 2202322}, 0},
	{"pscheduler-rtt.json", Options{}, report.RoundTrip, "perfSONAR", 119, 11, map[string]float64{"min": 588e3, "p50": 908e3, "max": 1362e3, "mean": 932.34e3}, 0},
	{"pscheduler-latency.json", Options{}, report.Delay, "perfSONAR", 600, 1, map[string]float64{"min": 1.61e6, "p50": 2.23e6, "p90": 2.49e6, "max": 2.96e6}, 0},
	// Prometheus interpolates: histogram_quantile(0.5, increase(rpc_seconds[10s])) was 499.143 µs.
	{"prometheus.json", Options{}, report.Unlabeled, "Prometheus", 3233, 9, map[string]float64{"p50": 499143}, 0.011},
}

// histogramDigits is the precision of a report's histograms.
const histogramDigits = 0.001

func TestFilesOfRealTools(t *testing.T) {
	for _, g := range golden {
		t.Run(g.file, func(t *testing.T) {
			r := must.Get(Read(filepath.Join("testdata", g.file), g.o))(t)
			if r.Metric != g.metric || r.Tool != g.tool || r.Name() != g.file {
				t.Errorf("%s of %s, named %s", r.Metric, r.Tool, r.Name())
			}
			check.Equal(t, r.Main().Total.Count, g.count, "%d samples")
			if n := len(r.Runs); n != g.runs && g.runs > 1 || g.runs == 1 && r.Foreign.Single == "" &&
				r.Foreign.Points == nil {
				t.Errorf("%d runs (%q), want %d", n, r.Foreign.Single, g.runs)
			}
			for name, want := range g.stats {
				st := must.Get(compare.ParseStat(name))(t)
				if got := st.OfReport(r); !(math.Abs(got-want) <= 1+want*(g.within+histogramDigits)) {
					t.Errorf("%s is %.0f ns, the tool printed %.0f ns", name, got, want)
				}
			}
			check.Contains(t, strings.Join(r.Foreign.Lines(), "; "), "values in ")
			if c := compare.Reports(r, r); len(c.Obstacles) > 0 {
				t.Errorf("not comparable with itself: %q", c.Obstacles)
			}
		})
	}
}

const sockperfRow = "packet, txTime(sec), rxTime(sec), latency(usec)"

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// probed is a line of cloudprober.
func probed(when, latency string) string {
	return "cloudprober " + when + " labels=ptype=udp,probe=p,dst=h total=4 success=4 latency=" + latency + "\n"
}

func TestMalformedFiles(t *testing.T) {
	for _, c := range []struct {
		name, text string
		o          Options
		says       string
	}{
		{"nothing", "", Options{}, "format unknown"},
		{"prose", "these are words\n", Options{}, "format unknown"},
		{"a word among numbers", "1\n2\nx\n", Options{Unit: "ms"}, `:3: malformed list of numbers: "x" is not a number`},
		{"a negative latency", "1\n-2\n", Options{Unit: "ms"}, ":2: malformed list of numbers: -2 is out of range"},
		{"an infinite latency", "1\nInf\n", Options{Unit: "ms"}, ":2: malformed list of numbers: +Inf is out of range"},
		{"no unit", "1\n2\n", Options{}, "does not state the unit of its values (set -unit ns, us, ms or s)"},
		{"a unit that does not exist", "1\n", Options{Unit: "h"}, `unit "h": want ns, us, ms or s`},
		{"no values", "rtt_us\n", Options{}, "no latencies in it"},
		{"two columns of latencies", "rtt_us,delay_us\n1,2\n", Options{}, ":1: malformed CSV table: which column has the latencies? Set -series to one of: rtt_us, delay_us"},
		{"a column that does not exist", "a,b\n1,2\n", Options{Series: "c"}, `:1: malformed CSV table: no column "c": it has a, b`},
		{"a row that is cut off", "seq,rtt_us\n1,2\n3\n", Options{}, ":3: malformed CSV table: 1 columns, expected 2"},
		{"percentiles that are cut off", "Value Percentile TotalCount 1/(1-Percentile)\n1 0.5 2 2\n", Options{Unit: "us"}, "it is cut off"},
		{"percentiles that decrease", "Value Percentile TotalCount 1/(1-Percentile)\n1 0.5 2 2\n0.5 1.0 4 inf\n", Options{Unit: "us"}, ":3: malformed HdrHistogram percentiles: smaller than the line before"},
		{"percentiles without counts", "Value Percentile TotalCount 1/(1-Percentile)\n1 0.5\n", Options{Unit: "us"}, ":2: malformed HdrHistogram percentiles: 2 columns"},
		{"a log with a broken histogram", "#[Histogram log format version 1.3]\n0,1,1,xyz\n", Options{}, ":2: malformed log"},
		{"a ping that is cut off in a line", "PING x (10.0.0.1) 56(84) bytes of data.\n64 bytes from 10.0.0.1: icmp_seq=1 ttl=64 ti", Options{}, ":2: malformed ping output: no latencies in it: a reply without a time"},
		{"a ping in the year 2283",
			"PING x\n[1795479873.1] 64 bytes from x: icmp_seq=1 ttl=64 time=1 ms\n[9895479873.1] 64 bytes from x: icmp_seq=2 ttl=64 time=1 ms\n",
			Options{}, `:3: malformed ping output: "9895479873.1" is no time`},
		{"two pings in a file", "PING x\n1 packets transmitted, 1 received\nPING x\n1 packets transmitted, 1 received\n", Options{}, ":3: malformed ping output: a second measurement"},
		{"a ping that sent nothing", "PING x\n0 packets transmitted, 0 received\n", Options{}, "no latencies in it"},
		{"a ping in German", "PING x (10.0.0.1) 56(84) Bytes an Daten.\n64 Bytes von 10.0.0.1: icmp_seq=1 ttl=64 Zeit=0,1 ms\n", Options{}, "run ping with LC_ALL=C"},
		{"a ping of an unknown host", "PING x\nping: x: Name or service not known\n", Options{}, ":2: malformed ping output: no latencies in it: ping: x: Name or service not known"},
		{"two runs of a ping that were killed", "PING x\n64 bytes from x: icmp_seq=1 ttl=64 time=1 ms\nPING x\n64 bytes from x: icmp_seq=1 ttl=64 time=1 ms\n", Options{}, ":3: malformed ping output: a second measurement"},
		{"fping in the output of ping", "PING x\n64 bytes from x: icmp_seq=1 ttl=64 time=1 ms\nx : [0], 64 bytes, 0.029 ms (0.029 avg, 0% loss)\n", Options{}, ":3: malformed ping output: a line of fping output: put the output of each tool into its own file"},
		{"two runs of fping", "h : [0], 64 bytes, 0.029 ms (0 avg)\nh : [1], 64 bytes, 0.029 ms (0 avg)\nh : [0], 64 bytes, 0.029 ms (0 avg)\n", Options{}, ":3: malformed fping output: probe 0 of h again"},
		{"two summaries of Windows ping", "Packets: Sent = 1, Received = 0, Lost = 1 (100% loss),\nPackets: Sent = 1, Received = 0, Lost = 1 (100% loss),\n", Options{}, ":2: malformed Windows ping output: a second measurement"},
		{"two runs of Windows ping", "Reply from 10.0.0.1: bytes=32 time=3ms TTL=64\nPackets: Sent = 1, Received = 1, Lost = 0 (0% loss),\nReply from 10.0.0.1: bytes=32 time=3ms TTL=64\n", Options{}, ":3: malformed Windows ping output: a second measurement"},
		{"decimal commas or two columns", "1,5\n2,6\n", Options{Unit: "ms"}, `:1: malformed list of numbers: "1,5" has a comma`},
		{"a quote that does not end", "a,rtt_us\n\"x,1\n", Options{}, ": malformed CSV table: "},
		{"several labels of JMeter", "timeStamp,elapsed,label,responseCode,success\n1795479891230,5,a,200,true\n1795479891230,5,b,200,true\n", Options{}, "which label? Set -series to one of: a, b"},
		{"several commands of hyperfine", `{"results":[{"command":"a","times":[1]},{"command":"b","times":[1]}]}`, Options{}, "which command? Set -series to one of: a, b"},
		{"several targets of fping", string(content(t, "fping-c.txt")), Options{}, "which target? Set -series to one of: 127.0.0.1, 127.0.0.2"},
		{"a target that fping did not probe", string(content(t, "fping-c.txt")), Options{Series: "x"}, `no target "x": it has 127.0.0.1, 127.0.0.2`},
		{"a row of sockperf that is cut off", sockperfRow + "\n0, 1.0, 1.1, 50\n1, 1.2\n", Options{}, ":3: malformed sockperf output: 2 columns, expected 4"},
		{"a reply before its request", sockperfRow + "\n0, 1.1, 1.0, 50\n", Options{}, ":2: malformed sockperf output: "},
		{"a histogram of cyclictest that is cut off", "# Histogram\n000001 000002\n", Options{}, "it is cut off"},
		{"another number of threads", "# Histogram\n000001 000002\n000002 000001 000002\n", Options{}, ":3: malformed cyclictest histogram: 3 columns, expected 2"},
		{"netperf without percentiles", "MIGRATED UDP REQUEST/RESPONSE TEST\nMEAN_LATENCY=3\n", Options{}, "P50_LATENCY"},
		{"netperf with a word", "MIGRATED UDP REQUEST/RESPONSE TEST\nP50_LATENCY=x\n", Options{}, `:2: malformed netperf output: P50 is "x"`},
		{"wrk without --latency", "Running 1s test @ http://10.0.0.1\n  10 requests in 1.00s, 1MB read\n", Options{}, "run it with --latency"},
		{"JSON that is cut off", "{\n\"DurationHistogram\": {\n", Options{}, ":3: malformed JSON: unexpected end of JSON input"},
		{"JSON of an unknown tool", "{\"a\": 1}", Options{}, "format unknown"},
		{"a word for a number", "{\n\"DurationHistogram\": {\"Count\": \"x\"}}", Options{}, ":2: malformed fortio JSON: "},
		{"percentiles that cross", `{"DurationHistogram":{"Count":9,"Percentiles":[{"Percentile":50,"Value":2},{"Percentile":90,"Value":1}]}}`, Options{}, "percentile 90 is below the one before"},
		{"a negative percentile of oha", `{"summary":{},"latencyPercentiles":{"p50":-1}}`, Options{}, "latencyPercentiles: p50: -1 is out of range"},
		{"oha without a finished request", `{"summary":{"slowest":null},"latencyPercentiles":{"p50":null}}`, Options{}, "no latencies in it"},
		{"iperf3 of UDP", `{"start":{},"intervals":[{"streams":[{"end":1}]}]}`, Options{}, "no round trips: iperf3 reports them for the sender of TCP"},
		{"a delay that is negative", `{"histogram-latency":{"-0.50":3}}`, Options{}, "the clocks' error is larger than the delay"},
		{"a round trip in words", `{"roundtrips":[{"rtt":"soon"}]}`, Options{}, `roundtrips[0]: "soon" is no ISO 8601 duration`},
		{"an error of Prometheus", `{"status":"error","error":"parse error","data":{}}`, Options{}, "status error: parse error"},
		{"a scalar of Prometheus", `{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}`, Options{}, "a result of type scalar, want vector or matrix"},
		{"JSON of too many values", `{"histogram-latency":[` + strings.Repeat("0,", maxValues+1) + `0]}`, Options{}, "more than 4194304 values"},
		{"classic histograms", `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"le":"1"},"value":[1,"2"]}]}}`, Options{}, "no native histograms in series le=1"},
		{"a cloudprober that goes back", probed("2 1500590530", "5") + probed("3 1500590520", "5"), Options{Unit: "us"}, ":2: malformed cloudprober output: earlier than the line before"},
		{"a cloudprober of two kinds", probed("2 1500590520", "5") + probed("3 1500590530", "dist:sum:9|count:4|lb:-Inf,1|bc:0,4"), Options{Unit: "us"}, ":2: malformed cloudprober output: a latency of another kind"},
		{"cloudprober's native buckets", probed("2 1500590520", "dist:sum:9|count:4|schema:3"), Options{Unit: "us"}, "native buckets are not read"},
		{"cloudprober's buckets without counts", probed("2 1500590520", "dist:sum:9|count:4|lb:-Inf,1|bc:4"), Options{Unit: "us"}, "2 buckets with 1 counts"},
		{"a sum of cloudprober in words", probed("2 1500590520", "dist:sum:x|count:4|lb:-Inf,1|bc:0,4"), Options{Unit: "us"}, `the sum of latencies is "x"`},
		{"other buckets of cloudprober", probed("2 1500590520", "dist:sum:9|count:4|lb:-Inf,1|bc:0,4") + probed("3 1500590530", "dist:sum:9|count:4|lb:-Inf,2|bc:0,4"), Options{Unit: "us"}, ":2: malformed cloudprober output: other buckets than the line before"},
		{"a log without the tag", string(content(t, "js.hlog")), Options{Series: "x", Unit: "ns"}, `no tag "x": it has `},
		{"a log without intervals", "#[Histogram log format version 1.3]\n", Options{Unit: "ns"}, "no intervals"},
		{"a percentile of oha in words", `{"summary":{},"latencyPercentiles":{"px":1}}`, Options{}, `latencyPercentiles: "px" is no percentile`},
		{"cyclictest without cycles", `{"num_threads":1,"thread":{"0":{"histogram":{},"cycles":0,"min":0,"max":0,"avg":0}}}`, Options{}, "no cycles"},
		{"k6 of another trend", k6Head + k6Text(1, "200", "true"), Options{Series: "x"}, `no metric "x"`},
		{"a metric of k6 in words", `{"metrics":{"http_req_duration":[]}}`, Options{}, "metrics: http_req_duration: "},
		{"Locust with a name twice", "Type,Name,Request Count,Failure Count,Average Response Time,Min Response Time,Max Response Time,50%,99%\nGET,/,1,0,5,1,9,5,10\nGET,/,1,0,5,1,9,5,10\nGET,/,1,0,5,1,9,5,10\n", Options{}, `"GET /" again`},
		{"a watch without the target", string(watchLog(1)), Options{Series: "x"}, `no target "x": it has icmp:10.0.0.2`},
		{"round trips of pScheduler that take days", `{"roundtrips":[{"seq":1,"rtt":"PT999H"}]}`, Options{}, "roundtrips[0]: "},
		{"a line of vegeta that is cut off", string(content(t, "vegeta.ndjson")[:300]), Options{}, ":2: malformed vegeta results in JSON: "},
		{"a row of vegeta that is cut off", "1795479891230848837,200,2313945,0,0,,,,0\n1795479891235519560,200\n", Options{}, ":2: malformed vegeta results in CSV: 2 columns"},
		{"a log with several tags", string(content(t, "js.hlog")), Options{Unit: "ns"}, "which tag? Set -series to one of: read, write"},
	} {
		check.Fails(t, c.name, check.Err(Read(write(t, "x", c.text), c.o)), nil, c.says)
	}
}

func content(t *testing.T, name string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(filepath.Join("testdata", name)))(t)
}

// row returns what a comparison says of a statistic.
func row(p compare.Pair, stat string) compare.Row {
	return p.Rows[slices.IndexFunc(p.Rows, func(r compare.Row) bool { return r.Stat.String() == stat })]
}

// Files of histograms, which have no chronological order, are runs, and get a verdict.
func TestFolderOfRuns(t *testing.T) {
	read := func(shift float64) *report.Report {
		dir := t.TempDir()
		for i := range 10 {
			text := "Value Percentile TotalCount 1/(1-Percentile)\n"
			for j := range 10 {
				text += fmt.Sprintf("%.3f %.2f %d 0\n", 10*shift+0.01*float64(i)+0.1*float64(j), float64(j+1)/10,
					100*(j+1))
			}
			must.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.hgrm", i)), []byte(text), 0o644))
		}
		return must.Get(Read(dir, Options{Unit: "us"}))(t)
	}
	a, b, same := read(1), read(1.5), read(1)
	if len(a.Runs) != 10 || a.Main().Total.Count != 10000 {
		t.Errorf("%d runs, %d samples", len(a.Runs), a.Main().Total.Count)
	}
	if v := row(compare.Reports(a, b).Pairs[0], "p50"); v.Verdict != compare.Slower {
		t.Errorf("50 %% slower: %v, %s", v.Verdict, v.Why)
	}
	if v := row(compare.Reports(a, same).Pairs[0], "p50"); v.Verdict != compare.Noise {
		t.Errorf("unchanged: %v, %s", v.Verdict, v.Why)
	}
}

// Files with times are runs in chronological order, whatever their names.
func TestFolderOfTimedRuns(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"b", "a"} {
		text := strings.ReplaceAll(string(content(t, "ping-D.txt")), "[179547987", fmt.Sprintf("[1795479%d7", 8+i))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	r := must.Get(Read(dir, Options{}))(t)
	if len(r.Runs) != 2 || r.Runs[1].Start != 100e9 || r.Runs[0].End >= 10e9 ||
		r.Counts.Sent != 400 || r.Main().Total.Count != 400 ||
		!r.Foreign.Timed || r.Start.Unix() != 1795479873 {
		t.Errorf("runs %v from %v, %+v, %d samples", r.Runs, r.Start, r.Counts, r.Main().Total.Count)
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "c"), content(t, "irtt.json"), 0o644))
	check.Fails(t, "a folder with files of two tools", check.Err(Read(dir, Options{})), nil,
		"its files differ: ping output in ms (printed on each line), irtt JSON in ns (fixed by irtt)")
	check.Fails(t, "a folder with a page of text", check.Err(Read("testdata", Options{})), nil,
		"testdata/README.md: format unknown")
}

// Open reads a report's folder, a file of a tool, and a folder of such files, and says why another one is none.
func TestOpen(t *testing.T) {
	ping, fping, log := string(content(t, "ping.txt")), string(content(t, "fping-C.txt")), string(watchLog(2))
	for _, c := range []struct {
		name  string
		files map[string]string // a name that ends with a slash is a folder
		o     Options
		says  string // of the error, or else of the warnings
		runs  int    // 0 for an error
	}{
		{"files, and hidden ones", map[string]string{"a": ping, "b": ping, ".x": "?"}, Options{}, "", 2},
		{"one file", map[string]string{"a": ping}, Options{}, "", 1},
		{"nothing", nil, Options{}, "report.json", 0},
		{"hidden files only", map[string]string{".x": "?"}, Options{}, "has no files", 0},
		{"a folder", map[string]string{"a": ping, "b/": ""}, Options{}, "and no folders", 0},
		{"tools that differ", map[string]string{"a": ping, "b": fping}, Options{}, "its files differ: ping output in ms", 0},
		{"percentiles", map[string]string{"a": string(content(t, "fortio.json"))}, Options{}, "percentiles of several runs cannot be combined", 0},
		{"a report's page", map[string]string{report.HTMLFile: ping}, Options{}, "report.json", 0},
		{"a word", map[string]string{"a": "x y z"}, Options{}, "format unknown", 0},
		{"no unit", map[string]string{"a": "1\n2\n"}, Options{}, "set -unit", 0},
		{"an hour without the target", map[string]string{"a.hlog": log, "b.hlog": strings.ReplaceAll(log, "10.0.0.2", "10.0.0.3")},
			Options{Series: "icmp:10.0.0.2"}, "left out: ", 1},
		{"no hour with the target", map[string]string{"a.hlog": log}, Options{Series: "x"}, `no target "x"`, 0},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if path := filepath.Join(dir, name); strings.HasSuffix(name, "/") {
				must.OK(t, os.Mkdir(path, 0o755))
			} else {
				must.OK(t, os.WriteFile(path, []byte(text), 0o644))
			}
		}
		r, err := Open(dir, &c.o)
		if c.runs == 0 {
			check.Fails(t, c.name, err, nil, c.says)
			continue
		}
		if err != nil || len(r.Runs) != c.runs || !strings.Contains(strings.Join(r.Warnings, "; "), c.says) ||
			(r.Foreign.Single != "") != (c.runs == 1) {
			t.Errorf("%s: %v, %+v", c.name, err, r)
		}
	}
	check.Fails(t, "a device", check.Err(Open("/dev", &Options{})), nil, "/dev")
	check.Fails(t, "no file", check.Err(Open("/no/file", &Options{})), os.ErrNotExist)
}

// Lost, duplicate and failed probes are counted, and are not latencies.
func TestLossAndFailures(t *testing.T) {
	const line = "64 bytes from 10.0.0.1: icmp_seq=%d ttl=64 time=%s ms\n"
	for _, c := range []struct {
		name, text string
		o          Options
		values     int64
		counts     report.Counts
		warning    string
	}{
		{"a ping with loss and a duplicate", "PING x\n" + fmt.Sprintf(line, 1, "0.5") + fmt.Sprintf(line, 1,
			"9.5 ms (DUP!)") + fmt.Sprintf(line, 3, "0.7") +
			"3 packets transmitted, 2 received, +1 duplicates, 33% packet loss, time 2ms\n", Options{}, 2, report.Counts{Sent: 3, Received: 2, Lost: 1, Duplicates: 1}, ""},
		{"BusyBox", "PING x (10.0.0.1): 56 data bytes\n64 bytes from 10.0.0.1: seq=0 ttl=64 time=0.083 ms\n1 packets transmitted, 1 packets received, 0% packet loss\n",
			Options{}, 1, report.Counts{Sent: 1, Received: 1}, ""},
		{"a ping that was killed", "PING x\n" + fmt.Sprintf(line, 1, "0.5"), Options{}, 1, report.Counts{Sent: 1, Received: 1}, "whether probes after the last line were lost is unknown"},
		{"an fping with loss", "h : [0], 64 bytes, 0.029 ms (0.029 avg, 0% loss)\nh : [1], timed out (0.029 avg, 50% loss)\n", Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1}, ""},
		{"an fping -C with loss", "h : 0.029 - 0.031\n", Options{}, 2, report.Counts{Sent: 3, Received: 2, Lost: 1}, ""},
		{"an irtt with loss", `{"round_trips":[{"lost":"true_down","delay":{"rtt":5}},{"lost":"false","timestamps":{"client":{"send":{"wall":1000}}},"delay":{"rtt":5}}],"stats":{"duplicates":1}}`,
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1, Duplicates: 1}, ""},
		{"a sockperf with loss",
			"sockperf: # dropped messages = 3; # duplicated messages = 1; # out-of-order messages = 2\n" + sockperfRow +
				"\n0, 1.0, 1.1, 50000\n",
			Options{}, 1, report.Counts{Sent: 4, Received: 1, Lost: 3, Duplicates: 1, Reordered: 2}, ""},
		{"round trips of pScheduler with a duplicate",
			`{"roundtrips":[{"seq":1,"rtt":"PT0.5S"},{"seq":1,"rtt":"PT9S"},{"seq":2}],"sent":2,"lost":1,"duplicates":1}`,
			Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1, Duplicates: 1}, ""},
		{"a table with an empty cell", "seq,rtt_us\n1,5\n2,\n", Options{}, 1, report.Counts{Sent: 2, Received: 1, Lost: 1}, ""},
		{"requests of vegeta that failed",
			"1795479891230848837,200,5,0,0,\n1795479891235519560,503,5,0,0,\n1795479891235519561,0,5,0,0,refused\n",
			Options{}, 3, report.Counts{Sent: 3, Received: 3}, "2 of 3 requests failed"},
		{"requests of fortio that failed",
			`{"DurationHistogram":{"Count":4,"Percentiles":[{"Percentile":50,"Value":2}]},"RetCodes":{"200":3,"503":1}}`,
			Options{}, 4, report.Counts{}, `1 request ended with "503"`},
		{"omitted intervals of iperf3",
			`{"start":{},"intervals":[{"streams":[{"end":1,"rtt":900,"omitted":true}]},{"streams":[{"end":2,"rtt":5,"omitted":false}]}]}`,
			Options{}, 1, report.Counts{}, ""},
	} {
		r := must.Get(Read(write(t, "x", c.text), c.o))(t)
		if r.Main().Total.Count != c.values || r.Counts != c.counts ||
			!strings.Contains(strings.Join(r.Warnings, "; "), c.warning) || c.warning == "" && len(r.Warnings) > 0 {
			t.Errorf("%s: %d values, counts %+v, warnings %q", c.name, r.Main().Total.Count, r.Counts, r.Warnings)
		}
	}
}

// vegeta writes its results in the order of completion, and cyclictest may count nanoseconds.
func TestOrderAndUnits(t *testing.T) {
	var text strings.Builder
	for i := range 160 { // backwards
		fmt.Fprintf(&text, "%d,200,%d,0,0,\n", 1795479891230848837-int64(i)*1e9, 1000*(160-i))
	}
	r := must.Get(Read(write(t, "x", text.String()), Options{}))(t)
	first := r.ByRun()[0]
	if len(r.Runs) != 16 || first.Max != 10000 || r.Runs[0].Start != 0 || r.Runs[15].End != 159e9 {
		t.Errorf("runs %v, the first with values up to %d ns, want the 10 earliest", r.Runs, first.Max)
	}
	for text, want := range map[string]int64{
		`{"num_threads":1,"resolution_in_ns":0,"thread":{"0":{"histogram":{"7":2},"cycles":2,"min":7,"max":7,"avg":7}}}`: 7000,
		`{"num_threads":1,"resolution_in_ns":1,"thread":{"0":{"histogram":{"7":2},"cycles":2,"min":7,"max":7,"avg":7}}}`: 7,
	} {
		check.Equal(t, must.Get(Read(write(t, "x", text), Options{}))(t).Main().Total.Max, want, "a maximum of %d ns")
	}
}

// Data that a file lacks is unknown, and leads to no verdict.
func TestWhatAFormatLacks(t *testing.T) {
	read := func(name string) *report.Report {
		return must.Get(Read(filepath.Join("testdata", name), Options{}))(t)
	}
	for _, c := range []struct{ a, b, stat, why string }{
		{"fortio.json", "vegeta.json", "p50", "fortio.json has percentiles only"},
		{"cyclictest.txt", "cyclictest.json", "p50", "cyclictest.txt counts as one run (samples have no order in time)"},
		{"iperf3.json", "iperf3.json", "p50", "12 samples: too few to divide"},
		{"ping.txt", "netperf.txt", "mean", "netperf.txt has percentiles only"},
	} {
		p := compare.Reports(read(c.a), read(c.b)).Pairs[0]
		r := row(p, c.stat)
		if len(p.Obstacles) > 0 || r.Tested() || !strings.Contains(r.Why, c.why) {
			t.Errorf("%s and %s: tested %v, %q, obstacles %q; want %q", c.a, c.b, r.Tested(), r.Why, p.Obstacles, c.why)
		}
	}
	for file, stats := range map[string][]string{"cyclictest.txt": {"p99", "p99.9"}, "fortio.json": {"p99.99", "p51"},
		"wrk.txt": {"min", "max", "mean", "p99.9"}} {
		for _, name := range stats {
			if st, err := compare.ParseStat(name); err != nil || !math.IsNaN(st.OfReport(read(file))) {
				t.Errorf("%s: %s is known, and the file does not have it (%v)", file, name, err)
			}
		}
	}
	for _, c := range []struct{ a, b, differ string }{
		{"ping.txt", "vegeta.csv", "metric"}, {"ping.txt", "iperf3.json", "metric"}, {"ping.txt", "irtt.json", "protocol"},
		{"pscheduler-latency.json", "pscheduler-rtt.json", "metric"}, {"cyclictest.txt", "oha.json", "metric"}} {
		if o := compare.Reports(read(c.a), read(c.b)).Obstacles; len(o) == 0 ||
			!strings.HasPrefix(o[0], c.differ+": ") || c.differ == "protocol" && len(o) > 1 {
			t.Errorf("%s and %s measured different things, and are compared: %q", c.a, c.b, o)
		}
	}
}

// The two halves of one measurement, whose level drifts as a machine's does, seldom get a verdict. If nothing changed,
// at most 5 % of tables show one.
func TestHalvesOfOneMeasurement(t *testing.T) {
	needs.Long(t)
	const tables, samples = 200, 4000
	random := rand.New(rand.NewPCG(28, 5))
	marks := 0
	for range tables {
		level := 0.0
		var text [2]strings.Builder
		for i := range samples {
			level = 0.999*level + 0.004*random.NormFloat64() // drifts by about 9 % over a thousand samples
			fmt.Fprintf(&text[2*i/samples], "%.3f\n", 20*math.Exp(level+0.2*random.NormFloat64()))
		}
		var sides [2]*report.Report
		for i := range sides {
			sides[i] = must.Get(parse("half", []byte(text[i].String()), Options{Unit: "us"}))(t).report()
		}
		if slices.ContainsFunc(compare.Reports(sides[0], sides[1]).Pairs[0].Rows,
			func(r compare.Row) bool { return r.Verdict > compare.Noise }) {
			marks++
		}
	}
	t.Logf("%d of %d tables have a verdict", marks, tables)
	if marks > tables*5/100 {
		t.Errorf("%d of %d tables that compare a measurement with itself have a verdict", marks, tables)
	}
}

// watchLog is an hour of rebound-watch with one target.
func watchLog(intervals int) []byte {
	var b bytes.Buffer
	report.WriteHlogHead(&b, time.Unix(1795342800, 0))
	fmt.Fprintf(&b, "#[Target: icmp-1 is icmp:10.0.0.2 site=\"a\"]\n")
	for i := range intervals {
		fmt.Fprintf(&b, "#[Counts: icmp-1 from=%d.000 to=%d.000 sent=3 received=2 lost=1 late=0 duplicates=0 reordered=0 corrupt=0 refused=0 send_failed=0 untimed=0 lost_uncertain=0 too_late=0 dropped_here=0 refused_there=0 corrupt_only=0]\n", i, i+1)
		report.WriteHlogLine(&b, "icmp-1", latency.Interval{Start: int64(i) * second, End: int64(i+1) * second,
			Histogram: latency.FromValues([]int64{4000, 5000})})
	}
	return b.Bytes()
}

// Counts that would overflow, and inconsistent numbers, are errors that name the file.
func TestImpossibleNumbers(t *testing.T) {
	const huge = "9223372036854775807"
	head := "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.05 ms\n"
	for name, text := range map[string]string{
		"ping":       head + huge + " packets transmitted, 1 received\n",
		"ping lost":  head + "10 packets transmitted, " + huge + " received\n",
		"fping":      "10.0.0.2 : [0], 64 bytes, 0.05 ms\n10.0.0.2 : xmt/rcv/%loss = " + huge + "/1/0%\n",
		"irtt":       `{"round_trips":[{"lost":"false","timestamps":{"client":{"send":{"wall":1795342800000000000}}},"delay":{"rtt":5000}}],"stats":{"duplicates":` + huge + `}}`,
		"pscheduler": `{"result":{"packets-sent":` + huge + `,"histogram-latency":{"1":2}},"test":{}}`,
		"fortio":     `{"DurationHistogram":{"Count":10,"Min":0.5,"Max":0.1,"Avg":0.2,"Percentiles":[{"Percentile":50,"Value":0.2}]}}`,
		"mean":       `{"DurationHistogram":{"Count":10,"Min":0.1,"Max":0.5,"Avg":0.9,"Percentiles":[{"Percentile":50,"Value":0.2}]}}`,
		"cyclictest": `{"num_threads":1,"thread":{"0":{"histogram":{"5":10},"cycles":10,"min":9,"max":5,"avg":6}}}`,
		"watch":      strings.ReplaceAll(string(watchLog(3)), "sent=3", "sent=1000000000000000"),
		"prometheus": `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"histograms":[[1,{"count":"1","sum":"1","buckets":[[0,"1e-6","2e-6","1"]]}],[301,{"count":"3e18","sum":"1","buckets":[[0,"1e-6","2e-6","9e14"],[0,"2e-6","3e-6","9e14"]]}]]}]}}`,
		"backwards":  `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"histograms":[[301,{"count":"1","sum":"1","buckets":[[0,"1e-6","2e-6","1"]]}],[1,{"count":"3","sum":"1","buckets":[[0,"1e-6","2e-6","3"]]}]]}]}}`,
	} {
		if m, err := parse("f", []byte(text), Options{}); err == nil || !strings.HasPrefix(err.Error(), "f:") {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// The counts of two runs in a folder are added up by kind.
func TestFolderCounts(t *testing.T) {
	dir := t.TempDir()
	for i, more := range []string{"late=1 dropped_here=2", "late=4 dropped_here=8"} {
		text := strings.ReplaceAll(strings.ReplaceAll(string(watchLog(1)), "dropped_here=0", ""), " late=0", " "+more)
		text = strings.ReplaceAll(text, "corrupt_only=0", "corrupt_only=16")
		must.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".hlog")), []byte(text), 0o644))
	}
	rep := must.Get(Read(dir, Options{}))(t)
	if c := rep.Counts; c.Sent != 6 || c.Late != 5 || c.DroppedHere != 10 || c.DroppedHereUncertain != 10 ||
		c.CorruptOnly != 32 {
		t.Errorf("%+v", c)
	}
}

// fuzz passes mutations of the files that match the pattern to the readers.
func fuzz(f *testing.F, pattern string, o Options) {
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		f.Fatalf("no file %s: %v", pattern, err)
	}
	for _, name := range files {
		b := must.Get(os.ReadFile(name))(f)
		f.Add(b)
		if len(b) > 2000 {
			f.Add(b[:2000])
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := parse("f", in, o)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") || !errors.Is(err, report.ErrFormat) &&
				!errors.Is(err, errFormat) && !errors.Is(err, ErrUnit) && !errors.Is(err, report.ErrSchema) {
				t.Errorf("error %v names no file, or has no kind", err)
			}
			return
		}
		r := m.report()
		if !r.Measured() && r.Counts.Sent == 0 {
			t.Error("nothing measured, and no error")
		}
		if c := r.Counts; min(c.Sent, c.Received, c.Lost, c.Late, c.Duplicates, c.Reordered, c.Corrupt) < 0 ||
			r.Main().Total.Count < 0 || max(c.Sent, c.Received, c.Lost, r.Main().Total.Count) > 2*maxCount {
			t.Errorf("%d values, counts %+v", r.Main().Total.Count, c)
		}
		if f := r.Foreign; f.Min > f.Max || f.Mean > f.Max*1.01 {
			t.Errorf("minimum %v, mean %v, maximum %v", f.Min, f.Mean, f.Max)
		}
		for i, run := range r.Runs {
			if run.End < run.Start || i > 0 && run.Start < r.Runs[i-1].Start {
				t.Errorf("runs %v", r.Runs)
			}
		}
		compare.Reports(r, r)
	})
}

func FuzzPing(f *testing.F)       { fuzz(f, "ping*.txt", Options{}) }
func FuzzFping(f *testing.F)      { fuzz(f, "fping*.txt", Options{}) }
func FuzzIrtt(f *testing.F)       { fuzz(f, "irtt.json", Options{}) }
func FuzzSockperf(f *testing.F)   { fuzz(f, "sockperf*.csv", Options{}) }
func FuzzCyclictest(f *testing.F) { fuzz(f, "cyclictest.*", Options{}) }
func FuzzNetperf(f *testing.F)    { fuzz(f, "netperf.*", Options{}) }
func FuzzIperf(f *testing.F)      { fuzz(f, "iperf3.json", Options{}) }
func FuzzFortio(f *testing.F)     { fuzz(f, "fortio.json", Options{}) }
func FuzzVegeta(f *testing.F)     { fuzz(f, "vegeta.*", Options{}) }
func FuzzWrk(f *testing.F)        { fuzz(f, "wrk*.txt", Options{}) }
func FuzzOha(f *testing.F)        { fuzz(f, "oha.json", Options{}) }
func FuzzPscheduler(f *testing.F) { fuzz(f, "pscheduler*.json", Options{}) }
func FuzzPrometheus(f *testing.F) { fuzz(f, "prometheus.json", Options{}) }

func FuzzWatch(f *testing.F) {
	f.Add(watchLog(3))
	f.Fuzz(func(t *testing.T, in []byte) {
		if m, err := parse("f", in, Options{}); err == nil && m.counts.Sent > maxCount {
			t.Errorf("%+v", m.counts)
		}
	})
}

func FuzzLog(f *testing.F)      { fuzz(f, "*.hlog", Options{Unit: "us"}) }
func FuzzSpectrum(f *testing.F) { fuzz(f, "*.h*r*", Options{Unit: "us"}) }
func FuzzNumbers(f *testing.F)  { fuzz(f, "numbers.txt", Options{Unit: "us"}) }
func FuzzTable(f *testing.F)    { fuzz(f, "table.csv", Options{Unit: "us"}) }

// Measurements of one kind become one: each is a run, at its own time if all have one, and a run that overlaps the next
// is cut. Sums and extremes are of all; the mean is of those with values.
func TestCombine(t *testing.T) {
	began := time.Unix(1e9, 0)
	of := func(after, length time.Duration, middle float64, values ...int64) *measurement {
		h := &latency.Histogram{}
		if len(values) > 0 {
			h = latency.FromValues(values)
		}
		m := &measurement{format: "f", unit: "ms", metric: "m", start: began.Add(after), length: int64(length),
			intervals: []latency.Interval{{End: second, Histogram: h}, {Start: second, End: 2 * second}}, beyond: 3,
			least: middle - 1, most: middle + 1, middle: middle, counts: report.Counts{Sent: 5}, single: "s",
			samples: make([]sample, 1), whole: h, warnings: []string{fmt.Sprint("of ", middle)}}
		m.intervals[1].Histogram = &latency.Histogram{}
		return m
	}
	show := func(all ...*measurement) string {
		m, err := combine("dir", all)
		if err != nil {
			return err.Error()
		}
		text := fmt.Sprintf("from %v timed %t: %v to %v, mean %v, %d beyond, %d sent, %q %q %q %t", m.start.Sub(began),
			m.timed, m.least, m.most, m.middle, m.beyond, m.counts.Sent, m.warnings, m.runs, m.single,
			len(m.samples) > 0 || m.whole != nil)
		for _, iv := range m.intervals {
			text += fmt.Sprintf("; %v to %v: %d", time.Duration(iv.Start), time.Duration(iv.End), iv.Histogram.Count)
		}
		return text
	}
	undated, other, another, further := of(0, 0, 4, 1), of(0, 0, 4, 1), of(0, 0, 4, 1), of(0, 0, 4, 1)
	undated.start, other.unit, another.format, further.metric = time.Time{}, "s", "g", "n"
	const s = time.Second
	empty := of(12*s, s, 9)
	empty.middle = math.NaN()
	for _, c := range []struct {
		name string
		all  []*measurement
		want string
	}{
		{"in the order of their starts", []*measurement{of(9*s, 0, 6, 1, 2, 3), of(0, 20*s, 2, 1), empty},
			`from 0s timed true: 1 to 10, mean 5, 9 beyond, 15 sent, ["of 2" "of 6" "of 9"] ` +
				`"3 files, each of which counts as a run" "" false; 0s to 9s: 1; 9s to 11s: 3; 12s to 14s: 0`},
		{"one without a start", []*measurement{of(5*s, 9*s, 6, 1), undated},
			`from 5s timed false: 3 to 7, mean 5, 6 beyond, 10 sent, ["of 6" "of 4"] ` +
				`"2 files, each of which counts as a run" "" false; 0s to 1s: 1; 1s to 2s: 1`},
		{"one file", []*measurement{of(0, 0, 6, 1)},
			`from 0s timed true: 5 to 7, mean 6, 3 beyond, 5 sent, ["of 6"] "" "the folder has one file" false; ` +
				"0s to 2s: 1"},
		{"another unit", []*measurement{of(0, 0, 4, 1), other}, "dir: its files differ: f in ms, f in s"},
		{"another format", []*measurement{of(0, 0, 4, 1), another}, "dir: its files differ: f in ms, g in ms"},
		{"another metric", []*measurement{of(0, 0, 4, 1), further}, "dir: its files differ: f in ms, f in ms"},
	} {
		check.Equal(t, show(c.all...), c.want, c.name+": %s")
	}
}
