package kit_test

import (
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// ill is a card whose device needs a restart once. The restart lasts until proceed is closed.
type ill struct {
	kit.Card
	sick                atomic.Bool
	counted             atomic.Uint64
	restarting, proceed chan struct{}
}

func newIll(t *testing.T, master bool) *ill {
	c := &ill{restarting: make(chan struct{}), proceed: make(chan struct{})}
	must.OK(t, c.Card.Open(toy(t), nic.Options{}, limits, kit.Hooks{
		Open: func() error { return c.Fn.SetBusMaster(master) },
		Check: func(bool) (*kit.Symptom, error) {
			if c.sick.CompareAndSwap(true, false) {
				return &kit.Symptom{Reason: "ill"}, nil
			}
			return nil, nil
		},
		Stats: func(s *nic.Stats) error {
			*s = c.Totals.Read(nic.Stats{})
			s.RxFrames = c.counted.Load()
			return nil
		},
		Restart: func(*kit.Symptom) error { close(c.restarting); <-c.proceed; return nil },
		Release: func() error { return nil },
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

func (c *ill) read(t *testing.T) string {
	t.Helper()
	var s nic.Stats
	must.OK(t, c.ReadStats(&s))
	check.Equal(t, s.Extra["resets_ill"], s.Resets, "resets by reason: %d")
	check.Equal(t, s.Extra["mine"], 0, "an entry of the caller's result: %d")
	s.Extra["mine"] = 7
	return map[bool]string{true: "all", false: "old"}[s.RxFrames == c.counted.Load()] + map[uint64]string{0: "",
		1: " restarting"}[s.Resets-s.Extra[nic.RestartsFinished]]
}

// ReadStats does not wait for a restart: it returns the counts from before it, and the restart.
func TestReadStatsDuringRestart(t *testing.T) {
	for _, c := range []struct {
		name   string
		master bool
		during string
	}{
		{"device answers", true, "all restarting"},
		// A function that was reset is not asked for its counts, because each command would last for its time-out.
		{"function was reset", false, "old restarting"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newIll(t, c.master)
			x.counted.Store(1)
			check.Equal(t, x.read(t), "all", "before: %s")
			x.counted.Store(2)
			x.sick.Store(true)
			<-x.restarting
			check.Equal(t, x.read(t), c.during, "during the restart: %s")
			check.Equal(t, x.read(t), c.during, "again: %s")
			close(x.proceed)
			await.Until(t, "the end of the restart", func() bool { return x.read(t) == "all" })
		})
	}
}
