package cycles

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/peers/baseline"
)

func TestBenchmarkLine(t *testing.T) {
	loop, name, v, ok := benchmark(
		"BenchmarkPoll/llq=128/batch=1-2 \t 4435\t 200 ns/op\t 54.5 cycles/reply\t 46.25 doorbell-cycles/reply")
	if !ok || loop != "" || name != "llq=128/batch=1" || v["cycles/reply"] != 54.5 ||
		v["doorbell-cycles/reply"] != 46.25 {
		t.Errorf("%q, %q, %v, %v", loop, name, v, ok)
	}
	loop, name, v, ok = benchmark(
		"BenchmarkDatagramPoll/size=64/batch=1/push=true-2 \t 4435\t 200 ns/op\t 61 cycles/reply\t 57 doorbell-cycles/reply")
	if !ok || loop != ", InfiniBand" || name != "size=64/batch=1/push=true" || v["cycles/reply"] != 61 {
		t.Errorf("%q, %q, %v, %v", loop, name, v, ok)
	}
	loop, name, v, ok = benchmark(
		"BenchmarkKinds/udp6/tag=yes/size=86/batch=1-2 \t 4435\t 200 ns/op\t 61 cycles/reply\t 57 doorbell-cycles/reply")
	if !ok || loop != "" || name != "udp6/tag=yes/size=86/batch=1" || v["cycles/reply"] != 61 {
		t.Errorf("%q, %q, %v, %v", loop, name, v, ok)
	}
	if _, _, _, ok := benchmark("ok  \trebound/nic/drivers/ixgbe\t9.1s"); ok {
		t.Error("a line that is no benchmark is taken for one")
	}
}

func TestDriversHaveBenchmarks(t *testing.T) {
	drivers := drivers()
	if len(drivers) < 6 {
		t.Errorf("only %v are measured", drivers)
	}
	for _, d := range drivers {
		files, _ := filepath.Glob(filepath.Join("../../..", folder(d), "*_test.go"))
		for _, name := range []string{"Poll", "Kinds", "Queues"} {
			if name != "Poll" && d == "efa" { // efa sends messages, which have no kinds
				continue
			}
			if !slices.ContainsFunc(files, func(f string) bool {
				b, err := os.ReadFile(f)
				return err == nil && strings.Contains(string(b), "func Benchmark"+name+"(")
			}) {
				t.Errorf("%s has no Benchmark%s", folder(d), name)
			}
		}
	}
}

func TestMarkdownRatios(t *testing.T) {
	text := Markdown([]Row{
		{"C, guarded", "batch=1", []float64{30, 30, 30}, []float64{20, 10, 25}},
		{"C, ported", "batch=1", []float64{40, 50, 44}, []float64{20, 20, 20}},
		{"ixgbe", "batch=1", []float64{48, 50, 66}, []float64{30, 20, 25}},
		{"mlx5", "size=64", []float64{70}, []float64{60}},
	})
	check.Contains(t, text,
		"| ixgbe | batch=1 | 50.0 (48.0 to 66.0) | 25.0 (20.0 to 30.0) | 1.50 (1.00 to 2.00) | 1.20 (1.00 to 1.50) | 1.25 (1.00 to 1.50) |",
		"| mlx5 | size=64 | 70.0 (70.0 to 70.0) | 60.0 (60.0 to 60.0) |  |  |  |",
	)
}

func TestMarkdownKinds(t *testing.T) {
	text := Markdown([]Row{
		{"C, guarded", "udp/tag=no/size=64/batch=1", []float64{30}, []float64{30}},
		{"C, guarded", "udp/tag=yes/size=256/batch=32", []float64{50}, []float64{50}},
		{"ixgbe", "udp/tag=no/size=256/batch=1", []float64{70}, []float64{70}},
		{"ixgbe", "udp/tag=no/size=64/batch=1", []float64{60}, []float64{60}},
	})
	check.Contains(t, text,
		"| Loop | request | 64 bytes, batch 1 | 256 bytes, batch 1 | 256 bytes, batch 32 |\n",
		"| C, guarded | udp, tagged |  |  | 50.0 (50.0 to 50.0) |\n",
		"| ixgbe | udp | 60.0 (60.0 to 60.0) **2.00 (2.00 to 2.00)** | 70.0 (70.0 to 70.0) |  |\n",
	)
}

func TestLoopsInC(t *testing.T) {
	needs.Long(t)
	needs.Programs(t, "gcc")
	program := filepath.Join(t.TempDir(), "loops")
	must.OK(t, baseline.Compile(loops, program))
	seen := map[string]int{}
	must.OK(t, runC(program, 0, func(name, c string, all, doorbell float64) { seen[name+" "+c]++ }))
	for _, k := range nictest.Kinds() {
		if seen["C, guarded "+k.String()] != 1 {
			t.Errorf("guarded, %s: measured %d times", k, seen["C, guarded "+k.String()])
		}
	}
	for _, loop := range []string{"least", "guarded", "ported"} {
		for _, c := range []string{"batch=1", "batch=32"} {
			if seen["C, "+loop+" "+c] != 1 {
				t.Errorf("%s, %s: measured %d times", loop, c, seen["C, "+loop+" "+c])
			}
		}
	}
}
