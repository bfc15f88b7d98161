package kit

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// Card is the common part of an open device. A driver's Device contains one, fills in what it learns from the device,
// and sets hooks, which Open, Close and the watchdog call.
type Card struct {
	Name    string // driver and function, the start of every error: "ixgbe 0000:03:00.0"
	Fn      pci.Function
	Options nic.Options // with defaults
	Log     *slog.Logger
	Gate    Gate
	Totals  Totals
	Trace   cmdtrace.Ring // the last commands

	Arena       *dma.Arena
	AddressBits uint32 // address width of the device; 0 for no limit

	MAC [6]byte
	MTU int // bytes of layer 3

	driver    string
	hooks     Hooks
	observed  *cmdtrace.Observed // nil unless somebody follows
	fallbacks fallbacks
	endWatch  chan struct{}
	ended     chan struct{}
	lifeMutex sync.RWMutex // held to restart the device, and shared by all that send it commands
	counting  sync.Mutex   // held to read the device's counters
}

// Hooks are the driver's parts of what the kit does.
type Hooks struct {
	// Open brings the device from any state to polling.
	Open func() error

	// Check is called by the watchdog ten times a second and returns a symptom if the device is unhealthy, otherwise
	// nil. polled reports whether loops run, or Send and Recv are used. An error for which nic.Lost is true ends the
	// device permanently; after any other error the watchdog calls Check again.
	Check func(polled bool) (*Symptom, error)

	// Count reads the device's counters; Card.Stats returns their totals. It is nil for a device without counters. A
	// device whose registers are cleared by reading passes them to Totals.Add, and returns the zero Stats. No two calls
	// run at once.
	Count func() (nic.Stats, error)

	// Stats reads all that ReadStats returns: Card.Stats, and what the queues count. It runs in Ask, or before a
	// restart.
	Stats func(*nic.Stats) error

	// Restart brings the device back to polling, while no loop uses its queues. Pending frames are lost.
	Restart func(s *Symptom) error

	// Release stops the device's DMA and frees its memory. It is called once, after Open, even if that failed half-way.
	Release func() error
}

// Open opens a function with a driver. It takes fn over: Close closes it, and so does an Open that fails.
func (c *Card) Open(fn pci.Function, o nic.Options, l Limits, h Hooks) error {
	c.Fn, c.Name, c.driver, c.hooks = fn, l.Driver+" "+fn.Name(), l.Driver, h
	if c.observed = cmdtrace.Of(fn); c.observed != nil {
		c.Trace.Follow(c.observed.Seen)
	}
	if err := c.open(o, l); err != nil {
		if pci.Gone(fn) && !errors.Is(err, nic.ErrGone) {
			err = c.Errorf("%w: %w", nic.ErrGone, err)
		}
		return errors.Join(err, fn.Close())
	}
	c.endWatch, c.ended = make(chan struct{}), make(chan struct{})
	go c.watch()
	return nil
}

func (c *Card) open(o nic.Options, l Limits) (err error) {
	if c.Options, err = l.apply(o); err != nil {
		return c.Errorf("%w", err)
	}
	c.MAC, c.MTU = c.Options.MAC, c.Options.MTU
	c.Log = c.Options.Log.With("device", c.Fn.Name())
	if err := c.hooks.Open(); err != nil {
		if c.observed == nil { // an observer has seen everything already
			c.showTrace("open failed: the last accesses to the device")
		}
		return errors.Join(err, c.hooks.Release())
	}
	return nil
}

// Stage is one step of the bring-up of a device.
type Stage struct {
	Name string
	Do   func() error
}

// Learned is the stage after which a driver knows the device's capabilities. A probe that only reads ends Open before
// it.
var Learned = Stage{"use the capabilities", func() error { return nil }}

// Evidence is a stage with commands that only a probe needs. The answers are in the trace. A refusal does not matter.
func (c *Card) Evidence(ask func()) Stage {
	return Stage{"read extra values for the probe", func() error {
		if c.observed != nil {
			ask()
		}
		return nil
	}}
}

// Quietly runs do, which drives a bus bit by bit and reports the bytes. An observer does not see its accesses to
// registers.
func (c *Card) Quietly(do func()) { c.observed.Quietly(do) }

// Do takes one step of bringing the device up, which the log shows at level debug.
func (c *Card) Do(name string, f func() error) error {
	if err := c.observed.Before(name); err != nil {
		return c.Errorf("before %s: %w", name, err)
	}
	c.Log.Debug("open", "step", name)
	began := time.Now()
	err := f()
	e := cmdtrace.Entry{Kind: cmdtrace.Step, Name: name, Took: time.Since(began)}
	if err != nil {
		e.Err = err.Error()
	}
	c.Trace.Add(e)
	if c.observed != nil && c.MAC != [6]byte{} {
		c.Trace.Add(cmdtrace.Entry{Kind: cmdtrace.Config, Name: cmdtrace.Address, In: c.MAC[:]})
	}
	c.Log.Debug("open", "done", name, "took", e.Took, "err", e.Err)
	return err
}

// Stages takes steps one after the other, until one fails.
func (c *Card) Stages(all ...Stage) error {
	for _, s := range all {
		if err := c.Do(s.Name, s.Do); err != nil {
			return err
		}
	}
	return nil
}

// showTrace logs the last commands.
func (c *Card) showTrace(why string) {
	entries := c.Trace.Entries()
	if len(entries) == 0 {
		return
	}
	c.Log.Warn(why, "entries", len(entries))
	for _, e := range entries {
		c.Log.Warn("trace", "entry", e.String())
	}
}

// ReadStats implements nic.Device. It does not wait for a restart, which may take many seconds, but returns what was
// counted before it.
func (c *Card) ReadStats(out *nic.Stats) error {
	if !c.lifeMutex.TryRLock() {
		*out = c.Totals.latest()
		return nil
	}
	defer c.lifeMutex.RUnlock()
	if err := c.Gate.Err(); err != nil {
		return err
	}
	return c.readStats(out)
}

func (c *Card) readStats(out *nic.Stats) error {
	err := c.hooks.Stats(out)
	if err == nil {
		c.Totals.keep(out)
	}
	return err
}

// Stats reads the device's counters and returns their totals since Open, over all restarts. Hooks.Stats calls it, and
// adds what the queues count.
func (c *Card) Stats() (now nic.Stats, err error) {
	Hold(c.counting.TryLock)
	defer c.counting.Unlock()
	if c.hooks.Count != nil {
		if now, err = c.hooks.Count(); err != nil {
			return nic.Stats{}, err
		}
	}
	return c.Totals.Read(now), nil
}

// Close ends the watchdog, stops the device and releases everything.
func (c *Card) Close() error {
	close(c.endWatch)
	<-c.ended
	return errors.Join(c.hooks.Release(), c.Fn.Close())
}

// Errorf is fmt.Errorf with the card's name in front.
func (c *Card) Errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w", c.Name, fmt.Errorf(format, args...))
}

// Alive returns why the function does not answer: it left the bus, or another process reset it.
func (c *Card) Alive() error {
	if pci.Gone(c.Fn) {
		return c.Gone("configuration space")
	}
	if on, err := pci.BusMastering(c.Fn); err == nil && !on {
		return c.Errorf("%w: bus mastering is off: the function was reset", nic.ErrHardware)
	}
	return nil
}

// Gone returns the error for a register that reads all ones because the device has left the bus.
func (c *Card) Gone(register string) error {
	return c.Errorf("%w: %s reads all ones", nic.ErrGone, register)
}

// MaxFrame is the longest frame in bytes without FCS: header and two VLAN tags around the MTU.
func (c *Card) MaxFrame() int { return c.MTU + 14 + 8 }

// Info describes the card. The driver puts its own notes before the kit's, and calls Info in BetweenRestarts if it
// reports what a restart may change.
func (c *Card) Info(model, push string, notes ...string) nic.Info {
	backend := nic.Silicon
	if c.Fn.Simulated() {
		backend = nic.Sim
	}
	var memory []string
	if c.Arena != nil {
		memory = c.Arena.Notes()
	}
	via := ""
	if verbs.Of(c.Fn) != nil {
		via = "verbs"
	}
	return nic.Info{
		Via: via, Driver: c.driver, Device: c.Fn.Name(), Model: model, MAC: net.HardwareAddr(c.MAC[:]).String(),
		MTU:    c.MTU,
		Queues: c.Options.Queues, Backend: backend, Push: push,
		Notes: slices.Concat(c.fallbacks.list(), notes, pci.Notes(c.Fn), memory),
	}
}

// BetweenRestarts runs f while the device is not being restarted.
func (c *Card) BetweenRestarts(f func()) {
	Hold(c.lifeMutex.TryRLock)
	defer c.lifeMutex.RUnlock()
	f()
}

// Ask runs f, which sends the device commands, while it is not being restarted. If an error has ended the device, Ask
// returns that error instead.
func (c *Card) Ask(f func() error) error {
	Hold(c.lifeMutex.TryRLock)
	defer c.lifeMutex.RUnlock()
	if err := c.Gate.Err(); err != nil {
		return err
	}
	return f()
}

// Enter starts Serve: it checks the queue number, and admits the loop. Gate.Leave ends it.
func (c *Card) Enter(queue int) error {
	if queue < 0 || queue >= c.Options.Queues {
		return c.Errorf("queue %d of %d", queue, c.Options.Queues)
	}
	return c.Gate.Enter()
}

// Sending starts Send: it checks the frame, and parks the caller during a restart.
func (c *Card) Sending(frame []byte) error {
	if err := nic.CheckFrame(frame, c.MTU); err != nil {
		return c.Errorf("%w", err)
	}
	return c.Gate.Call()
}

// Received converts a queue's result to that of Recv: a frame of n bytes, of which buf holds as much as fits, or -1 for
// none.
func (c *Card) Received(buf []byte, n int, at int64) (int, int64, error) {
	switch {
	case n < 0:
		return 0, 0, nil
	case n > len(buf):
		return 0, 0, c.Errorf("%w: a frame of %d bytes for a buffer of %d", nic.ErrFrameSize, n, len(buf))
	}
	return n, at, nil
}
