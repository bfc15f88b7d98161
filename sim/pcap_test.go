package sim_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/disk"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

// A capture states the link type of its wire. InfiniBand packets get room for the variant checksum, which readers
// expect.
func TestCaptureLinkTypes(t *testing.T) {
	for link, want := range map[sim.LinkType]struct {
		number uint32
		record string
	}{sim.LinkEthernet: {1, "frame"}, sim.LinkInfiniBand: {247, "frame\x00\x00"}} {
		var out bytes.Buffer
		a, _ := sim.Pair()
		c := must.Get(sim.NewCapture(a, &out, link))(t)
		c.Send(0, []byte("frame"))
		b, n := out.Bytes(), uint32(len(want.record))
		check.Equal(t, binary.LittleEndian.Uint32(b[20:]), want.number, "link type %d")
		if binary.LittleEndian.Uint32(b[32:]) != n || binary.LittleEndian.Uint32(b[36:]) != n ||
			string(b[40:]) != want.record {
			t.Errorf("%v: record %q", link, b[24:])
		}
	}
}

// A capture that fills the disk ends with a whole frame, and says so.
func TestFullCapture(t *testing.T) {
	f := must.Get(os.Create(filepath.Join(disk.Small(t, 2), "pcap")))(t)
	defer f.Close()
	wire, _ := sim.Pair()
	c := must.Get(sim.NewCapture(wire, f, sim.LinkEthernet))(t)
	for range 20 {
		c.Send(0, make([]byte, 1000))
	}
	info, err := f.Stat()
	if err != nil || info.Size() != 24+8*(16+1000) || !errors.Is(c.Err(), unix.ENOSPC) {
		t.Errorf("%d bytes, %v, %v", info.Size(), err, c.Err())
	}
}
