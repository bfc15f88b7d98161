package measure

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/internal/bench/engine"
)

const (
	macs    = 12 // bytes before the EtherType
	tagSize = 4
	dot1q   = 0x8100
)

// tagged adds an 802.1Q tag to frames, and removes the tag of frames in the same VLAN. It allocates nothing while it
// sends and receives.
type tagged struct {
	engine.Port
	vid uint16
	out []byte
}

func newTagged(p engine.Port, vid uint16) *tagged {
	return &tagged{Port: p, vid: vid, out: make([]byte, 1<<16+64)}
}

// Send implements engine.Port.
func (t *tagged) Send(frame []byte) error {
	copy(t.out, frame[:macs])
	binary.BigEndian.PutUint16(t.out[macs:], dot1q)
	binary.BigEndian.PutUint16(t.out[macs+2:], t.vid)
	n := copy(t.out[macs+tagSize:], frame[macs:])
	return t.Port.Send(t.out[:macs+tagSize+n])
}

// Recv implements engine.Port. Frames of another VLAN, or without one, are ignored.
func (t *tagged) Recv(buf []byte) (n int, at int64, err error) {
	n, at, err = t.Port.Recv(buf)
	if n < macs+tagSize || err != nil || binary.BigEndian.Uint16(buf[macs:]) != dot1q ||
		binary.BigEndian.Uint16(buf[macs+2:])&0xfff != t.vid {
		return 0, 0, err
	}
	copy(buf[macs:], buf[macs+tagSize:n])
	return n - tagSize, at, nil
}
