package mlx5sim

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
)

// The functions of all adapters, and their capabilities, as far as they differ from those of the one before.
func TestProfiles(t *testing.T) {
	var b strings.Builder
	before := map[int][]byte{}
	all := []Options{{Profile: ConnectX7, NoUCTX: true}, {Profile: ConnectX7, NoIPVersion: true}, {Profile: ConnectX7, ICMP: true}}
	for _, p := range slices.Backward(Profiles()) {
		all = append([]Options{{Profile: p}}, all...)
	}
	for _, o := range all {
		x, p := newRig(t, o), profiles[o.Profile]
		fmt.Fprintf(&b, "%s %t %+v %+v\n", o.Profile.Name(), o.Profile.Virtual(), *p, x.Port.Config())
		caps := x.m.caps
		for _, kind := range slices.Sorted(maps.Keys(caps.max)) {
			for which, has := range [][]byte{caps.max[kind], caps.cur[kind]} {
				was := append(before[2*kind+which], make([]byte, len(has))...)
				for off := 0; off+4 <= len(has); off += 4 {
					if !bytes.Equal(has[off:off+4], was[off:off+4]) {
						fmt.Fprintf(&b, "\t%d/%d %03x %x\n", kind, which, off, has[off:off+4])
					}
				}
				before[2*kind+which] = bytes.Clone(has)
			}
		}
	}
	golden.Equal(t, "testdata/profiles.txt", b.String())
}
