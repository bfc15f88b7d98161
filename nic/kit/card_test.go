package kit_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

func toy(t *testing.T) pci.Function {
	t.Helper()
	port := must.Get(sim.New(toysim.New([6]byte{2, 0, 0, 0, 0, 1}), sim.Options{Name: "toy"}))(t)
	t.Cleanup(func() { port.Close() })
	return must.Get(port.Function())(t)
}

var limits = kit.Limits{Driver: "toy", Ring: 64, MinRing: 64, MaxRing: 64, MTU: 1500, MinMTU: 68, MaxMTU: 1500,
	Queues: 1}

var errNo = errors.New("the device refuses")

func stages(t *testing.T, fn pci.Function, level slog.Level) string {
	t.Helper()
	var log bytes.Buffer
	var c kit.Card
	err := c.Open(fn, nic.Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))}, limits,
		kit.Hooks{
			Open: func() error {
				c.Trace.Add(cmdtrace.Entry{Kind: cmdtrace.Command, Name: "ENABLE", Opcode: 0x104, Status: 3,
					In: cmdtrace.Bytes{0xAB, 0xCD}})
				return c.Stages(kit.Stage{Name: "first", Do: func() error { return nil }},
					kit.Stage{Name: "second", Do: func() error { return errNo }})
			},
			Release: func() error { return nil },
		})
	if !errors.Is(err, errNo) {
		t.Fatalf("open: %v", err)
	}
	return log.String()
}

// When Open fails, the log has the last commands, with the raw bytes of a refused one.
func TestFailedOpenShowsItsTrace(t *testing.T) {
	log := stages(t, toy(t), slog.LevelInfo)
	check.Contains(t, log, "open failed", "command ENABLE: opcode 0x104", "in abcd", "step first", "step second",
		errNo.Error())
	if strings.Contains(log, "level=DEBUG") {
		t.Errorf("steps are logged at level info:\n%s", log)
	}
	check.Contains(t, stages(t, toy(t), slog.LevelDebug), "level=DEBUG msg=open device=sim:toy step=first")
}

func TestObserverEndsOpen(t *testing.T) {
	var seen []string
	stop := errors.New("far enough")
	fn := cmdtrace.Observe(toy(t), cmdtrace.Observer{
		Seen: func(e cmdtrace.Entry) { seen = append(seen, e.Kind+" "+e.Name) },
		Before: func(step string) error {
			if step == kit.Learned.Name {
				return stop
			}
			return nil
		},
	})
	var c kit.Card
	released, asked := false, false
	err := c.Open(fn, nic.Options{}, limits, kit.Hooks{
		Open: func() error {
			return c.Stages(c.Evidence(func() { asked = true }), kit.Learned,
				kit.Stage{Name: "late", Do: func() error { t.Error("went on"); return nil }})
		},
		Release: func() error { released = true; return nil },
	})
	if !errors.Is(err, stop) || !released || !asked {
		t.Errorf("open: %v, released %v, evidence %v", err, released, asked)
	}
	if len(seen) != 1 || !strings.HasPrefix(seen[0], "step read extra") {
		t.Errorf("saw %q", seen)
	}
}

// Without an observer there is no evidence stage, because it takes time at every start.
func TestEvidenceIsForProbesOnly(t *testing.T) {
	var c kit.Card
	must.OK(t, c.Open(toy(t), nic.Options{}, limits, kit.Hooks{
		Open:    func() error { return c.Stages(c.Evidence(func() { t.Error("asked for evidence") }), kit.Learned) },
		Check:   func(bool) (*kit.Symptom, error) { return nil, nil },
		Release: func() error { return nil },
	}))
	c.Close()
}

func TestFallBackIsReportedOnce(t *testing.T) {
	var log bytes.Buffer
	var c kit.Card
	must.OK(t, c.Open(toy(t), nic.Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, limits, kit.Hooks{
		Open: func() error {
			for range 3 {
				c.FallBack("llq 256", "llq 128", "the device refuses the configuration: %s", "illegal parameter")
			}
			return nil
		},
		Check:   func(bool) (*kit.Symptom, error) { return nil, nil },
		Release: func() error { return nil },
	}))
	defer c.Close()
	check.Equal(t, strings.Count(log.String(), "fell back"), 1, "the log says %d times that it fell back")
	notes := c.Info("toy", "none").Notes
	if want := "fell back from llq 256 to llq 128: the device refuses the configuration: illegal parameter"; len(
		notes) == 0 || notes[0] != want {
		t.Errorf("notes %q, want %q first", notes, want)
	}
}

// uncached is a function on a machine whose kernel maps nothing write-combining.
type uncached struct {
	pci.Function
	notes []string
}

func (uncached) Simulated() bool   { return false }
func (u uncached) Notes() []string { return u.notes }

func TestUncachedGivesTheReasonOnce(t *testing.T) {
	defer mmio.PushToMemory()() // MOVDIR64B needs no write combining
	for _, c := range []struct {
		notes []string
		why   string
	}{
		{nil, "BAR 0 is not mapped write-combining"},
		{[]string{"BAR 0 is not mapped write-combining: no such file"}, "BAR 0 is not mapped write-combining: no such file"},
	} {
		var k kit.Card
		must.OK(t, k.Open(uncached{toy(t), c.notes}, nic.Options{}, limits, kit.Hooks{
			Open: func() error {
				w, err := k.Fn.BAR(0)
				if err != nil {
					return err
				}
				check.Equal(t, k.Uncached(0, w), c.why, "uncached: %q")
				k.FallBackToUncached(0, w)
				return nil
			},
			Check:   func(bool) (*kit.Symptom, error) { return nil, nil },
			Release: func() error { return nil },
		}))
		if notes := k.Info("toy", "none").Notes; len(notes) == 0 || !strings.HasSuffix(notes[0], " bytes: "+c.why) {
			t.Errorf("notes %q, want the reason %q at the end of the first", notes, c.why)
		}
		k.Close()
	}
}
