package nictest

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
)

func TestToyConforms(t *testing.T) { Run(t, toyHarness(none)) }

func TestToyConformsOverVFIOUser(t *testing.T) {
	needs.Long(t)
	h := toyHarness(none)
	h.VFIOUser = true
	Run(t, h)
}

// recorder replaces testing.T for a test that is expected to fail.
type recorder struct {
	testing.TB
	failures []string
	cleanups []func()
}

type giveUp struct{}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}
func (r *recorder) Cleanup(f func())    { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Failed() bool        { return len(r.failures) > 0 }
func (r *recorder) Errorf(f string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(f, args...))
}
func (r *recorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); panic(giveUp{}) }
func (r *recorder) Fatal(args ...any)            { r.Fatalf("%s", fmt.Sprint(args...)) }
func (r *recorder) Skip(args ...any)             { panic(giveUp{}) }

func (r *recorder) run(check func(*rig), h Harness) {
	defer func() {
		for _, f := range r.cleanups {
			f()
		}
	}()
	defer func() {
		if v := recover(); v != nil && v != (giveUp{}) {
			panic(v)
		}
	}()
	check(newRig(r, h))
}

func TestChecksFindTheirBug(t *testing.T) {
	needs.Long(t)
	defer func(l time.Duration) { linger = l }(linger)
	linger = 200 * time.Millisecond // real time, during which a driver that sleeps in Serve answers nothing
	for _, c := range []struct {
		bug   bug
		check string
		words string
	}{
		{corrupts, "echo", "reply to no request"},
		{corrupts, "jumbo", "reply to no request"},
		{stopsAtWrap, "wrap", "replies to"},
		{reverses, "wrap", "came before"},
		{hidesDrops, "burst", "counts 0 dropped"},
		{givesEarly, "slow transmit", "overwritten"},
		{overruns, "full ring", "took"},
		{overruns, "full ring", "transmit tail gives"},
		{miscopies, "send and receive", "frame 0 of 1"},
		{anySize, "frame size", "Send of 0 bytes"},
		{miscounts, "stats", "statistics after"},
		{allocates, "no allocation", "allocations"},
		{readsMMIO, "no MMIO read", "MMIO reads"},
		{linkUp, "link", "cable pulled"},
		{silent, "reset", "neither Recv nor Link"},
		{leaksMemory, "close", "mappings left"},
		{mastersOn, "close", "bus mastering is on"},
		{leaksRoutine, "close", "held before"},
		{leaksFile, "close", "held before"},
		{blind, "removed while opening", "gone"},
		{blind, "removed", "Link of a device that is gone"},
		{trusts, "flipped write-backs", "transmit descriptor with a frame of"},
		{ignoresStall, "stalled while opening", "succeeds"},
		{overruns, "stalled", "without end"},
		{waitsForever, "stalled while opening", "has not returned"},
		{mastersOn, "killed", "bus mastering is on"},
		{looksOnce, "late completion", "replies to"},
		{sleeps, "serve", "requests were not answered"},
		{forgetsDevice, "lost write", "mappings are left"},
	} {
		var r recorder
		h := toyHarness(c.bug)
		if h.virtual = c.check != "serve"; h.virtual {
			synctest.Test(t, func(*testing.T) {
				r.run(find(t, c.check), h)
				time.Sleep(2 * time.Hour) // until leaked goroutines have ended
			})
		} else {
			r.run(find(t, c.check), h)
		}
		if all := strings.Join(r.failures, "\n"); !strings.Contains(all, c.words) {
			t.Errorf("check %q with bug %d: want %q, got:\n%.2000s", c.check, c.bug, c.words, all)
		}
	}
}

func find(t *testing.T, name string) func(*rig) {
	t.Helper()
	for _, c := range checks {
		if c.name == name {
			return c.run
		}
	}
	t.Fatalf("there is no check %q", name)
	return nil
}

func TestCost(t *testing.T) {
	got := Cost(t, toyHarness(none), 98, 100, 1)
	// two doorbells, two descriptors and the payload, back
	want := sim.Counts{MMIOWrite: 200, DMARead: 300, DMAWrite: 300}
	check.Equal(t, got, want, "100 replies: %+v")
	t.Logf("%+v", Cost(t, toyHarness(none), 98, 128, 16))
}
