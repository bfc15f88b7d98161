package cmdtrace

import (
	"fmt"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Observer follows a driver on a function.
type Observer struct {
	// Seen is called with every entry: the driver's own, and each access of its control path to registers and
	// configuration space.
	Seen func(Entry)

	// Before is called before each step of Open, with its name. An error ends Open with that error.
	Before func(step string) error
}

// Observed is a function whose use is reported to an Observer.
type Observed struct {
	pci.Function
	observer Observer

	mu     sync.Mutex
	began  time.Time
	read   Entry // the last read, which may be repeated
	reads  int
	quiet  bool // accesses to registers are not reported
	window map[*mmio.Window]bool
}

// Observe returns fn wrapped for a driver, with its use reported to o.
func Observe(fn pci.Function, o Observer) *Observed {
	return &Observed{Function: fn, observer: o, began: time.Now(), window: map[*mmio.Window]bool{}}
}

// Of returns the wrapper if fn is observed, otherwise nil.
func Of(fn pci.Function) *Observed {
	o, _ := fn.(*Observed)
	return o
}

// Unwrap returns the function that is observed.
func (o *Observed) Unwrap() pci.Function { return o.Function }

// NUMANode returns the function's NUMA node, or -1 if it is unknown (package dma).
func (o *Observed) NUMANode() int {
	if n, ok := o.Function.(interface{ NUMANode() int }); ok {
		return n.NUMANode()
	}
	return -1
}

// Before asks the observer for permission before a step.
func (o *Observed) Before(step string) error {
	if o == nil || o.observer.Before == nil {
		return nil
	}
	return o.observer.Before(step)
}

// Seen reports an entry to the observer.
func (o *Observed) Seen(e Entry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
	o.tell(e)
}

// Flush reports reads that were held back because they might repeat.
func (o *Observed) Flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
}

// Quietly runs do without reporting accesses to registers.
func (o *Observed) Quietly(do func()) {
	if o == nil {
		do()
		return
	}
	set := func(quiet bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.quiet = quiet
	}
	set(true)
	defer set(false)
	do()
}

func (o *Observed) flush() {
	if o.reads > 0 {
		if o.read.Times = o.reads; o.reads == 1 {
			o.read.Times = 0
		}
		o.observer.Seen(o.read)
		o.reads = 0
	}
}

func (o *Observed) tell(e Entry) {
	e.At = time.Since(o.began)
	o.observer.Seen(e)
}

// access records a register access of width bytes. Reads that repeat the one before are counted, and recorded as one
// entry.
func (o *Observed) access(name string, write bool, off uint64, width int, v uint64) {
	e := Entry{Kind: Read, Name: fmt.Sprintf("%s+%#x", name, off), Value: v, Width: width}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.quiet {
		return
	}
	if write {
		o.flush()
		e.Kind = Write
		o.tell(e)
		return
	}
	if o.reads > 0 && o.read.Name == e.Name && o.read.Value == v && o.read.Width == width {
		o.reads++
		return
	}
	o.flush()
	e.At = time.Since(o.began)
	o.read, o.reads = e, 1
}

func (o *Observed) watch(name string, w *mmio.Window, err error) (*mmio.Window, error) {
	if err != nil {
		o.Seen(Entry{Kind: Config, Name: "map " + name, Err: err.Error()})
		return w, err
	}
	o.mu.Lock()
	seen := o.window[w]
	o.window[w] = true
	o.mu.Unlock()
	if !seen {
		kind := "uncached"
		if w.WriteCombining() {
			kind = "write-combining"
		}
		o.Seen(Entry{Kind: Config, Name: fmt.Sprintf("map %s: %#x bytes, %s", name, w.Size(), kind)})
		w.Observe(func(write bool, off uint64, width int, v uint64) { o.access(name, write, off, width, v) })
	}
	return w, nil
}

// BAR implements pci.Function.
func (o *Observed) BAR(n int) (*mmio.Window, error) {
	w, err := o.Function.BAR(n)
	return o.watch(fmt.Sprintf("BAR%d", n), w, err)
}

// BARWC implements pci.Function.
func (o *Observed) BARWC(n int) (*mmio.Window, error) {
	w, err := o.Function.BARWC(n)
	return o.watch(fmt.Sprintf("BAR%d", n), w, err)
}

// WriteConfig implements pci.Function.
func (o *Observed) WriteConfig(off int, p []byte) error {
	err := o.Function.WriteConfig(off, p)
	o.did(fmt.Sprintf("write configuration space at %#x", off), p, 0, err)
	return err
}

// SetBusMaster implements pci.Function.
func (o *Observed) SetBusMaster(on bool) error {
	err := o.Function.SetBusMaster(on)
	o.did(fmt.Sprintf("bus mastering %v", on), nil, 0, err)
	return err
}

// Reset implements pci.Function.
func (o *Observed) Reset() error {
	began := time.Now()
	err := o.Function.Reset()
	o.did(reset, nil, time.Since(began), err)
	return err
}

// reset is the name of the entry of a function-level reset.
const reset = "reset of the function"

func (o *Observed) did(name string, in []byte, took time.Duration, err error) {
	e := Entry{Kind: Config, Name: name, In: append(Bytes(nil), in...), Took: took}
	if err != nil {
		e.Err = err.Error()
	}
	o.Seen(e)
}
