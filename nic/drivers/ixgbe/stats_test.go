package ixgbe

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
)

// Each register has its own offset as its value, and two bits more, which the upper halves of octet counters lack.
func TestCounters(t *testing.T) {
	mem := make([]byte, 128<<10)
	for off := 0; off < len(mem); off += 4 {
		binary.LittleEndian.PutUint32(mem[off:], uint32(off)|0x90000001)
	}
	d := &Device{bar: mmio.Mapped(mem, false), queues: make([]*Queue, 3)}
	s, whole := d.counts()
	check.Equal(t, whole, true, "whole: %v")
	golden.Equal(t, "testdata/counters.txt", fmt.Sprintf("%+v\n", s))
	for _, gone := range []reg{regGPRC, regGOTCH, regRXMPC(7), regQPRDC(2), regMRFC} {
		was := binary.LittleEndian.Uint32(mem[gone:])
		binary.LittleEndian.PutUint32(mem[gone:], ^uint32(0))
		_, whole := d.counts()
		check.Equal(t, whole, false, fmt.Sprintf("all ones in %#x: whole: %%v", uint32(gone)))
		binary.LittleEndian.PutUint32(mem[gone:], was)
	}
}
