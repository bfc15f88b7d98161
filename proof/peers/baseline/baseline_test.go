package baseline

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// Start returns only when the program is ready, the program's input stays open, and the program has ended after Stop.
func TestProcess(t *testing.T) {
	here := func(f func() error) error { return f() }
	p := &Process{Command: []string{"sh", "-c", "echo up; read x; test \"$x\" = quit && echo asked"}, Ready: "up",
		Quit: "quit\n", Within: here}
	must.OK(t, p.Start())
	select {
	case <-p.ended:
		t.Fatal("it ended early")
	default:
	}
	if err := p.Stop(); err != nil || !strings.Contains(p.said.last(), "asked") {
		t.Errorf("%v, it said %q", err, p.said.last())
	}
	p = &Process{Command: []string{"sh", "-c", "echo no such interface; exit 3"}, Ready: "up", Within: here}
	if err := p.Start(); err == nil || !strings.Contains(err.Error(), "no such interface") {
		t.Errorf("a program that fails: %v", err)
	}
}

func TestGapLoop(t *testing.T) {
	needs.Long(t)
	needs.Programs(t, "gcc")
	program := filepath.Join(t.TempDir(), "gap")
	must.OK(t, BuildGap(program))
	clock := must.Get(latency.NewClock())(t)
	began := time.Now()
	h := must.Get(RunGap(program, 0, time.Second, clock))(t)
	if h.Sum < 0.5e9 || h.Sum > 1.05*float64(time.Since(began)) || h.Count < 1000 {
		t.Errorf("%d gaps of %.2f s in all, want those of about one second", h.Count, h.Sum/1e9)
	}
}

// The committed object equals the compiler's output for the source, if the compiler has the same version.
func TestSwapObject(t *testing.T) { nictest.BPFObject(t, "swap.c", "swap_bpfel.o", compiler) }
