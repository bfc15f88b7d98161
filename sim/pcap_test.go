package sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// A capture states the link type of its wire. InfiniBand packets get room for the variant checksum, which readers
// expect.
func TestCaptureLinkTypes(t *testing.T) {
	for link, want := range map[LinkType]struct {
		number uint32
		record []byte
	}{LinkEthernet: {1, []byte("frame")}, LinkInfiniBand: {247, []byte("frame\x00\x00")}} {
		var out bytes.Buffer
		a, _ := Pair()
		c := must.Get(NewCapture(a, &out, link))(t)
		c.Send(0, []byte("frame"))
		b := out.Bytes()
		if n := binary.LittleEndian.Uint32(b[20:]); n != want.number {
			t.Errorf("%v: link type %d, expected %d", link, n, want.number)
		}
		n := uint32(len(want.record))
		if binary.LittleEndian.Uint32(b[32:]) != n || binary.LittleEndian.Uint32(b[36:]) != n || !bytes.Equal(b[40:], want.record) {
			t.Errorf("%v: record %q", link, b[24:])
		}
	}
}
