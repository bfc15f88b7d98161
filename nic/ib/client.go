package ib

import (
	"errors"
	"fmt"
	"time"
)

// ErrNoSM says that nobody answers for subnet administration: there is no subnet manager, or it is not where the port says.
var ErrNoSM = errors.New("no answer from subnet administration")

// Client asks subnet administration, one question at a time. What sends and receives its datagrams through queue pair 1 is the
// driver's.
type Client struct {
	Port GID    // of the port that asks
	PKey uint16 // of the partition that it asks about

	// Send sends a datagram to queue pair 1 of the subnet manager's LID.
	Send func(mad []byte) error
	// Recv returns the next datagram that came to queue pair 1, nil if none comes within limit.
	Recv func(limit time.Duration) ([]byte, error)

	// Timeout is how long is waited for an answer, Tries how often is asked. Zero means a second, and four times.
	Timeout time.Duration
	Tries   int

	tid uint64
}

// Join makes the port a full member of a group that is there.
func (c *Client) Join(mgid GID) (g Group, err error) {
	err = c.ask("join of the group", func(tid uint64) []byte { return Join(mgid, c.Port, c.PKey, tid) },
		func(b []byte, tid uint64) error { g, err = ParseJoin(b, tid); return err })
	return g, err
}

// JoinOrCreate is Join for a group that is made where it is not there, with what like has.
func (c *Client) JoinOrCreate(mgid GID, like Group) (g Group, err error) {
	err = c.ask("join of the group", func(tid uint64) []byte { return JoinOrCreate(mgid, c.Port, like, tid) },
		func(b []byte, tid uint64) error { g, err = ParseJoin(b, tid); return err })
	return g, err
}

// JoinToSend lets the port send to a group that is there.
func (c *Client) JoinToSend(mgid GID) (g Group, err error) {
	err = c.ask("join of the group, to send", func(tid uint64) []byte { return JoinToSend(mgid, c.Port, c.PKey, tid) },
		func(b []byte, tid uint64) error { g, err = ParseJoin(b, tid); return err })
	return g, err
}

// Leave ends a membership.
func (c *Client) Leave(mgid GID) error {
	return c.ask("leave of the group", func(tid uint64) []byte { return Leave(mgid, c.Port, tid) }, ParseLeave)
}

// Path finds the way to a port.
func (c *Client) Path(to GID) (p Path, err error) {
	err = c.ask("path", func(tid uint64) []byte { return FindPath(c.Port, to, c.PKey, tid) },
		func(b []byte, tid uint64) error { p, err = ParsePath(b, tid); return err })
	return p, err
}

// ask sends a request until it is answered. Each try has its own number, so that the late answer to one is not taken
// for that to another; what else comes meanwhile is dropped. One who is busy is asked again after the timeout.
func (c *Client) ask(what string, request func(tid uint64) []byte, parse func(b []byte, tid uint64) error) error {
	timeout, tries := c.Timeout, c.Tries
	if timeout == 0 {
		timeout = time.Second
	}
	if tries == 0 {
		tries = 4
	}
	if c.tid == 0 { // an answer to an earlier user's request is not for us
		c.tid = uint64(time.Now().UnixNano())
	}
	var busy error
	for range tries {
		c.tid++
		tid := c.tid
		if err := c.Send(request(tid)); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		for end := time.Now().Add(timeout); ; {
			b, err := c.Recv(max(time.Until(end), 0))
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if b == nil {
				break
			}
			h, err := ParseHeader(b)
			if err != nil || h.TID != tid || h.Method&0x80 == 0 {
				continue // another process's, or late
			}
			err = parse(b, tid)
			var status *StatusError
			if errors.As(err, &status) && status.Busy() {
				busy = err
				continue // until the time is up
			}
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		}
	}
	if busy != nil {
		return fmt.Errorf("%s: %w", what, busy)
	}
	return fmt.Errorf("%s: %w: %d requests, %v each", what, ErrNoSM, tries, timeout)
}
