package measure

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// If a load ends before its phase, that phase has one warning with the load's output, and it is not started again.
func TestLoadEndsEarly(t *testing.T) {
	s := &session{Plan: Plan{Under: "echo no route to server; exit 4", Log: slog.New(slog.DiscardHandler)},
		core: must.Get(Choose(-1))(t)}
	must.OK(t, s.phase(0))
	check.Equal(t, s.load == nil, true, "no load before its phase: %t")
	must.OK(t, s.phase(1))
	await.Until(t, "the load has ended", func() bool { _, ended := s.load.Ended(); return ended })
	each := &Series{}
	for range 3 {
		s.watchLoad(each)
	}
	if len(each.Warnings) != 1 || !strings.Contains(each.Warnings[0], "exit status 4; it said: no route to server") {
		t.Errorf("warnings %q", each.Warnings)
	}
	must.OK(t, s.phase(1))
	check.Equal(t, s.load == nil, true, "not started again: %t")
	s.endLoad()
}

// The phases follow each other; runs of a phase are not mixed with those of another.
func TestPhases(t *testing.T) {
	var order []int
	for _, b := range phases(3, 2) {
		order = append(order, b.Order...)
	}
	check.Same(t, order, []int{0, 0, 1, 1, 2, 2}, "%v")
}
