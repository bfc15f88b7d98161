package rig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/kit/beside"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

// Kernel is the common part of simulated kernels, whose own driver drives the card, and which let one process at a time
// use it too.
type Kernel struct {
	testing.TB
	Mu     Lock      // held in each call of the process
	Model  *sim.Port // the card
	Port   beside.Interface
	Switch bool        // the port belongs to the card's switch
	Hidden atomic.Bool // the interface has another name or namespace now

	Calls  int // made by processes
	DieAt  int // the call in which the process is killed, 0 for never
	FailAt int // the call that fails with ENOSPC, 0 for none

	load    func(pci.Function, nic.Options) nic.Device
	fn      pci.Function
	host    nic.Device
	process *Process
	removed atomic.Bool
	absent  atomic.Int32 // openings that fail, in three ways
	unnamed atomic.Bool  // the interface is not there, until the next opening
}

// Recovers makes the next three openings of the device by a process fail as they do while the kernel resets the card:
// without the device, with one that the firmware does not serve, and without the interface.
func (k *Kernel) Recovers() { k.absent.Store(3) }

// unserved is an open uverbs file of a device in recovery.
type unserved struct{}

func (unserved) Call(uint16, uint16, []verbs.Attr) error     { return unix.EIO }
func (unserved) Map(uint64, int, bool) (b []byte, err error) { return nil, unix.EIO }
func (unserved) Unmap([]byte) error                          { return nil }
func (unserved) Close() error                                { return nil }

// Start opens the model for the kernel, while the model runs. load opens the kernel's driver.
func (k *Kernel) Start(t testing.TB, port *sim.Port, p beside.Interface,
	load func(pci.Function, nic.Options) nic.Device) {
	k.TB, k.Model, k.Port, k.load, k.Mu = t, port, p, load, make(Lock, 1)
	k.restart()
	beside.Read = func(name string) (beside.Interface, error) {
		k.Mu.Lock()
		defer k.Mu.Unlock()
		if k.removed.Load() || k.Hidden.Load() || k.unnamed.Load() {
			return beside.Interface{}, fmt.Errorf("interface %s: %w", name, nic.ErrGone)
		}
		f := k.Port
		if !port.LinkUp() {
			f.Link = nic.Link{}
		}
		return f, nil
	}
	beside.Switchdev = func(string) bool { return k.Switch }
}

func (k *Kernel) restart() {
	k.fn = must.Get(k.Model.Function())(k)
	k.host = k.load(k.fn, nic.Options{MAC: k.Port.MAC, MTU: k.Port.MTU, RingSize: 64,
		Log: slog.New(slog.DiscardHandler)})
}

// Change changes the interface.
func (k *Kernel) Change(change func(*beside.Interface)) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	change(&k.Port)
}

// Host is the kernel's own driver.
func (k *Kernel) Host() nic.Device { return k.host }

// Close ends the kernel's driver.
func (k *Kernel) Close() error { return k.host.Close() }

// fail sends the event of a fatal error to the process that has the card open, which loses its objects.
func (k *Kernel) fail() {
	if p := k.process; p != nil && !p.closed {
		k.Event(verbs.EventDeviceFatal)
		p.destroy()
	}
}

// Reset reloads the kernel's driver, as after a reset of the card.
func (k *Kernel) Reset() error {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.fail()
	must.OK(k, k.fn.Reset())
	must.OK(k, k.host.Close())
	k.restart()
	return nil
}

// Remove removes the card: a process's objects are lost without commands that the card would answer.
func (k *Kernel) Remove() {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	k.removed.Store(true)
	k.fail()
	k.host.Close() // its error is that of a card that is gone
}

// Event reports an asynchronous event to the process that has the card open.
func (k *Kernel) Event(kind uint32) {
	e := abi.AsyncEventDesc{EventType: kind}
	must.Get(unix.Write(k.process.events[1], verbs.Bytes(&e)))(k)
}

// Kill ends the process that has the card open, as far as the kernel sees it: the file is closed, and no call follows.
func (k *Kernel) Kill() { must.OK(k, k.process.Close()) }

// Left is the number of objects of processes.
func (k *Kernel) Left() int {
	if k.process == nil {
		return 0
	}
	return len(k.process.undo)
}

// Beside returns the function as passed to a driver beside the kernel's: found's RDMA device, which open opens.
func (k *Kernel) Beside(found verbs.Found, firmware string, open func() verbs.Kernel) *verbs.Function {
	return functionBeside(k, k.fn, found, firmware, func(verbs.Found) (verbs.Kernel, error) {
		if k.removed.Load() {
			return nil, nic.ErrNoDevice
		}
		left := k.absent.Add(-1)
		k.unnamed.Store(left == 0)
		switch left {
		case 2:
			return nil, nic.ErrNoDevice
		case 1:
			return unserved{}, nil
		}
		return open(), nil
	})
}

// CreatedCQ answers a call that created a completion queue.
func CreatedCQ(attrs []verbs.Attr, handle, entries uint32) {
	i := slices.IndexFunc(attrs, func(a verbs.Attr) bool { return a.ID == abi.AttrCreateCQHandle })
	attrs[i].Value = int64(handle)
	binary.NativeEndian.PutUint32(Data(attrs, abi.AttrCreateCQRespCQE), entries-1)
}

// Allows checks a change of a queue pair's state on port 1, as Linux does.
func (k *Kernel) Allows(m *abi.ModifyQP, state uint8) error {
	mask := uint32(verbs.QPMaskState)
	if m.QPState == verbs.QPStateInit {
		mask |= verbs.QPMaskPort
	}
	if m.AttrMask != mask || m.QPState != verbs.QPStateReset && m.QPState != state+1 ||
		m.QPState == verbs.QPStateInit && m.PortNum != 1 {
		k.Errorf("a queue pair from state %d to %d with %#x, port %d", state, m.QPState, m.AttrMask, m.PortNum)
		return unix.EINVAL
	}
	return nil
}

// Calls are a process's calls to the kernel that differ between cards.
type Calls interface {
	Method(object, method uint16, attrs []verbs.Attr) error
	// a call of the older interface, with the driver's own parts
	Write(number uint32, in, out, own, answer []byte) error
}

// Process is an open uverbs file. A card's own part embeds it.
type Process struct {
	kernel *Kernel
	calls  Calls
	undo   map[uint32]func() error // how to destroy each object, by handle
	last   uint32                  // handle
	events [2]int
	closed bool
}

// Open opens the file of a process whose calls are those of a card.
func (k *Kernel) Open(calls Calls) Process {
	return Process{kernel: k, calls: calls, undo: map[uint32]func() error{}}
}

// Add adds an object that undo destroys, and returns its handle.
func (p *Process) Add(undo func() error) uint32 {
	p.last++
	p.undo[p.last] = undo
	return p.last
}

// Destroy destroys an object.
func (p *Process) Destroy(handle uint32) error {
	undo := p.undo[handle]
	delete(p.undo, handle)
	return undo()
}

// Call implements verbs.Kernel.
func (p *Process) Call(object, method uint16, attrs []verbs.Attr) error {
	p.kernel.Mu.Lock()
	defer p.kernel.Mu.Unlock()
	return errno(p.call(object, method, attrs))
}

func (p *Process) call(object, method uint16, attrs []verbs.Attr) error {
	k := p.kernel
	k.process = p
	if k.Calls++; k.Calls == k.DieAt {
		p.destroy()
	}
	switch {
	case p.closed:
		return unix.EIO
	case k.Calls == k.FailAt:
		return unix.ENOSPC
	case object == abi.ObjectAsyncEvent:
		if err := unix.Pipe2(p.events[:], unix.O_CLOEXEC); err != nil {
			return err
		}
		attrs[0].Value = int64(p.events[0])
		return nil
	case object == abi.ObjectDevice && method != abi.MethodGetContext:
		number := uint32(0)
		for _, a := range attrs {
			if a.ID == abi.AttrWriteCmd {
				number = uint32(a.Value)
			}
		}
		return p.calls.Write(number, Data(attrs, abi.AttrCoreIn), Data(attrs, abi.AttrCoreOut),
			Data(attrs, abi.AttrUHWIn), Data(attrs, abi.AttrUHWOut))
	}
	return p.calls.Method(object, method, attrs)
}

// Unmap implements verbs.Kernel.
func (p *Process) Unmap([]byte) error { return nil }

// Close closes the file.
func (p *Process) Close() error {
	p.kernel.Mu.Lock()
	defer p.kernel.Mu.Unlock()
	p.destroy()
	return nil
}

// destroy destroys everything in reverse order, as the kernel does when the file is closed. It fails the test for an
// error of a card that works.
func (p *Process) destroy() {
	if p.closed {
		return
	}
	p.closed = true
	for ; p.last > 0; p.last-- {
		if p.undo[p.last] == nil {
			continue
		}
		err := p.Destroy(p.last)
		if !errors.Is(err, nic.ErrGone) && !errors.Is(err, nic.ErrTimeout) && !p.kernel.removed.Load() {
			check.OK(p.kernel, err)
		}
	}
	if p.events[1] != 0 {
		unix.Close(p.events[1])
	}
}
