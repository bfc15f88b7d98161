// Package simtest is a test rig for models: it connects a model to a wire, and the test plays the driver.
package simtest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/sim"
)

// Rig has opened a model's function, with bus mastering on and memory mapped. The test writes registers and rings as a
// driver would, and steps the port. The rigs of single models embed it.
type Rig struct {
	testing.TB
	Port    *sim.Port
	Fn      *sim.Function
	Far     *sim.Cable // the wire's other end
	Arena   *dma.Arena // memory that the device can access
	Vectors []int      // interrupts, oldest first

	pool dma.Block // memory for Alloc, of a reusable rig
	used int
}

// New powers m on. At the end of the test it fails the test on any violation that the test did not expect, and closes
// everything. memory is in bytes, a multiple of 4096.
func New(t testing.TB, name string, m sim.Model, memory int) *Rig {
	t.Helper()
	r := &Rig{TB: t}
	var err error
	r.Port, err = sim.New(m, sim.Options{Name: name, Seed: 1})
	r.Must(err)
	var near *sim.Cable
	near, r.Far = sim.Pair()
	r.Port.Connect(near)
	r.Fn, err = r.Port.Function()
	r.Must(err)
	r.Port.SetInterrupt(func(v int) { r.Vectors = append(r.Vectors, v) })
	r.Arena, err = dma.NewArena(r.Fn, memory)
	r.Must(err)
	r.Must(r.Fn.SetBusMaster(true))
	t.Cleanup(func() {
		if _, fuzz := t.(*testing.F); !fuzz { // random input causes violations
			r.Clean()
		}
		r.Fn.SetBusMaster(false)
		r.Arena.Close()
		r.Fn.Close()
		r.Port.Close()
	})
	return r
}

// Must fails the test if err is not nil.
func (r *Rig) Must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// BAR returns the window of a BAR.
func (r *Rig) BAR(n int) *mmio.Window {
	r.Helper()
	w, err := r.Fn.BAR(n)
	r.Must(err)
	return w
}

// Arrive sends frames from the wire's other end, and steps the device until it is idle.
func (r *Rig) Arrive(frames ...[]byte) {
	for _, f := range frames {
		r.Far.Send(0, f)
	}
	r.Port.Settle(20)
}

// Sent ends the test unless the next frame on the wire is want. format and args say which one it is.
func (r *Rig) Sent(want []byte, format string, args ...any) {
	r.Helper()
	if got := r.Far.Recv(1 << 40); !bytes.Equal(got, want) {
		r.Fatalf("%s: the wire has\n%x, want\n%x", fmt.Sprintf(format, args...), got, want)
	}
}

// Reusable prepares the rig for Again: a fuzz target creates one rig, because creating one takes a thousand times as
// long as most inputs. memory is the number of bytes for Alloc.
func (r *Rig) Reusable(memory int) {
	r.Helper()
	var err error
	r.pool, err = r.Arena.Alloc(memory, 4096)
	r.Must(err)
}

// Again resets a reusable rig to the state after New, for another test: device reset, bus mastering on, memory zeroed
// and free, no frame on the wire, no interrupt and no violation.
func (r *Rig) Again(t testing.TB) {
	t.Helper()
	r.TB, r.Vectors, r.used = plain{t}, nil, 0
	r.Far.SetUp(false)
	r.Must(r.Fn.Reset())
	r.Far.SetUp(true)
	clear(r.pool.Bytes)
	r.Must(r.Fn.SetBusMaster(true))
	r.Port.ForgetViolations()
}

// plain is a test without Helper, which walks the stack and took a third of the time of a fuzz input.
type plain struct{ testing.TB }

func (plain) Helper() {}

// Alloc allocates n bytes of memory, aligned to a page.
func (r *Rig) Alloc(n int) dma.Block {
	r.Helper()
	if r.pool.Bytes != nil {
		size := (n + 4095) &^ 4095
		if r.used+size > len(r.pool.Bytes) {
			r.Fatalf("%d bytes are left of the rig's memory, and %d wanted", len(r.pool.Bytes)-r.used, n)
		}
		b := dma.Block{Bytes: r.pool.Bytes[r.used : r.used+n : r.used+n], IOVA: r.pool.IOVA + uint64(r.used)}
		r.used += size
		return b
	}
	b, err := r.Arena.Alloc(n, 4096)
	r.Must(err)
	return b
}

// Clean fails the test on any violation.
func (r *Rig) Clean() {
	r.Helper()
	for _, v := range r.Port.Violations() {
		r.Error("violation: ", v)
	}
}

// ExpectWarning expects a violation of grade Warning with the text, and none of grade Error. It clears both.
func (r *Rig) ExpectWarning(text string) {
	r.Helper()
	if v := r.Port.Errors(); len(v) > 0 {
		r.Errorf("errors: %q, expected only a warning with %q", v, text)
	}
	r.ExpectViolation(text)
}

// ExpectError expects a violation of grade Error with the text, and clears all violations.
func (r *Rig) ExpectError(text string) {
	r.Helper()
	if v := strings.Join(r.Port.Errors(), "\n"); !strings.Contains(v, text) {
		r.Errorf("errors: %q, expected one with %q", v, text)
	}
	r.Port.ForgetViolations()
}

// ExpectViolation expects a violation of either grade with the text, and clears all violations.
func (r *Rig) ExpectViolation(text string) {
	r.Helper()
	if v := strings.Join(r.Port.Violations(), "\n"); !strings.Contains(v, text) {
		r.Errorf("violations %q, expected one with %q", v, text)
	}
	r.Port.ForgetViolations()
}
