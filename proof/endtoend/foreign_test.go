package endtoend

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestComparesAndReportsOtherToolsFiles(t *testing.T) {
	file := func(name string) string { return filepath.Join("../../internal/bench/foreign/testdata", name) }
	page, other := filepath.Join(t.TempDir(), "page.html"), filepath.Join(t.TempDir(), "other.html")
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"compare -v -unit ms " + file("numbers.txt") + " " + file("table.csv"), 0, []string{
			"note: numbers.txt: list of numbers, values in ms (set by -unit)", "note: table.csv: runs: one measurement in 16 parts", "A  numbers.txt, 200 samples, 16 runs"}},
		{"compare -v " + file("vegeta.hdrplot") + " " + file("vegeta.hdrplot"), 0, []string{"no verdicts, because it counts as one run: samples have no order in time", "put one file for each run into a folder"}},
		{"compare -v " + file("table.csv") + " ../../results/demo/02-xdp", 0, []string{"table.csv was measured by unknown tool, "}},
		{"report -html " + page + " " + file("table.csv"), 0, []string{"latency p50 6.003 µs", "CSV table, values in us", "page " + page}},
		{"compare -html " + other + " " + file("fortio.json") + " " + file("cyclictest.txt"), 0, []string{"NOT COMPARABLE:", "metric: fortio.json has response time, cyclictest.txt has wake-up latency"}},
		{"compare -fail-if p50>+5% " + file("fortio.json") + " " + file("cyclictest.txt"), 1, []string{"not comparable"}},
		{"compare -v -html " + other + " " + file("fortio.json") + " " + file("oha.json"), 0, []string{"B minus A, not tested: ", "p99.99         –         –"}},
		{"compare -fail-if p99>+5% " + file("fortio.json") + " " + file("oha.json"), 1, []string{"fortio.json has percentiles only"}},
		{"report " + file("fping-c.txt"), 1, []string{"Set -series to one of: 127.0.0.1, 127.0.0.2"}},
		{"report -series 127.0.0.1 " + file("fping-c.txt"), 0, []string{"icmp to 127.0.0.1, 30 samples, 3 runs"}},
		{"report " + file("vegeta.json"), 0, []string{"only the listed percentiles are known: no verdicts"}},
		{"report -json " + file("vegeta.json"), 1, []string{"-json needs a whole distribution"}},
		{"report -json " + file("table.csv"), 0, []string{`"metric": "latency"`, "one measurement in 16 parts"}},
		{"report " + file("numbers.txt"), 2, []string{"set -unit"}},
		{"report " + file("make"), 1, []string{"make: format unknown (docs/use/other-tools.md lists the formats)"}},
		{"report ../../internal/bench/foreign/testdata/none", 1, []string{"../../internal/bench/foreign/testdata/none is no report"}},
		{"report ../../internal/bench/foreign", 1, []string{"format unknown"}},
	} {
		r := inProcess(strings.Fields(c.args)...)
		r.fails(t, c.code)
		check.Contains(t, r.out+r.errors, c.says...)
	}
	if text := content(t, page); !strings.Contains(text, "table.csv") || strings.Contains(text, "Over time") {
		t.Errorf("page: %d bytes; it names the file, and draws nothing over time", len(text))
	}
}
