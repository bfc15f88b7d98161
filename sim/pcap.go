package sim

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"
	"time"
)

// LinkType is the link layer of a wire.
type LinkType uint8

const (
	LinkEthernet   LinkType = iota // frames without FCS
	LinkInfiniBand                 // packets with the invariant checksum, without the variant one
)

func (l LinkType) String() string { return [...]string{"Ethernet", "InfiniBand"}[l] }

// Link types in pcap files (tcpdump.org/linktypes.html), and the bytes that are appended to each frame.
var pcapLink = [...]struct {
	number uint32
	tail   []byte
}{LinkEthernet: {1, nil}, LinkInfiniBand: {247, []byte{0, 0}}} // a variant checksum, which readers expect

// Capture is an end of a wire that writes all frames to a pcap file with nanosecond timestamps.
type Capture struct {
	Wire
	mu  sync.Mutex
	out io.Writer
	err error

	tail []byte
	size int64 // of what was written whole
}

// NewCapture writes the file's header and returns w with a capture. Timestamps are the port's clock.
func NewCapture(w Wire, out io.Writer, link LinkType) (*Capture, error) {
	h := make([]byte, 24)
	binary.LittleEndian.PutUint32(h[0:], 0xa1b23c4d) // nanoseconds
	binary.LittleEndian.PutUint16(h[4:], 2)
	binary.LittleEndian.PutUint16(h[6:], 4)
	binary.LittleEndian.PutUint32(h[16:], 1<<16)
	binary.LittleEndian.PutUint32(h[20:], pcapLink[link].number)
	n, err := out.Write(h)
	return &Capture{Wire: w, out: out, tail: pcapLink[link].tail, size: int64(n)}, err
}

func (c *Capture) Send(now time.Duration, frame []byte) {
	c.write(now, frame)
	c.Wire.Send(now, frame)
}

func (c *Capture) Recv(now time.Duration) []byte {
	f := c.Wire.Recv(now)
	if f != nil {
		c.write(now, f)
	}
	return f
}

func (c *Capture) write(now time.Duration, frame []byte) {
	h := make([]byte, 16, 16+len(frame)+len(c.tail))
	binary.LittleEndian.PutUint32(h[0:], uint32(now/time.Second))
	binary.LittleEndian.PutUint32(h[4:], uint32(now%time.Second))
	binary.LittleEndian.PutUint32(h[8:], uint32(len(frame)+len(c.tail)))
	binary.LittleEndian.PutUint32(h[12:], uint32(len(frame)+len(c.tail)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	var n int
	if n, c.err = c.out.Write(append(append(h, frame...), c.tail...)); c.err == nil {
		c.size += int64(n)
	} else if f, ok := c.out.(interface{ Truncate(int64) error }); ok && n > 0 { // a full disk: remove the incomplete packet
		c.err = errors.Join(c.err, f.Truncate(c.size))
	}
}

// Err returns the first write error.
func (c *Capture) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
