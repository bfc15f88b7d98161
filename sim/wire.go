package sim

import (
	"sync"
	"time"
)

// Wire is one end of a link, as a port sees it. All methods may be called from any goroutine, and none blocks.
type Wire interface {
	// Send puts a frame (without FCS) on the wire at the sender's time now. The frame is copied.
	Send(now time.Duration, frame []byte)
	// Recv returns the next frame that has arrived at the receiver's time now, or nil. The caller may keep it.
	Recv(now time.Duration) []byte
	// Up reports whether the other end is connected.
	Up() bool
}

// wireDepth is the capacity of a Cable in frames per direction. More are lost, as in a switch.
const wireDepth = 1 << 16

// Cable is one end of a pair.
type Cable struct {
	link *sync.Mutex
	*linkState
	in  *queue // frames for this end
	out *queue // frames for the other end
}

type linkState struct {
	up    bool
	downs int
}

type queue struct{ frames [][]byte }

// Pair returns the two ends of a cable. The link is up.
func Pair() (a, b *Cable) {
	mu, state, x, y := &sync.Mutex{}, &linkState{up: true}, &queue{}, &queue{}
	return &Cable{mu, state, x, y}, &Cable{mu, state, y, x}
}

// OnWire reports whether frames of this end have not been taken by the other end. See Host.OnWire.
func (c *Cable) OnWire() bool {
	c.link.Lock()
	defer c.link.Unlock()
	return len(c.out.frames) > 0
}

// SetUp connects or disconnects the cable. Disconnecting loses the frames on it.
func (c *Cable) SetUp(up bool) {
	c.link.Lock()
	defer c.link.Unlock()
	if c.up && !up {
		c.downs++
	}
	if c.up = up; !up {
		c.in.frames, c.out.frames = nil, nil
	}
}

func (c *Cable) Up() bool {
	c.link.Lock()
	defer c.link.Unlock()
	return c.up
}

// Downs returns how often the link has gone down.
func (c *Cable) Downs() int {
	c.link.Lock()
	defer c.link.Unlock()
	return c.downs
}

func (c *Cable) Send(_ time.Duration, frame []byte) {
	c.link.Lock()
	defer c.link.Unlock()
	if c.up && len(c.out.frames) < wireDepth {
		c.out.frames = append(c.out.frames, append([]byte(nil), frame...))
	}
}

func (c *Cable) Recv(time.Duration) []byte {
	c.link.Lock()
	defer c.link.Unlock()
	if len(c.in.frames) == 0 {
		return nil
	}
	f := c.in.frames[0]
	c.in.frames[0] = nil
	c.in.frames = c.in.frames[1:]
	return f
}
