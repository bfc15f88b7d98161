package kit_test

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// life is a card on virtual time whose hooks do what a test says. It records what the kit asks of them, and its log.
type life struct {
	kit.Card
	t     *testing.T
	port  *sim.Port
	fn    *sim.Function
	began time.Time

	mu   sync.Mutex
	text *strings.Builder

	open    func() error
	check   map[int]func() (*kit.Symptom, error) // by its number, from 1
	checks  int
	counts  nic.Stats
	counter error
	restart error

	stop atomic.Bool
	loop sync.WaitGroup
}

func (l *life) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.text, "%7.1f s  "+format+"\n", append([]any{time.Since(l.began).Seconds()}, args...)...)
}

// Write records a line of the log.
func (l *life) Write(b []byte) (int, error) {
	l.say("log: %s", strings.TrimSpace(string(b)))
	return len(b), nil
}

// set changes what the hooks return.
func (l *life) set(do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	do()
}

// start opens the card.
func (l *life) start(o nic.Options) error {
	noTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "device" {
			return slog.Attr{}
		}
		return a
	}
	o.Log = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: noTime}))
	limits := limits
	limits.Queues = 4
	return l.Open(l.fn, o, limits, kit.Hooks{
		Open: func() error {
			must.OK(l.t, l.fn.SetBusMaster(true))
			l.Totals.Start(l.counts)
			return l.Stages(kit.Stage{Name: "reset", Do: l.open})
		},
		Check: func(polled bool) (*kit.Symptom, error) {
			l.checks++
			if do := l.check[l.checks]; do != nil {
				l.say("check, polled %t", polled)
				return do()
			}
			return nil, nil
		},
		Count: func() (nic.Stats, error) {
			l.say("count")
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.counts, l.counter
		},
		Stats: func(s *nic.Stats) (err error) { *s, err = l.Stats(); return err },
		Restart: func(s *kit.Symptom) error {
			l.say("restart for %s", s.Reason)
			time.Sleep(time.Second)
			return l.restart
		},
		Release: func() error { l.say("release"); return l.Release() },
	})
}

// polls runs a loop. One that is deaf does not park.
func (l *life) polls(deaf bool) {
	l.loop.Go(func() {
		if err := l.Enter(0); err != nil {
			l.say("the loop does not start: %v", err)
			return
		}
		defer l.Gate.Leave()
		for !l.stop.Load() {
			time.Sleep(time.Millisecond + 1) // never at the same time as the watchdog
			if l.Gate.Closed() && !deaf {
				l.say("the loop parks")
				if err := l.Gate.Park(); err != nil {
					l.say("the loop ends: %v", err)
					return
				}
				l.say("the loop continues")
			}
		}
	})
}

func (l *life) read() {
	var s nic.Stats
	if err := l.ReadStats(&s); err != nil {
		l.say("no counts: %v", err)
		return
	}
	l.say("counts: received %d, restarts %d", s.RxFrames, s.Resets)
	for _, name := range slices.Sorted(maps.Keys(s.Extra)) {
		l.say("counts: %s %d", name, s.Extra[name])
	}
	if s.Extra != nil {
		s.Extra["mine"] = 1 // which later results do not have
	}
}

// end stops the loop, and closes the card.
func (l *life) end() {
	l.stop.Store(true)
	l.loop.Wait()
	l.say("closed: %v", l.Close())
}

// closedDeaf closes the card during a restart for which the loop does not park.
func (l *life) closedDeaf(suspect *kit.Progress) {
	l.at(1, kit.Symptom{Reason: "tx_hang", Why: "nothing is sent", Suspect: suspect})
	must.OK(l.t, l.start(nic.Options{}))
	l.polls(true)
	time.Sleep(kit.Every * 3)
	l.say("closed: %v", l.Close())
	l.stop.Store(true)
	l.loop.Wait()
}

// at has a check return a symptom.
func (l *life) at(check int, s kit.Symptom) {
	l.check[check] = func() (*kit.Symptom, error) { return &s, nil }
}

func (l *life) fails(check int, err error) {
	l.check[check] = func() (*kit.Symptom, error) { return nil, err }
}

// All that the kit does with a card from Open to Close, in the order in which it does it, whatever the device does.
func TestLife(t *testing.T) {
	text := &strings.Builder{}
	for _, c := range []struct {
		name string
		do   func(l *life)
	}{
		{"healthy", func(l *life) {
			l.counts.RxFrames = 100
			must.OK(l.t, l.start(nic.Options{}))
			l.polls(false)
			time.Sleep(20*time.Second + kit.Every/3)
			l.set(func() { l.counts.RxFrames = 107 })
			l.read()
			l.end()
		}},
		{"a hang", func(l *life) {
			l.counts.RxFrames = 100
			l.at(3, kit.Symptom{Reason: "tx_hang", Why: "nothing is sent"})
			l.fails(4, errNo) // which is not the device's end
			l.at(5, kit.Symptom{Reason: "tx_hang", Why: "nothing is sent"})
			must.OK(l.t, l.start(nic.Options{}))
			l.polls(false)
			time.Sleep(230 * time.Millisecond)
			l.set(func() { l.counts.RxFrames, l.counts.Extra = 105, map[string]uint64{"bad": 3} })
			time.Sleep(500 * time.Millisecond)
			l.set(func() { l.counts.RxFrames = 2 }) // the restart has cleared it
			time.Sleep(time.Second)
			l.set(func() { l.counts.RxFrames = 3 })
			l.read()
			l.read()
			time.Sleep(time.Second)
			l.read()
			l.read()
			l.end()
		}},
		{"a stall that may be the loops' own", func(l *life) {
			var p kit.Progress
			l.at(2, kit.Symptom{Reason: "tx_hang", Why: "nothing is sent", Suspect: &p})
			l.at(4, kit.Symptom{Reason: "tx_hang", Why: "nothing is sent", Suspect: &p})
			must.OK(l.t, l.start(nic.Options{}))
			l.polls(false)
			time.Sleep(2 * time.Second)
			l.end()
		}},
		{"a symptom with a remedy", func(l *life) {
			said := func(err error) func() error { return func() error { l.say("remedy"); return err } }
			l.at(1, kit.Symptom{Reason: "rx_hang", Why: "nothing comes", Recover: said(nil)})
			l.at(2, kit.Symptom{Reason: "rx_hang", Why: "nothing comes", Recover: said(errNo)})
			l.counter = errNo
			must.OK(l.t, l.start(nic.Options{}))
			time.Sleep(2 * time.Second)
			l.set(func() { l.counter = nil })
			l.read()
			l.end()
		}},
		{"a device that does not start again", func(l *life) {
			l.restart = errNo
			l.at(1, kit.Symptom{Reason: "tx_hang", Why: "nothing is sent"})
			must.OK(l.t, l.start(nic.Options{}))
			l.polls(false)
			time.Sleep(2 * time.Second)
			l.read()
			l.say("asked: %v", l.Ask(func() error { l.say("a command"); return nil }))
			l.say("entered: %v", l.Enter(0))
			l.say("sending: %v", l.Sending(make([]byte, 60)))
			l.end()
		}},
		{"reset by another process", func(l *life) {
			must.OK(l.t, l.start(nic.Options{}))
			must.OK(l.t, l.fn.Reset())
			l.say("alive: %v", l.Alive())
			time.Sleep(kit.Every * 3 / 2) // nothing polls
			l.polls(false)
			time.Sleep(kit.Every)
			must.OK(l.t, l.fn.SetBusMaster(true))
			time.Sleep(2*time.Second + kit.Every/3)
			l.say("alive: %v", l.Alive())
			l.end()
		}},
		{"unplugged", func(l *life) {
			must.OK(l.t, l.start(nic.Options{}))
			l.polls(false)
			l.port.Unplug()
			time.Sleep(kit.Every * 3 / 2)
			l.read()
			l.say("alive: %v", l.Alive())
			l.end()
		}},
		{"unplugged, and nothing polls", func(l *life) {
			l.at(2, kit.Symptom{Reason: "tx_hang", Why: "nothing is sent"})
			must.OK(l.t, l.start(nic.Options{}))
			l.port.Unplug()
			time.Sleep(kit.Every * 3)
			l.read()
			l.end()
		}},
		{"the kernel removed its interface", func(l *life) {
			l.fails(2, fmt.Errorf("%w: eth7", nic.ErrNoDevice))
			must.OK(l.t, l.start(nic.Options{}))
			l.polls(false)
			time.Sleep(kit.Every * 3)
			l.end()
		}},
		{"closed while a loop does not park", func(l *life) { l.closedDeaf(nil) }},
		{"closed while a stalled loop does not park", func(l *life) { l.closedDeaf(new(kit.Progress)) }},
		{"an option beyond its limit", func(l *life) { l.say("open: %v", l.start(nic.Options{MTU: 9000})) }},
		{"a device that does not start", func(l *life) {
			l.open = func() error { return errNo }
			l.say("open: %v", l.start(nic.Options{}))
		}},
		{"a device that leaves during Open", func(l *life) {
			l.open = func() error { l.port.Unplug(); return errNo }
			l.say("open: %v", l.start(nic.Options{}))
		}},
		{"what a driver asks", func(l *life) {
			must.OK(l.t, l.start(nic.Options{Queues: 3, MAC: [6]byte{2, 3, 4, 5, 6, 7}}))
			l.FallBackToOne("the firmware has no %s", "RSS")
			l.say("%+v", l.Info("Toy X1", "none", "a note"))
			l.say("frames of at most %d bytes", l.MaxFrame())
			for _, queue := range []int{-1, 0, 2, 3} {
				l.say("queue %d: %v", queue, l.Enter(queue))
			}
			for _, n := range []int{13, 14, 1514, 1515} {
				l.say("sending %d bytes: %v", n, l.Sending(make([]byte, n)))
			}
			for _, n := range []int{-1, 0, 60, 61} {
				got, at, err := l.Received(make([]byte, 60), n, 7)
				l.say("received %d: %d, %d, %v", n, got, at, err)
			}
			l.BetweenRestarts(func() { l.say("between restarts") })
			l.say("asked: %v", l.Ask(func() error { l.say("a command"); return errNo }))
			l.say("closed: %v", l.Close())
		}},
		{"beside the kernel's driver", func(l *life) {
			must.OK(l.t, l.start(nic.Options{}))
			after := func(tries int, last, first error) func() error {
				return func() error {
					if tries--; tries < 0 {
						return last
					}
					return fmt.Errorf("start: %w", first)
				}
			}
			for _, err := range []error{nic.ErrNoDevice, nic.ErrGone, unix.EIO, unix.ENODEV, unix.ENXIO,
				nic.ErrTimeout, errNo} {
				l.say("%v, twice: %v", err, l.AwaitKernel(after(2, nil, err)))
			}
			l.say("permanently: %v", l.AwaitKernel(after(1e9, nil, unix.EIO)))
			var err error
			l.loop.Go(func() { err = l.AwaitKernel(after(1e9, nil, unix.EIO)) })
			time.Sleep(time.Second)
			l.say("closed: %v", l.Close())
			l.loop.Wait()
			l.say("until Close: %v", err)
		}},
	} {
		fmt.Fprintf(text, "== %s\n", c.name)
		synctest.Test(t, func(t *testing.T) {
			port := must.Get(sim.New(toysim.New([6]byte{2, 0, 0, 0, 0, 1}), sim.Options{Name: "toy"}))(t)
			defer port.Close()
			c.do(&life{t: t, port: port, fn: must.Get(port.Function())(t), began: time.Now(), text: text,
				open: func() error { return nil }, check: map[int]func() (*kit.Symptom, error){}})
		})
	}
	golden.Equal(t, "testdata/life.txt", text.String())
}
