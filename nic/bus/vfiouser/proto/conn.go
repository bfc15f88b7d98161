package proto

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
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

// Conn is one connection. Its reader passes replies to the waiting callers and requests to the function given to Run.
type Conn struct {
	sock *net.UnixConn
	wmu  sync.Mutex

	mu      sync.Mutex
	next    uint16
	waiting map[uint16]chan Message
	err     error // why the connection was closed
}

// NewConn takes ownership of sock. It reads nothing before Run.
func NewConn(sock *net.UnixConn) *Conn { return &Conn{sock: sock, waiting: map[uint16]chan Message{}} }

// FD returns the connection's file descriptor, which remains the connection's.
func (c *Conn) FD() (fd int, err error) {
	raw, err := c.sock.SyscallConn()
	if err == nil {
		err = raw.Control(func(f uintptr) { fd = int(f) })
	}
	return fd, err
}

// Fail closes the connection. Callers that wait for a reply get the error.
func (c *Conn) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if c.err == nil {
		c.err = err
	}
	c.sock.Close()
	for id, w := range c.waiting {
		close(w)
		delete(c.waiting, id)
	}
}

// read reads one message: the header, then exactly the body. Reading ahead would attach a descriptor to the wrong message.
func (c *Conn) read() (Message, error) {
	var m Message
	var h [HeaderSize]byte
	c.sock.SetReadDeadline(time.Time{})
	err := c.readFull(h[:], &m)
	if err != nil {
		m.CloseFDs()
		return m, err
	}
	m.ID, m.Cmd = le.Uint16(h[0:]), Command(le.Uint16(h[2:]))
	size := le.Uint32(h[4:])
	m.Flags, m.Errno = le.Uint32(h[8:]), le.Uint32(h[12:])
	if size < HeaderSize || size > HeaderSize+maxBody {
		m.CloseFDs()
		return m, fmt.Errorf("%w: %v of %d bytes", ErrProtocol, m.Cmd, size)
	}
	m.Body = make([]byte, size-HeaderSize)
	c.sock.SetReadDeadline(time.Now().Add(Timeout))
	if err = c.readFull(m.Body, &m); err == nil && len(m.FDs) > maxFDs {
		err = fmt.Errorf("%w: %v with %d file descriptors", ErrProtocol, m.Cmd, len(m.FDs))
	}
	if err != nil {
		m.CloseFDs()
	}
	return m, err
}

// readFull fills p and adds the descriptors received with it to m.
func (c *Conn) readFull(p []byte, m *Message) error {
	oob := make([]byte, unix.CmsgSpace(4*253)) // the most that the kernel passes at once
	for len(p) > 0 {
		n, oobn, _, _, err := c.sock.ReadMsgUnix(p, oob)
		if oobn > 0 {
			if msgs, perr := syscall.ParseSocketControlMessage(oob[:oobn]); perr == nil {
				for i := range msgs {
					fds, _ := syscall.ParseUnixRights(&msgs[i])
					m.FDs = append(m.FDs, fds...)
				}
			}
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return err
		}
		// The read deadline starts with the message: waiting for one has no limit.
		c.sock.SetReadDeadline(time.Now().Add(Timeout))
		p = p[n:]
	}
	return nil
}

// write sends one message. Descriptors go with its first byte.
func (c *Conn) write(m Message, fds ...int) error {
	b := make([]byte, HeaderSize, HeaderSize+len(m.Body))
	le.PutUint16(b[0:], m.ID)
	le.PutUint16(b[2:], uint16(m.Cmd))
	le.PutUint32(b[4:], uint32(HeaderSize+len(m.Body)))
	le.PutUint32(b[8:], m.Flags)
	le.PutUint32(b[12:], m.Errno)
	b = append(b, m.Body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.sock.SetWriteDeadline(time.Now().Add(Timeout))
	n, _, err := c.sock.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.sock.Write(b[n:])
	}
	if err != nil {
		err = fmt.Errorf("%w: write: %v", ErrClosed, err)
		c.Fail(err)
	}
	return err
}

// Call sends a request and waits for its reply. The caller closes the reply's descriptors.
func (c *Conn) Call(cmd Command, body []byte, fds ...int) (Message, error) {
	w := make(chan Message, 1)
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
	t := time.NewTimer(Timeout)
	defer t.Stop()
	select {
	case m, ok := <-w:
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return m, c.err
		case m.Cmd != cmd:
			m.CloseFDs()
			err := fmt.Errorf("%w: reply to %v says %v", ErrProtocol, cmd, m.Cmd)
			c.Fail(err)
			return m, err
		case m.Flags&FlagError != 0:
			m.CloseFDs()
			return m, fmt.Errorf("vfio-user: %v: %w", cmd, syscall.Errno(m.Errno))
		}
		return m, nil
	case <-t.C:
		err := fmt.Errorf("%w: no reply to %v in %v", ErrClosed, cmd, Timeout)
		c.Fail(err)
		return Message{}, err
	}
}

// Run reads until the connection is closed, and calls request for each request. request must not wait for the other side.
func (c *Conn) Run(request func(Message) error) error {
	for {
		m, err := c.read()
		switch {
		case err != nil:
		case m.Flags&flagTypeMask == FlagReply:
			c.mu.Lock()
			w := c.waiting[m.ID]
			delete(c.waiting, m.ID)
			c.mu.Unlock()
			if w == nil {
				m.CloseFDs()
				err = fmt.Errorf("%w: reply to %v %d, which was not sent", ErrProtocol, m.Cmd, m.ID)
				break
			}
			w <- m
		case m.Flags&flagTypeMask != 0:
			m.CloseFDs()
			err = fmt.Errorf("%w: message of type %d", ErrProtocol, m.Flags&flagTypeMask)
		default:
			err = request(m)
		}
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				err = fmt.Errorf("%w: %v", ErrClosed, err)
			}
			c.Fail(err)
			return err
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
