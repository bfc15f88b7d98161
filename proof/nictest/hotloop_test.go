package nictest

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
)

const hotPackage = "github.com/rebound-nic/rebound/proof/nictest/testdata/hot"

func TestHotLoopAccepts(t *testing.T) {
	HotLoop(t, hotPackage, "(*Queue).Poll")
	HotLoop(t, hotPackage, "(*Queue).Bounds", "runtime.panicBounds")
	HotLoop(t, hotPackage, "(*Queue).Helper", "hot.helper")
	HotLoop(t, hotPackage, "(*Queue).Interface", "indirect")
}

func TestAnswerIsHot(t *testing.T) {
	const p = "github.com/rebound-nic/rebound/fastpath"
	StackAccesses(t, p, "(*Responder).Reply", 0)
	HotLoop(t, p, "(*Responder).Reply")
	StackAccesses(t, p, "(*Responder).long", 32)
	HotLoop(t, p, "(*Responder).long", "cksum.Blocks", "fastpath.(*limiter).moveHome")
	HotLoop(t, p, "(*Responder).depart", "polling.TSC", "fastpath.(*Responder).timed")
	HotLoop(t, p, "(*Responder).timed", "fastpath.(*Responder).timingFields")
}

func TestHotLoopRefuses(t *testing.T) {
	needs.Long(t)
	for fn, want := range map[string]string{
		"(*Queue).Map":       "calls runtime.mapaccess",
		"(*Queue).Interface": "calls indirect",
		"(*Queue).Closure":   "calls indirect",
		"(*Queue).Bounds":    "calls runtime.panic",
		"(*Queue).Allocate":  "calls runtime.",
		"(*Queue).Big":       "big.go:7: fastpath's Message is not inlined",
		"(*Queue).Helper":    "calls github.com/rebound-nic/rebound/proof/nictest/testdata/hot.helper",
	} {
		problems, err := inspect(hotPackage, fn, nil)
		if err != nil {
			t.Errorf("%s: %v", fn, err)
		} else if got := strings.Join(problems, "\n"); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", fn, got, want)
		}
	}
	// The calls of the accepted loop were found, so it was not accepted for lack of data.
	if calls, err := machineCalls(hotPackage, "(*Queue).Poll"); err != nil || len(calls) == 0 {
		t.Errorf("Poll calls Slow, seen %v, %v", calls, err)
	}
}

func TestHotLoopNames(t *testing.T) {
	for _, fn := range []string{"(*Queue).Missing", "Poll", "(Queue).Poll"} {
		check.Fails(t, fn, check.Err(inspect(hotPackage, fn, nil)), nil, fn)
	}
	check.Fails(t, "no error for a package that is not there", check.Err(inspect("rebound/no/such", "Poll", nil)), nil)
}
