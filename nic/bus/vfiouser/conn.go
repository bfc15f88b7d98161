package vfiouser

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

// message is one message with the file descriptors that came with it.
type message struct {
	id    uint16
	cmd   command
	flags uint32
	errno uint32
	body  []byte
	fds   []int
}

func (m *message) closeFDs() {
	for _, fd := range m.fds {
		unix.Close(fd)
	}
	m.fds = nil
}

// takeFD hands over the message's n-th descriptor; closeFDs no longer closes it.
func (m *message) takeFD(n int) int {
	fd := m.fds[n]
	m.fds = append(m.fds[:n:n], m.fds[n+1:]...)
	return fd
}

// conn is one connection. Its reader hands replies to whoever waits for them and requests to serve.
type conn struct {
	sock *net.UnixConn
	wmu  sync.Mutex

	mu      sync.Mutex
	next    uint16
	waiting map[uint16]chan message
	err     error // why the connection ended
}

func newConn(sock *net.UnixConn) *conn { return &conn{sock: sock, waiting: map[uint16]chan message{}} }

// fail ends the connection: whoever waits for a reply gets the error.
func (c *conn) fail(err error) {
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

// read reads one message: the header, then exactly the body. To read ahead would attach a descriptor to the wrong message.
func (c *conn) read() (message, error) {
	var m message
	var h [headerSize]byte
	c.sock.SetReadDeadline(time.Time{})
	err := c.readFull(h[:], &m)
	if err != nil {
		m.closeFDs()
		return m, err
	}
	m.id, m.cmd = le.Uint16(h[0:]), command(le.Uint16(h[2:]))
	size := le.Uint32(h[4:])
	m.flags, m.errno = le.Uint32(h[8:]), le.Uint32(h[12:])
	if size < headerSize || size > headerSize+maxBody {
		m.closeFDs()
		return m, fmt.Errorf("%w: %v of %d bytes", ErrProtocol, m.cmd, size)
	}
	m.body = make([]byte, size-headerSize)
	c.sock.SetReadDeadline(time.Now().Add(timeout))
	if err = c.readFull(m.body, &m); err == nil && len(m.fds) > maxFDs {
		err = fmt.Errorf("%w: %v with %d file descriptors", ErrProtocol, m.cmd, len(m.fds))
	}
	if err != nil {
		m.closeFDs()
	}
	return m, err
}

// readFull fills p and adds descriptors that come with it to m.
func (c *conn) readFull(p []byte, m *message) error {
	oob := make([]byte, unix.CmsgSpace(4*253)) // the most that the kernel passes at once
	for len(p) > 0 {
		n, oobn, _, _, err := c.sock.ReadMsgUnix(p, oob)
		if oobn > 0 {
			if msgs, perr := syscall.ParseSocketControlMessage(oob[:oobn]); perr == nil {
				for i := range msgs {
					fds, _ := syscall.ParseUnixRights(&msgs[i])
					m.fds = append(m.fds, fds...)
				}
			}
		}
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			return err
		}
		// A read deadline begins with a message, not before: waiting for one may take for ever.
		c.sock.SetReadDeadline(time.Now().Add(timeout))
		p = p[n:]
	}
	return nil
}

// write sends one message. Descriptors go with its first byte.
func (c *conn) write(m message, fds ...int) error {
	b := make([]byte, headerSize, headerSize+len(m.body))
	le.PutUint16(b[0:], m.id)
	le.PutUint16(b[2:], uint16(m.cmd))
	le.PutUint32(b[4:], uint32(headerSize+len(m.body)))
	le.PutUint32(b[8:], m.flags)
	le.PutUint32(b[12:], m.errno)
	b = append(b, m.body...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.sock.SetWriteDeadline(time.Now().Add(timeout))
	n, _, err := c.sock.WriteMsgUnix(b, oob, nil)
	if err == nil && n < len(b) {
		_, err = c.sock.Write(b[n:])
	}
	if err != nil {
		err = fmt.Errorf("%w: write: %v", ErrClosed, err)
		c.fail(err)
	}
	return err
}

// call sends a request and waits for its reply. The caller closes the reply's descriptors.
func (c *conn) call(cmd command, body []byte, fds ...int) (message, error) {
	w := make(chan message, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return message{}, c.err
	}
	for c.waiting[c.next] != nil {
		c.next++
	}
	id := c.next
	c.next++
	c.waiting[id] = w
	c.mu.Unlock()
	if err := c.write(message{id: id, cmd: cmd, body: body}, fds...); err != nil {
		return message{}, err
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case m, ok := <-w:
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return m, c.err
		case m.cmd != cmd:
			m.closeFDs()
			err := fmt.Errorf("%w: reply to %v says %v", ErrProtocol, cmd, m.cmd)
			c.fail(err)
			return m, err
		case m.flags&flagError != 0:
			m.closeFDs()
			return m, fmt.Errorf("vfio-user: %v: %w", cmd, syscall.Errno(m.errno))
		}
		return m, nil
	case <-t.C:
		err := fmt.Errorf("%w: no reply to %v in %v", ErrClosed, cmd, timeout)
		c.fail(err)
		return message{}, err
	}
}

// run reads until the connection ends, and calls request for each request. request must not wait for the other side.
func (c *conn) run(request func(message) error) error {
	for {
		m, err := c.read()
		switch {
		case err != nil:
		case m.flags&flagTypeMask == flagReply:
			c.mu.Lock()
			w := c.waiting[m.id]
			delete(c.waiting, m.id)
			c.mu.Unlock()
			if w == nil {
				m.closeFDs()
				err = fmt.Errorf("%w: reply to %v %d, which nobody sent", ErrProtocol, m.cmd, m.id)
				break
			}
			w <- m
		case m.flags&flagTypeMask != 0:
			m.closeFDs()
			err = fmt.Errorf("%w: message of type %d", ErrProtocol, m.flags&flagTypeMask)
		default:
			err = request(m)
		}
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				err = fmt.Errorf("%w: %v", ErrClosed, err)
			}
			c.fail(err)
			return err
		}
	}
}

// reply answers m with body, or with err's errno.
func (c *conn) reply(m message, body []byte, err error, fds ...int) error {
	if m.flags&flagNoReply != 0 {
		return nil
	}
	r := message{id: m.id, cmd: m.cmd, flags: flagReply, body: body}
	if err != nil {
		errno := syscall.EINVAL
		errors.As(err, &errno)
		r.flags, r.errno, r.body, fds = flagReply|flagError, uint32(errno), nil, nil
	}
	return c.write(r, fds...)
}
