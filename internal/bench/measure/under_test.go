package measure

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// If a load ends before its phase, that phase has one warning with the load's output.
func TestLoadEndsEarly(t *testing.T) {
	load := must.Get(StartLoad("echo no route to server; exit 4", unix.CPUSet{}))(t)
	await.Until(t, "the load has ended", func() bool { _, ended := load.Ended(); return ended })
	s := &session{Plan: Plan{Under: "echo", Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, load: load}
	each := &Series{}
	for range 3 {
		s.watchLoad(each)
	}
	if len(each.Warnings) != 1 || !strings.Contains(each.Warnings[0], "exit status 4; it said: no route to server") {
		t.Errorf("warnings %q", each.Warnings)
	}
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
