package report

import (
	"runtime/debug"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// Causes are counted by the gaps of their own core that they are a part of, each once, and by their times.
func TestGapCauses(t *testing.T) {
	const us = int64(1000)
	g := Gaps{All: []Gap{ // in the order of time
		{Core: 1, Start: 0, Duration: 100 * us},
		{Core: 2, Start: 0, Duration: 100 * us},
		{Core: 1, Start: 10 * us, Duration: 30 * us, Text: "descheduled", Name: "hog"},
		{Core: 1, Start: 50 * us, Duration: 30 * us, Text: "descheduled", Name: "hog"}, // of the same gap
		{Core: 1, Start: 90 * us, Duration: 5 * us, Text: "timer tick"},                // less than a tenth
		{Core: -1, Start: 95 * us, Duration: 300 * us, Text: "pause", Weak: true},      // of all cores
		{Core: 1, Start: 200 * us, Duration: 20 * us},
		{Core: 1, Start: 205 * us, Duration: 10 * us, Text: "descheduled", Name: "cron"},
		{Core: 1, Start: 500 * us, Duration: 1000 * us, Text: "descheduled", Name: "hog"}, // in no gap
	}}
	for range 2 { // a second time changes nothing
		g.Sum()
		check.Equal(t, g.Kept, 3, "%d gaps")
		check.Same(t, g.Causes, []GapCause{
			{Text: "pause", Weak: true, Gaps: 3, Times: 1},
			{Text: "descheduled", Name: "hog", Gaps: 1, Times: 3, Took: 1060 * us, Longest: 1000 * us},
			{Text: "descheduled", Name: "cron", Gaps: 1, Times: 1, Took: 10 * us, Longest: 10 * us},
			{Text: "timer tick", Times: 1, Took: 5 * us, Longest: 5 * us},
		}, "%+v")
	}
	g = Gaps{}
	for k := range int64(2 * mostGapCauses) {
		g.All = append(g.All, Gap{Core: 1, Start: k, Duration: 1, Text: "a thread", Name: string(rune('A' + k))})
	}
	g.Sum()
	check.Equal(t, len(g.Causes), mostGapCauses, "%d causes")
}

func TestVersionOf(t *testing.T) {
	const revision = "0123456789abcdef"
	for _, c := range []struct{ key, value, key2, value2, want string }{
		{"GOOS", "linux", "", "", "v1.2.3"}, {"vcs.modified", "true", "", "", "v1.2.3"},
		{"vcs.revision", revision, "vcs.modified", "false", "0123456789ab"},
		{"vcs.revision", revision, "vcs.modified", "true", "0123456789ab modified"},
		{"vcs.revision", revision[:5], "other", "true", "01234"},
	} {
		b := &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{
			{Key: c.key, Value: c.value}, {Key: c.key2, Value: c.value2}}}
		check.Equal(t, versionOf(b), c.want, "version %q")
	}
}
