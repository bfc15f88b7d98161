package ixgbesim

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
)

// The registers that are not zero after a reset.
func TestResetValues(t *testing.T) {
	for _, k := range []Kind{SFP, X540} {
		x := newRig(t, Options{Kind: k})
		text := ""
		for off := uint64(0); off < 128<<10; off += 4 {
			name, _ := x.m.RegisterName(0, off)
			var b [4]byte
			if x.Port.ReadBAR(0, off, b[:]) != nil || name == "" || b == [4]byte{} {
				continue
			}
			text += fmt.Sprintf("%05x %s %08x\n", off, name, binary.LittleEndian.Uint32(b[:]))
		}
		x.Port.ForgetViolations()
		golden.Equal(t, fmt.Sprintf("testdata/reset-%d.txt", k), text)
	}
}
