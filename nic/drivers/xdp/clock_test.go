package xdp

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// An unreadable clock must not leave an old error estimate active.
func TestUnreadableClockIsNotSynchronised(t *testing.T) {
	needs.Root(t, "creating a BPF map")
	clocks := must.Get(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4,
		ValueSize: uint32(unsafe.Sizeof(programClockPair{})), MaxEntries: 1}))(t)
	defer clocks.Close()
	var broken error
	k := &clockKeeper{clocks: clocks, adjtimex: func(x *unix.Timex) (int, error) {
		*x = unix.Timex{Tai: 37, Maxerror: 1000}
		return unix.TIME_OK, broken
	}}
	inForce := func() (offset, estimate uint64) {
		var both programClockPair
		must.OK(t, clocks.Lookup(uint32(0), &both))
		c := both.Clock[both.Sequence&1]
		return c.Offset, c.ErrorEstimate
	}
	k.update()
	if offset, estimate := inForce(); offset != 37 || estimate != uint64(fastpath.KernelEstimate(true, 1000)) ||
		k.failures.Load() != 0 {
		t.Errorf("offset %d, error estimate %#x, %d failures", offset, estimate, k.failures.Load())
	}
	broken = errors.New("no clock")
	k.update()
	k.update()
	if offset, estimate := inForce(); offset != 37 || estimate != uint64(fastpath.KernelEstimate(false, 0)) ||
		k.failures.Load() != 2 {
		t.Errorf("after two failures: offset %d, error estimate %#x, %d failures", offset, estimate, k.failures.Load())
	}
	broken = nil
	k.update()
	if _, estimate := inForce(); estimate != uint64(fastpath.KernelEstimate(true, 1000)) {
		t.Errorf("error estimate %#x after the clock could be read again", estimate)
	}
}
