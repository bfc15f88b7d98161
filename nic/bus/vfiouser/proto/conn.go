package proto

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Message is one message with the file descriptors that came with it.
type Message struct {
	ID    uint16
	Cmd   Command
	Flags uint32
	Errno uint32
	Body  []byte
	FDs   []int
}

// CloseFDs closes the descriptors that TakeFD did not take.
func (m *Message) CloseFDs() {
	for _, fd := range m.FDs {
		unix.Close(fd)
	}
	m.FDs = nil
}

// TakeFD returns the message's n-th descriptor and makes the caller its owner.
func (m *Message) TakeFD(n int) int {
	fd := m.FDs[n]
	m.FDs = append(m.FDs[:n:n], m.FDs[n+1:]...)
	return fd
}

// Conn is one connection. Call reads the reply to its request itself, in a blocking system call: a reader beside it
// would cost a switch of goroutines, often between threads, for each access. What it reads for others it passes on.
//
// The socket is outside of Go's poller, which would wake a thread for each message.
type Conn struct {
	sock    socket
	request func(Message) error // for requests that a Call reads; if it is nil, Next returns them later
	calls   atomic.Uint32       // that have begun
	alert   atomic.Bool         // requests are expected at any time

	wmu sync.Mutex
	out []byte // the message that is being written

	reader   chan struct{} // has an element while a goroutine reads; the next three fields are that goroutine's
	requests []Message     // that a Call read, for Next
	head     [HeaderSize]byte
	oob      [maxOOB]byte

	mu      sync.Mutex
	next    uint16
	waiting map[uint16]chan Message
	err     error         // why the connection was closed
	done    chan struct{} // closed with the connection
}

const (
	maxOOB = 1024 // control data with 253 descriptors, the most that the kernel passes at once

	// maxRequests is the number of requests that a Call keeps for Next. QEMU's register writes request no reply, so a
	// guest may send thousands while the device waits for one.
	maxRequests = 1 << 17

	// rest is how long Run leaves reading to calls after the last one. A device that is used by calls sends no requests
	// but for memory without a file, before which Alert is called.
	rest = time.Millisecond
)

// NewConn takes ownership of sock. A Call passes the requests that it reads to request, which must not wait for the
// other side, or keeps them for Next if request is nil.
func NewConn(sock *net.UnixConn, request func(Message) error) (*Conn, error) {
	c := &Conn{request: request, waiting: map[uint16]chan Message{}, reader: make(chan struct{}, 1),
		done: make(chan struct{})}
	if err := c.sock.open(sock); err != nil {
		return nil, fmt.Errorf("vfio-user: %w", err)
	}
	return c, nil
}

// Fail closes the connection. Callers that wait for a reply get the error.
func (c *Conn) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	if !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	c.err = err
	c.sock.close()
	close(c.done)
	for id, w := range c.waiting {
		close(w)
		delete(c.waiting, id)
	}
}

// reason returns why the connection was closed, or nil.
func (c *Conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// read reads one message, which has begun to arrive: the header, then exactly the body. Reading ahead would attach a
// descriptor to the wrong message. The caller has c.reader.
func (c *Conn) read() (m Message, err error) {
	defer func() {
		if err != nil {
			m.CloseFDs()
		}
	}()
	if err := c.readFull(c.head[:], &m); err != nil {
		return m, err
	}
	h := c.head[:]
	m.ID, m.Cmd = le.Uint16(h[0:]), Command(le.Uint16(h[2:]))
	size := le.Uint32(h[4:])
	m.Flags, m.Errno = le.Uint32(h[8:]), le.Uint32(h[12:])
	if size < HeaderSize || size > HeaderSize+maxBody {
		return m, fmt.Errorf("%w: %v of %d bytes", ErrProtocol, m.Cmd, size)
	}
	m.Body = make([]byte, size-HeaderSize)
	if err := c.readFull(m.Body, &m); err != nil {
		return m, err
	}
	if len(m.FDs) > maxFDs {
		return m, fmt.Errorf("%w: %v with %d file descriptors", ErrProtocol, m.Cmd, len(m.FDs))
	}
	return m, nil
}

// readFull fills p and adds the descriptors received with it to m.
func (c *Conn) readFull(p []byte, m *Message) error {
	for len(p) > 0 {
		n, oobn, err := c.sock.receive(p, c.oob[:])
		if oobn > 0 {
			if msgs, perr := syscall.ParseSocketControlMessage(c.oob[:oobn]); perr == nil {
				for i := range msgs {
					fds, _ := syscall.ParseUnixRights(&msgs[i])
					m.FDs = append(m.FDs, fds...)
				}
			}
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// receive waits for a message until the deadline, which is zero for none. It passes a reply to its caller, and returns
// a request. After an error but os.ErrDeadlineExceeded the connection is closed. The caller has c.reader.
func (c *Conn) receive(deadline time.Time) (m Message, request bool, err error) {
	if err = c.sock.wait(unix.POLLIN, deadline); err == nil {
		m, err = c.read()
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		return m, false, err
	}
	switch {
	case err != nil:
	case m.Flags&flagTypeMask == FlagReply:
		c.mu.Lock()
		w := c.waiting[m.ID]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		if w != nil {
			w <- m
			return Message{}, false, nil
		}
		m.CloseFDs()
		err = fmt.Errorf("%w: reply to %v %d, which was not sent", ErrProtocol, m.Cmd, m.ID)
	case m.Flags&flagTypeMask != 0:
		m.CloseFDs()
		err = fmt.Errorf("%w: message of type %d", ErrProtocol, m.Flags&flagTypeMask)
	default:
		return m, true, nil
	}
	if !errors.Is(err, ErrProtocol) {
		err = fmt.Errorf("%w: %v", ErrClosed, err)
	}
	c.Fail(err)
	return Message{}, false, c.reason()
}

// write sends one message. Descriptors go with its first byte.
func (c *Conn) write(m Message, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.wmu.Lock()
	b := le.AppendUint16(c.out[:0], m.ID)
	b = le.AppendUint16(b, uint16(m.Cmd))
	b = le.AppendUint32(b, uint32(HeaderSize+len(m.Body)))
	b = le.AppendUint32(b, m.Flags)
	b = le.AppendUint32(b, m.Errno)
	b = append(b, m.Body...)
	if cap(b) <= 1<<12 {
		c.out = b
	}
	err := c.sock.send(b, oob)
	c.wmu.Unlock()
	if err != nil {
		err = fmt.Errorf("%w: write: %v", ErrClosed, err)
		c.Fail(err)
	}
	return err
}

// Call sends a request and waits for its reply. The caller closes the reply's descriptors.
func (c *Conn) Call(cmd Command, body []byte, fds ...int) (Message, error) {
	w := make(chan Message, 1)
	c.calls.Add(1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return Message{}, c.err
	}
	for c.waiting[c.next] != nil {
		c.next++
	}
	id := c.next
	c.next++
	c.waiting[id] = w
	c.mu.Unlock()
	if err := c.write(Message{ID: id, Cmd: cmd, Body: body}, fds...); err != nil {
		return Message{}, err
	}
	m, err := c.reply(w, cmd, time.Now().Add(c.sock.timeout))
	switch {
	case err != nil:
	case m.Cmd != cmd:
		m.CloseFDs()
		err = fmt.Errorf("%w: reply to %v says %v", ErrProtocol, cmd, m.Cmd)
		c.Fail(err)
	case m.Flags&FlagError != 0:
		m.CloseFDs()
		err = fmt.Errorf("vfio-user: %v: %w", cmd, syscall.Errno(m.Errno))
	}
	return m, err
}

// reply returns the reply that another goroutine reads into w, or reads it.
func (c *Conn) reply(w chan Message, cmd Command, deadline time.Time) (m Message, err error) {
	ok := true
	select {
	case c.reader <- struct{}{}:
	default:
		late := time.NewTimer(time.Until(deadline))
		defer late.Stop()
		select {
		case m, ok = <-w:
			if !ok {
				err = c.reason()
			}
			return m, err
		case c.reader <- struct{}{}:
		case <-late.C:
			return m, c.overdue(cmd)
		}
	}
	defer func() { <-c.reader }()
	for {
		select {
		case m, ok = <-w:
			if !ok {
				err = c.reason()
			}
			return m, err
		default:
		}
		r, request, err := c.receive(deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return m, c.overdue(cmd)
		case err != nil:
			return m, err
		case !request:
		case c.request != nil:
			if err := c.request(r); err != nil {
				c.Fail(err)
			}
		case len(c.requests) < maxRequests:
			c.requests = append(c.requests, r)
		default:
			r.CloseFDs()
			c.Fail(fmt.Errorf("%w: %d requests in place of a reply", ErrProtocol, maxRequests))
		}
	}
}

func (c *Conn) overdue(cmd Command) error {
	c.Fail(fmt.Errorf("%w: no reply to %v in %v", ErrClosed, cmd, c.sock.timeout))
	return c.reason()
}

// Next waits for a request, and returns an error when the connection is closed. One goroutine at a time may call it.
func (c *Conn) Next() (Message, error) {
	c.reader <- struct{}{}
	defer func() { <-c.reader }()
	for {
		if err := c.reason(); err != nil {
			for _, m := range c.requests {
				m.CloseFDs()
			}
			c.requests = nil
			return Message{}, err
		}
		if len(c.requests) > 0 {
			m := c.requests[0]
			c.requests[0] = Message{}
			c.requests = c.requests[1:]
			return m, nil
		}
		if m, request, err := c.receive(time.Time{}); request || err != nil {
			return m, err
		}
	}
}

// Alert makes Run expect requests at any time.
func (c *Conn) Alert() { c.alert.Store(true) }

// Run passes requests to the function given to NewConn until the connection is closed. While there are calls, they do
// that.
func (c *Conn) Run() error {
	for calls := uint32(0); ; {
		for n := c.calls.Load(); n != calls && !c.alert.Load(); n = c.calls.Load() {
			calls = n
			select {
			case <-c.done:
			case <-time.After(rest):
			}
		}
		err := c.sock.wait(unix.POLLIN, time.Time{})
		if err == nil {
			c.reader <- struct{}{}
			var m Message
			var request bool
			if m, request, err = c.receive(time.Unix(1, 0)); request {
				err = c.request(m)
			}
			<-c.reader
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // in that case a Call has read the message
			c.Fail(err)
			return c.reason()
		}
	}
}

// Reply replies to m with body, or with err's errno.
func (c *Conn) Reply(m Message, body []byte, err error, fds ...int) error {
	if m.Flags&FlagNoReply != 0 {
		return nil
	}
	r := Message{ID: m.ID, Cmd: m.Cmd, Flags: FlagReply, Body: body}
	if err != nil {
		errno := syscall.EINVAL
		errors.As(err, &errno)
		r.Flags, r.Errno, r.Body, fds = FlagReply|FlagError, uint32(errno), nil, nil
	}
	return c.write(r, fds...)
}
