package ixgbesim

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/sim/simtest"
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

// TestEachBitOfRegisters inverts each bit of the first register of each name, after a reset. The file has the registers
// of each name, what they keep, and what the device reports.
func TestEachBitOfRegisters(t *testing.T) {
	var b strings.Builder
	x := newRigOf(t, Options{}, 4096)
	type array struct {
		count    int
		from, to uint64
	}
	names, all := []string{}, map[string]*array{}
	for off := uint64(0); off < 128<<10; off += 4 {
		name, _ := x.m.RegisterName(0, off)
		if name, _, _ = strings.Cut(name, "["); name == "" {
			continue
		}
		if all[name] == nil {
			names, all[name] = append(names, name), &array{from: off}
		}
		all[name].count++
		all[name].to = off
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			a, x := all[name], newRigOf(t, Options{}, 4096)
			usual := x.rd(a.from)
			f := simtest.Flips{Rig: x.Rig, Little: true, Build: func() []byte {
				x.wr(a.from, usual)
				return binary.LittleEndian.AppendUint32(nil, x.rd(a.from))
			}}
			f.Run = func(in []byte) (string, bool) {
				v := binary.LittleEndian.Uint32(in)
				x.wr(a.from, v)
				is := x.rd(a.from)
				return fmt.Sprintf("%t %08x", is == v, is), true
			}
			fmt.Fprintf(&b, "%s %05x-%05x %d\n%v", name, a.from, a.to, a.count, &f)
			x.Port.ForgetViolations()
		})
	}
	golden.Equal(t, "testdata/registers.txt", b.String())
}
