package latency

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestSteadyTSC(t *testing.T) {
	for flags, want := range map[string]struct {
		steady bool
		notes  int
	}{
		"fpu constant_tsc nonstop_tsc tsc_known_freq": {true, 0},
		"fpu constant_tsc":                            {false, 1},
		"fpu tsc":                                     {false, 2},
	} {
		var notes []string
		steady := steadyTSC("processor\t: 0\nflags\t\t: "+flags+"\n\nprocessor\t: 1\nflags\t\t: x\n", &notes)
		if steady != want.steady || len(notes) != want.notes {
			t.Errorf("%q: steady %v, notes %q", flags, steady, notes)
		}
	}
}

func TestSteadyTSCOfThisMachine(t *testing.T) {
	var want []string
	steady := steadyTSC(string(must.Get(os.ReadFile("/proc/cpuinfo"))(t)), &want)
	_, got, notes := counterSource()
	check.Equal(t, got, steady, "steady: %t")
	check.Same(t, notes, want, "notes %q")
}

func TestTSCRateOfThePage(t *testing.T) {
	for _, c := range []struct {
		page unix.PerfEventMmapPage
		hz   float64
	}{
		{unix.PerfEventMmapPage{Capabilities: 1 << 3, Time_mult: 1 << 30, Time_shift: 31}, 2e9},
		{unix.PerfEventMmapPage{Capabilities: 1<<3 | 1, Time_mult: 5, Time_shift: 0}, 2e8},
		{unix.PerfEventMmapPage{Capabilities: 1<<4 | 1<<2, Time_mult: 5, Time_shift: 31}, 0},
		{unix.PerfEventMmapPage{Capabilities: 1 << 3, Time_shift: 31}, 0},
	} {
		hz, _ := tscRate(&c.page)
		check.Equal(t, hz, c.hz, "%v Hz")
	}
}
