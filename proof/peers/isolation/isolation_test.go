package isolation

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
)

func TestInterruptsOf(t *testing.T) {
	const text = "            CPU0       CPU2\n   1:          7          9   IO-APIC   1-edge      i8042\n LOC:        100        200   Local timer interrupts\n ERR:          5\n"
	if n, err := interruptsOf(text, 2); err != nil || n != 209 {
		t.Errorf("%d, %v, want 209", n, err)
	}
	for cpu, text := range map[int]string{1: text, 0: "CPU0\n 1: x 2\n"} {
		if n, err := interruptsOf(text, cpu); err == nil {
			t.Errorf("CPU %d of %q: %d, want an error", cpu, text, n)
		}
	}
}

func TestBootOf(t *testing.T) {
	check.Equal(t, bootOf("root=/dev/sda isolcpus=managed_irq,domain,1 quiet nohz_full=1 xnohz_full=2\n"),
		"isolcpus=managed_irq,domain,1 nohz_full=1", "%q")
}

func TestMarkdown(t *testing.T) {
	row := Result{Row: Row{Name: "pinned"}, Notes: []string{"threads: 3 moved"},
		Wait: []latency.Summary{{P50: 30, P99: 4_000_000}, {P50: 10, P99: 2_000_000}, {P50: 20, P99: 250_000_000}},
		Trip: []latency.Summary{{P50: 150, P99: 160, P999: 170, P9999: 180, Count: 999}}, Off: []float64{125},
		Away: []float64{0.5}, Interrupts: []float64{1000}}
	text := Markdown([]Result{row, {Row: Row{Name: "lifted"}, Why: "no right"}})
	check.Contains(t, text,
		"| pinned | 20 ns (10 ns to 30 ns) | 4 ms (2 ms to 250 ms) |", "| lifted | not measured: no right |",
		"| pinned | 150 ns (150 ns to 150 ns) | 160 ns (160 ns to 160 ns) | – | – | 999 (999 to 999) |",
		"| pinned | 125.0 (125.0 to 125.0) | 50.0 % (50.0 to 50.0) | 1000 (1000 to 1000) |",
		"- pinned: threads: 3 moved",
	)
}

func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rows() {
		if seen[r.Key] || r.Key == "" || strings.Contains(r.Key, ",") {
			t.Errorf("key %q is no key, or another row's", r.Key)
		}
		seen[r.Key] = true
		if moves := len(r.Steps) > 1 || len(r.Steps) == 1 && r.Key != "idle"; moves != r.Others {
			t.Errorf("%s: steps %v, but Others is %v", r.Key, r.Steps, r.Others)
		}
	}
}
