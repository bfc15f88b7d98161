package mlx4sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
)

// The functions of all adapters and settings, and what QUERY_DEV_CAP answers, by dword, as far as it differs from the
// one before.
func TestProfiles(t *testing.T) {
	var b strings.Builder
	before := make([]byte, 0x100)
	for _, o := range []Options{{}, {Profile: ConnectX3Pro}, {Link: AnyLink}, {Link: InfiniBand}, {NoPortEvents: true},
		{Steering: DeviceManaged}} {
		m := New(o)
		fmt.Fprintf(&b, "%+v\n%+v\n", o, m.Config())
		caps := as(make([]byte, 0x100), devCap)
		m.fillDevCap(caps)
		for off := 0; off < len(caps.B); off += 4 {
			if is := caps.B[off : off+4]; string(is) != string(before[off:off+4]) {
				fmt.Fprintf(&b, "\t%03x %x\n", off, is)
			}
		}
		before = caps.B
	}
	golden.Equal(t, "testdata/profiles.txt", b.String())
}
