package watch

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func fleetOf(n int) (all []targets.Target) {
	for i := range n {
		all = append(all, targets.Target{Host: fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250),
			Labels: map[string]string{"node": fmt.Sprint("h", i), "zone": fmt.Sprint(i % 3)}})
	}
	return all
}

// A watch probes its peers among the targets, with all targets of each. It finds itself by its name or its address, and
// keeps its place while it is missing from the list.
func TestPick(t *testing.T) {
	all := fleetOf(100)
	all = append(all, targets.Target{Host: "fd00::7", Labels: all[7].Labels})
	var log bytes.Buffer
	f := newFleet(6, "h3", slog.New(slog.NewTextHandler(&log, nil)))
	hosts := func(of []targets.Target) (out []string) {
		for _, x := range of {
			out = append(out, x.Host)
		}
		return out
	}
	first := hosts(f.pick(all))
	if len(first) < 6 || len(first) > 7 || slices.Contains(first, all[3].Host) || log.Len() > 0 {
		t.Errorf("%v\n%s", first, &log)
	}
	if slices.Contains(first, all[7].Host) != slices.Contains(first, "fd00::7") {
		t.Errorf("one of two targets of a member: %v", first)
	}
	byAddress := newFleet(6, all[3].Host, slog.New(slog.DiscardHandler))
	if got := hosts(byAddress.pick(all)); !slices.Equal(got, first) {
		t.Errorf("found by its address, it probes %v, by its name %v", got, first)
	}
	without := slices.Delete(slices.Clone(all), 3, 4)
	if got := hosts(f.pick(without)); !slices.Equal(got, first) ||
		strings.Count(log.String(), "no target is this host") != 1 {
		t.Errorf("while the list lacks it: %v, before %v\n%s", got, first, &log)
	}
	f.pick(without)
	if got := hosts(f.pick(all)); !slices.Equal(got, first) ||
		strings.Count(log.String(), "no target is this host") != 1 || !strings.Contains(log.String(), "is a member") {
		t.Errorf("listed again: %v, before %v\n%s", got, first, &log)
	}
	if s := f.now.Load(); s.me.Name != "h3" || s.me.Zone != "0" || s.members != 100 || s.short != 0 {
		t.Errorf("%+v", s)
	}
	name := must.Get(os.Hostname())(t)
	check.Equal(t, f.host(), "h3", "in the fleet it is %s")
	check.Equal(t, newFleet(0, "", nil).host(), name, "outside of a fleet it is %s")
	check.Equal(t, newFleet(6, "", nil).names[0], name, "by default it looks for %s")
	if got := newFleet(0, "", nil).pick(all); len(got) != len(all) {
		t.Errorf("without peers: %d of %d targets", len(got), len(all))
	}
	log.Reset()
	for i := range all {
		all[i].Labels = map[string]string{"node": fmt.Sprint("h", i), "zone": fmt.Sprint("h", i)}
	}
	if f.pick(all); !strings.Contains(log.String(), "too many zones") {
		t.Errorf("a zone for each host: %s", &log)
	}
}
