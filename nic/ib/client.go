package ib

import (
	"errors"
	"fmt"
	"time"
)

// ErrNoSM reports that subnet administration did not answer: there is no subnet manager, or it is not at the LID that
// the port reports.
var ErrNoSM = errors.New("no answer from subnet administration")

// Client sends requests to subnet administration, one at a time. The driver provides the functions that send and
// receive datagrams on queue pair 1.
type Client struct {
	Port GID    // of the requesting port
	PKey uint16 // of the partition that requests are about

	// Send sends a datagram to queue pair 1 of the subnet manager's LID.
	Send func(mad []byte) error
	// Recv returns the next datagram received on queue pair 1, or nil if none arrives within limit.
	Recv func(limit time.Duration) ([]byte, error)

	// Timeout is how long to wait for an answer; Tries is the number of attempts. Zero means one second and four
	// attempts.
	Timeout time.Duration
	Tries   int

	tid uint64
}

// join makes the port a full member of an existing group.
func (c *Client) Join(mgid GID) (g Group, err error) {
	err = c.query("join of the group", func(tid uint64) []byte { return join(mgid, c.Port, c.PKey, tid) },
		func(b []byte, tid uint64) error { g, err = parseJoin(b, tid); return err })
	return g, err
}

// joinOrCreate is like join, but creates the group with the parameters of like if it does not exist.
func (c *Client) JoinOrCreate(mgid GID, like Group) (g Group, err error) {
	err = c.query("join of the group", func(tid uint64) []byte { return joinOrCreate(mgid, c.Port, like, tid) },
		func(b []byte, tid uint64) error { g, err = parseJoin(b, tid); return err })
	return g, err
}

// joinToSend lets the port send to an existing group.
func (c *Client) JoinToSend(mgid GID) (g Group, err error) {
	err = c.query("join of the group, to send", func(tid uint64) []byte {
		return joinToSend(mgid, c.Port, c.PKey, tid)
	},
		func(b []byte, tid uint64) error { g, err = parseJoin(b, tid); return err })
	return g, err
}

// leave ends a membership.
func (c *Client) Leave(mgid GID) error {
	return c.query("leave of the group", func(tid uint64) []byte { return leave(mgid, c.Port, tid) }, parseLeave)
}

// Path finds the way to a port.
func (c *Client) Path(to GID) (p Path, err error) {
	err = c.query("path", func(tid uint64) []byte { return findPath(c.Port, to, c.PKey, tid) },
		func(b []byte, tid uint64) error { p, err = parsePath(b, tid); return err })
	return p, err
}

// mostWaiting bounds how many datagrams are dropped before a request. They take the room that its answer needs.
const mostWaiting = 64

// query sends a request until it is answered. Each attempt has its own transaction ID, so that a late answer to one is
// not mistaken for an answer to another. Other datagrams are dropped. If the answer is "busy", ask retries after the
// timeout.
func (c *Client) query(what string, request func(tid uint64) []byte, parse func(b []byte, tid uint64) error) error {
	timeout, tries := c.Timeout, c.Tries
	if timeout == 0 {
		timeout = time.Second
	}
	if tries == 0 {
		tries = 4
	}
	if c.tid == 0 { // do not accept an answer to an earlier user's request
		c.tid = uint64(time.Now().UnixNano())
	}
	var busy error
	for range tries {
		c.tid++
		tid := c.tid
		for range mostWaiting {
			if b, err := c.Recv(0); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			} else if b == nil {
				break
			}
		}
		if err := c.Send(request(tid)); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		for end, late := time.Now().Add(timeout), false; !late; {
			left := time.Until(end)
			late = left <= 0
			b, err := c.Recv(max(left, 0))
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if b == nil {
				break
			}
			h, err := parseHeader(b)
			if err != nil || h.TID != tid || h.Method&0x80 == 0 {
				continue // for another process, or late
			}
			err = parse(b, tid)
			var status *StatusError
			if errors.As(err, &status) && status.busy() {
				busy = err
				continue // until the timeout
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
