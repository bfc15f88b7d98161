package latency

import "testing"

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
