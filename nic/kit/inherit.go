package kit

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Heir are the hooks of a driver whose running device another process of the same driver can continue to use. Without them, the other
// process starts the device again.
type Heir struct {
	// Layout is the version of what the other hooks mean, and of the memory. Change it with them: a process of another version then
	// starts the device again.
	Layout int

	// Own are the driver's options, which both processes must have alike.
	Own any

	// Keep returns pointers to what the driver knows of the device, Place to where its queues are while no loop runs: values that
	// encoding/json takes.
	Keep, Place func() []any

	// Adopt makes the Device and its queues from what Keep points to, without access to the device. Card.Block returns the other
	// process's blocks, one after the other. It may be followed by Hooks.Open if it fails.
	Adopt func() error
}

// bequest is the State of a nic.Inheritance. Its files are the function's, then the arena's.
type bequest struct {
	Layout        int // of this struct
	Driver        string
	Function      pci.Bequest
	FunctionFiles int
	Device        *kept // nil for a device that is started again
}

// kept describes a device that runs.
type kept struct {
	Layout      int    // of the driver
	Settings    string // of the process that started it
	MAC         [6]byte
	MTU         int
	AddressBits uint32
	FallBacks   []string
	Arena       dma.Bequest
	Restarts    int
	Own         []json.RawMessage
}

// position is where another process continues.
type position struct {
	Restarts   int
	Blocks     int // of memory
	Counted    nic.Stats
	Own, Place []json.RawMessage
}

const layout = 1

var (
	errResting = errors.New("another process still has the device")
	errLeft    = errors.New("another process took over the device")
	errStarted = errors.New("the driver starts the device again")
)

// InheritedFunction returns the function's part of what a Card inherits.
func InheritedFunction(in *nic.Inheritance) (pci.Bequest, error) {
	var b bequest
	if err := json.Unmarshal(in.State, &b); err != nil {
		return pci.Bequest{}, fmt.Errorf("inherited device: %w", err)
	}
	if b.Layout != layout || b.FunctionFiles < 0 || b.FunctionFiles > len(in.Files) {
		return pci.Bequest{}, fmt.Errorf("inherited device: another version's (layout %d, %d files): stop the other responder first", b.Layout, len(in.Files))
	}
	b.Function.Files = in.Files[:b.FunctionFiles:b.FunctionFiles]
	in.Files = in.Files[b.FunctionFiles:]
	return b.Function, nil
}

// settings describes all that a running device depends on.
func (c *Card) settings() string {
	o := &c.Options
	groups, all := netif.Groups(*o)
	return fmt.Sprintf("queues %d, ring %d, MTU %d, MAC %x, groups %x %v, %+v", o.Queues, o.RingSize, o.MTU, o.MAC, groups, all, c.heir().Own)
}

func (c *Card) heir() *Heir {
	if c.hooks.Heir == nil {
		return &Heir{}
	}
	return c.hooks.Heir
}

// CanBequeath reports whether another process can take over the function.
func (c *Card) CanBequeath() bool { _, ok := c.Fn.(pci.Heritable); return ok }

// Bequest implements nic.Heritable.
func (c *Card) Bequest() (in nic.Inheritance, err error) {
	fn, ok := c.Fn.(pci.Heritable)
	if !ok {
		return in, c.Errorf("%w: the function stays with this process", errors.ErrUnsupported)
	}
	err = c.Ask(func() error {
		b := bequest{Layout: layout, Driver: c.driver}
		if b.Function, err = fn.Bequest(); err != nil {
			return err
		}
		in.Files, b.FunctionFiles = b.Function.Files, len(b.Function.Files)
		if h := c.hooks.Heir; h != nil && c.Arena != nil {
			k := &kept{Layout: h.Layout, Settings: c.settings(), MAC: c.MAC, MTU: c.MTU, AddressBits: c.AddressBits, FallBacks: c.fallbacks.list(),
				Restarts: c.restarts}
			var files []int
			k.Arena, files = c.Arena.Bequest()
			in.Files = append(in.Files, files...)
			if k.Own, err = save(h.Keep()); err != nil {
				return err
			}
			b.Device = k
		}
		in.State, err = json.Marshal(b)
		return err
	})
	return in, err
}

// adopt makes the running device of another process ours, without access to it. It closes the files of the memory if it fails.
func (c *Card) adopt(in *nic.Inheritance) (err error) {
	files := in.Files
	in.Files = nil
	defer func() { bus.CloseFiles(files) }()
	var b bequest
	if err := json.Unmarshal(in.State, &b); err != nil {
		return err
	}
	h, k := c.hooks.Heir, b.Device
	switch {
	case b.Driver != c.driver:
		return fmt.Errorf("driver %s had it", b.Driver)
	case h == nil || k == nil:
		return errStarted
	case k.Layout != h.Layout:
		return fmt.Errorf("another version of the driver had it (layout %d, want %d)", k.Layout, h.Layout)
	case k.Settings != c.settings():
		return fmt.Errorf("other settings: it has %s; want %s", k.Settings, c.settings())
	}
	c.MAC, c.MTU, c.AddressBits, c.restarts, c.fallbacks.all = k.MAC, k.MTU, k.AddressBits, k.Restarts, k.FallBacks
	if err := load(h.Keep(), k.Own); err != nil {
		return err
	}
	mine := files
	files = nil
	if c.Arena, err = dma.Inherit(c.Fn, k.Arena, mine); err != nil {
		return err
	}
	c.resting.Store(true)
	if err = h.Adopt(); err == nil {
		err = c.Arena.Replayed()
	}
	if err != nil {
		c.resting.Store(false)
		err = errors.Join(err, c.Arena.Leave())
		c.Arena = nil
		return err
	}
	return nil
}

// Position implements nic.Heritable.
func (c *Card) Position() ([]byte, error) {
	fn, ok := c.Fn.(pci.Heritable)
	if !ok || c.hooks.Heir == nil {
		return nil, c.Errorf("%w: the device cannot be handed over", errors.ErrUnsupported)
	}
	c.stopWatch()
	c.lifeMutex.Lock()
	defer c.lifeMutex.Unlock()
	if err := c.Gate.Err(); err != nil {
		return nil, err
	}
	p := position{Restarts: c.restarts, Blocks: c.Arena.Blocks(), Counted: c.Totals.counted()}
	var err, failed error
	p.Own, err = save(c.hooks.Heir.Keep())
	p.Place, failed = save(c.hooks.Heir.Place())
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	text, err := json.Marshal(p)
	c.left.Store(true)
	return text, errors.Join(err, c.Arena.Leave(), fn.Leave())
}

// Yield implements nic.Yielder.
func (c *Card) Yield() error {
	fn, ok := c.Fn.(pci.Heritable)
	if !ok {
		return c.Errorf("%w: the function stays with this process", errors.ErrUnsupported)
	}
	c.stopWatch()
	c.lifeMutex.Lock()
	defer c.lifeMutex.Unlock()
	c.left.Store(true)
	return errors.Join(c.hooks.Release(), fn.Leave())
}

// Continue implements nic.Heritable.
func (c *Card) Continue(text []byte) error {
	if !c.resting.Load() {
		return nil // the device was started again
	}
	var p position
	err := json.Unmarshal(text, &p)
	if err == nil && p.Restarts != c.restarts {
		err = errors.New("the device was restarted meanwhile")
	}
	if n := c.Arena.Blocks(); err == nil && p.Blocks != n {
		err = fmt.Errorf("the device was given memory meanwhile: %d blocks, and this process knows %d", p.Blocks, n)
	}
	if err == nil {
		err = load(c.hooks.Heir.Keep(), p.Own)
	}
	if err == nil {
		err = load(c.hooks.Heir.Place(), p.Place)
	}
	c.Fn.(pci.Heritable).Arrive()
	c.resting.Store(false)
	c.Totals.Start(p.Counted)
	c.startWatch()
	if err != nil {
		return c.Errorf("position of the other process: %w", err)
	}
	return nil
}

// Cell returns the value of an atomic variable as a pointer for Heir.Keep and Heir.Place.
func Cell[T any](variable interface {
	Load() T
	Store(T)
}) any {
	return &cell[T]{variable.Load, variable.Store}
}

type cell[T any] struct {
	load  func() T
	store func(T)
}

func (c *cell[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.load()) }

func (c *cell[T]) UnmarshalJSON(b []byte) error {
	var v T
	err := json.Unmarshal(b, &v)
	if err == nil {
		c.store(v)
	}
	return err
}

// Reason returns an error, nil for none, as a pointer for Heir.Place. It is handed over as text.
func Reason(why *error) any {
	return &reason{func() error { return *why }, func(err error) { *why = err }}
}

// AtomicReason is Reason for an error that several goroutines read, a nil pointer for none.
func AtomicReason(why *atomic.Pointer[error]) any {
	return &reason{func() error {
		if err := why.Load(); err != nil {
			return *err
		}
		return nil
	}, func(err error) { why.Store(&err) }}
}

type reason struct {
	load  func() error
	store func(error)
}

func (r *reason) MarshalText() (text []byte, err error) {
	if why := r.load(); why != nil {
		text = []byte(why.Error())
	}
	return text, nil
}

func (r *reason) UnmarshalText(text []byte) error {
	if len(text) > 0 {
		r.store(errors.New(string(text)))
	}
	return nil
}

// Raw returns a value without pointers as a pointer for Heir.Keep and Heir.Place. It is handed over as its bytes.
func Raw[T any](v *T) any {
	return &raw{unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))}
}

type raw struct{ bytes []byte }

func (r *raw) MarshalJSON() ([]byte, error) { return json.Marshal(r.bytes) }

func (r *raw) UnmarshalJSON(b []byte) error {
	var got []byte
	err := json.Unmarshal(b, &got)
	if err == nil && len(got) != len(r.bytes) {
		err = fmt.Errorf("%d bytes, want %d", len(got), len(r.bytes))
	}
	copy(r.bytes, got)
	return err
}

// Since returns a time as a pointer for Heir.Place. It is handed over as the time that has passed since, because another process reads
// another monotonic clock.
func Since(t *time.Time) any { return &since{t} }

type since struct{ t *time.Time }

func (s *since) MarshalJSON() ([]byte, error) { return json.Marshal(time.Since(*s.t)) }

func (s *since) UnmarshalJSON(b []byte) error {
	var passed time.Duration
	err := json.Unmarshal(b, &passed)
	*s.t = time.Now().Add(-passed)
	return err
}

// save returns the values that pointers point to.
func save(pointers []any) (values []json.RawMessage, err error) {
	for _, p := range pointers {
		v, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

// load is the inverse of save.
func load(pointers []any, values []json.RawMessage) error {
	if len(pointers) != len(values) {
		return fmt.Errorf("%d values, want %d", len(values), len(pointers))
	}
	for i, p := range pointers {
		if err := json.Unmarshal(values[i], p); err != nil {
			return err
		}
	}
	return nil
}
