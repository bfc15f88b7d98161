package catalogue_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/nic/drivers/ena"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/nic/drivers/virtio"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// uncached is a function on a machine whose kernel supports no write-combining mappings.
type uncached struct{ pci.Function }

func (uncached) Simulated() bool { return false }
func (uncached) Notes() []string {
	return []string{"BAR 0 is not mapped write-combining: no such file",
		"BAR 2 is not mapped write-combining: no such file"}
}

// ladder is a feature that a card can refuse, the driver's fallback, and the resulting push mode in Info.
type ladder struct {
	name     string
	model    func() sim.Model
	open     func(fn pci.Function, o nic.Options) (nic.Answerer, error)
	queues   int
	uncached bool
	steps    []string // "from X to Y", in order
	reason   string   // of the last
	push     string   // prefix of Info.Push
}

// plainly is a driver's Open with the zero value of the driver's options.
func plainly[O any, D nic.Answerer](open func(pci.Function, nic.Options, O) (D, error)) func(pci.Function,
	nic.Options) (nic.Answerer, error) {
	return func(fn pci.Function, o nic.Options) (nic.Answerer, error) {
		var none O
		return open(fn, o, none)
	}
}

var openMLX5, openMLX4, openENA, openEFA = plainly(mlx5.Open), plainly(mlx4.Open), plainly(ena.Open), plainly(efa.Open)

func openVirtio(fn pci.Function, o nic.Options) (nic.Answerer, error) {
	return virtio.Open(fn, o)
}

var ladderMAC = [6]byte{0x02, 0x52, 0x62, 0, 0, 0x01}

// first replies to the first n of an admin command with "resource allocation failure".
func first(n int, command string) func(string) uint8 {
	return func(c string) uint8 {
		if c != command || n == 0 {
			return 0
		}
		n--
		return 1
	}
}

// refuses is an ENA that refuses the first n of a command.
func refuses(n int, command string) func() sim.Model {
	return func() sim.Model {
		m := enasim.New(enasim.Options{MAC: ladderMAC})
		m.FailAdmin(first(n, command))
		return m
	}
}

func virtioThat(refuses func(*virtiosim.Model, bool)) func() sim.Model {
	return func() sim.Model {
		m := virtiosim.New(virtiosim.Options{MAC: ladderMAC})
		refuses(m, true)
		return m
	}
}

const (
	flame    = "from BlueFlame to plain doorbells"
	noRSS    = "from RSS over 2 queues to queue 0 for all frames"
	wide     = "from LLQ entries of 256 bytes to entries of 128"
	llq      = "from low-latency queues to descriptors in host memory"
	combined = "from write combining in BAR 2 to uncached stores"
)

var ladders = []ladder{
	{name: "mlx5: window not combined", model: func() sim.Model { return mlx5sim.New(mlx5sim.Options{MAC: ladderMAC}) },
		open:     openMLX5,
		uncached: true, steps: []string{flame}, reason: "no such file", push: "doorbell"},
	{name: "mlx5: no RSS", queues: 2, open: openMLX5, push: "blueflame", steps: []string{noRSS}, reason: "CREATE_RQT",
		model: func() sim.Model {
			return mlx5sim.New(mlx5sim.Options{MAC: ladderMAC, Status: func(op uint16) (uint8, uint32) {
				if op == 0x916 {
					return 3, 0xBAD
				}
				return 0, 0
			}})
		}},
	{name: "mlx4: window not combined", model: func() sim.Model { return mlx4sim.New(mlx4sim.Options{MAC: ladderMAC}) },
		open:     openMLX4,
		uncached: true, steps: []string{flame}, reason: "no such file", push: "doorbell"},
	{name: "ena: CREATE_SQ of wide entries", model: refuses(1, "CREATE_SQ"), open: openENA, steps: []string{wide}, reason: "resource allocation failure", push: "llq 128"},
	{name: "ena: CREATE_SQ of all LLQ entries", model: refuses(2, "CREATE_SQ"), open: openENA, steps: []string{wide, llq}, reason: "resource allocation failure", push: "host descriptors"},
	{name: "ena: configuration of wide entries", model: refuses(1, "SET_FEATURE LLQ"), open: openENA, steps: []string{wide}, reason: "refuses the configuration", push: "llq 128"},
	{name: "ena: configuration of LLQ", model: refuses(2, "SET_FEATURE LLQ"), open: openENA, steps: []string{wide, llq}, reason: "refuses the configuration", push: "host descriptors"},
	{name: "ena: no LLQ", model: func() sim.Model { return enasim.New(enasim.Options{MAC: ladderMAC, NoLLQ: true}) },
		open:  openENA,
		steps: []string{llq}, reason: "the device has none", push: "host descriptors"},
	{name: "ena: no RSS table", queues: 2, model: func() sim.Model {
		return enasim.New(enasim.Options{MAC: ladderMAC, Unsupported: 1 << 12})
	}, open: openENA,
		steps: []string{noRSS}, reason: "no RSS table", push: "llq 256"},
	{name: "ena: RSS table refused", queues: 2, model: refuses(1, "SET_FEATURE RSS_INDIRECTION_TABLE"), open: openENA, steps: []string{noRSS}, reason: "resource allocation failure", push: "llq 256"},
	{name: "ena: window not combined", model: refuses(0, ""), open: openENA, uncached: true, steps: []string{combined}, reason: "no such file", push: "llq 256"},
	{name: "efa: window not combined", model: func() sim.Model { return efasim.New(efasim.Options{MAC: ladderMAC}) },
		open:     openEFA,
		uncached: true, steps: []string{combined}, reason: "doorbells in the same BAR", push: "llq 64"},
	{name: "efa: entries of 128 bytes", open: openEFA, steps: []string{
		"from queue entries of 128 bytes to entries of 64"}, reason: "create queue pair", push: "llq 64",
		model: func() sim.Model {
			m := efasim.New(efasim.Options{MAC: ladderMAC, Profile: efasim.EFA3})
			m.FailAdmin(first(1, "CREATE_QP"))
			return m
		}},
	{name: "virtio: several pairs", queues: 2, open: openVirtio, steps: []string{noRSS}, reason: "MQ_VQ_PAIRS_SET",
		model: virtioThat((*virtiosim.Model).RefusePairs)},
	{name: "virtio: filters", open: openVirtio, steps: []string{"from filters by address to all frames"},
		reason: "MAC_TABLE_SET",
		model:  virtioThat((*virtiosim.Model).RefuseMAC)},
	{name: "mlx4: no RSS", queues: 2, open: openMLX4, push: "blueflame", steps: []string{noRSS}, reason: "INIT2RTR_QP",
		model: func() sim.Model {
			n := 0
			return mlx4sim.New(mlx4sim.Options{MAC: ladderMAC, Status: func(op uint16) uint8 {
				if op == 0x1A { // INIT2RTR_QP of the fifth QP, after two pairs of receive and send
					if n++; n == 5 {
						return 3
					}
				}
				return 0
			}})
		}},
}

// Whatever a card refuses, the driver falls back, reports it once with the reason in the log and in Info, and answers
// requests.
func TestLadder(t *testing.T) {
	needs.Long(t)
	t.Cleanup(mmio.PushToMemory()) // MOVDIR64B needs no write combining
	for _, c := range ladders {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			port := must.Get(sim.New(c.model(), sim.Options{Name: "ladder"}))(t)
			defer port.Close()
			near, far := sim.Pair()
			port.Connect(near)
			far.SetUp(true)
			port.Start()
			defer port.Stop()
			var fn pci.Function
			fn = must.Get(port.Function())(t)
			if c.uncached {
				fn = uncached{fn}
			}
			var log programs.Output
			queues := max(c.queues, 1)
			dev := must.Get(c.open(fn, nic.Options{RingSize: 128, Queues: queues,
				Log: slog.New(slog.NewTextHandler(&log, nil))}))(t)
			info := dev.Info()
			if !strings.HasPrefix(info.Push, c.push) {
				t.Errorf("push %q, want %q", info.Push, c.push)
			}
			var notes []string
			for _, n := range info.Notes {
				if strings.HasPrefix(n, "fell back ") {
					notes = append(notes, n)
				}
			}
			if len(notes) != len(c.steps) || strings.Count(log.String(), `"fell back"`) != len(c.steps) {
				t.Fatalf("steps %q, want %q; log:\n%s", notes, c.steps, log.String())
			}
			for i, step := range c.steps {
				if !strings.HasPrefix(notes[i], "fell back "+step) {
					t.Errorf("step %d is %q, want %q", i, notes[i], step)
				}
			}
			if last := notes[len(notes)-1]; !strings.Contains(last, c.reason) ||
				!strings.Contains(log.String(), c.reason) {
				t.Errorf("step %q does not give the reason %q; log:\n%s", last, c.reason, log.String())
			}
			if d, ok := dev.(nic.Device); ok {
				answers(t, d, queues, far)
			}
			must.Close(t, dev)
			if port.Mappings() != 0 || port.BusMaster() {
				t.Errorf("%d mappings and bus mastering %v are left", port.Mappings(), port.BusMaster())
			}
			for _, v := range port.Violations() {
				t.Error("violation: ", v)
			}
		})
	}
}

// answers serves all queues until a ping of each of several flows was answered.
func answers(t *testing.T, d nic.Device, queues int, far *sim.Cable) {
	t.Helper()
	var stop atomic.Bool
	ended := make(chan error, queues)
	for q := range queues {
		go func() {
			err := d.Serve(q, &stop, nictest.NewResponder(t))
			if err != nil {
				err = fmt.Errorf("queue %d: %w", q, err)
			}
			ended <- err
		}()
	}
	for range 8 {
		await.Until(t, "an answer", func() bool {
			far.Send(0, nictest.EchoRequest(98))
			return far.Recv(0) != nil
		})
	}
	stop.Store(true)
	var errs []error
	for range queues {
		errs = append(errs, <-ended)
	}
	check.OK(t, errors.Join(errs...))
}
