package proto

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a stream socket whose users wait in poll(2). close wakes them: it does not shut the socket down, because
// another process may have inherited it.
type socket struct {
	users  sync.RWMutex // held for reading by users, for writing by close
	fd     int          // non-blocking, -1 when closed
	closed int          // an eventfd that is readable when the socket is closed
	// timeout is Timeout, less in tests.
	timeout time.Duration
}

// open takes ownership of s.
func (s *socket) open(c *net.UnixConn) error {
	defer c.Close()
	s.fd, s.timeout = -1, Timeout
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	if s.closed, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	cerr := raw.Control(func(fd uintptr) { s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3) })
	if err = errors.Join(cerr, os.NewSyscallError("fcntl", err)); err != nil {
		unix.Close(s.closed)
	}
	return err
}

// close returns when the socket has no users. None of them may call it.
func (s *socket) close() {
	unix.Write(s.closed, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	s.users.Lock()
	defer s.users.Unlock()
	unix.Close(s.fd)
	unix.Close(s.closed)
	s.fd = -1
}

// wait waits until the socket can be read or written (events), at most until the deadline unless it is zero.
func (s *socket) wait(events int16, deadline time.Time) error {
	s.users.RLock()
	defer s.users.RUnlock()
	return s.ready(events, deadline)
}

// ready is wait for a user.
func (s *socket) ready(events int16, deadline time.Time) error {
	for {
		if s.fd < 0 {
			return net.ErrClosed
		}
		ms := -1
		if !deadline.IsZero() {
			ms = int(max(0, time.Until(deadline)+time.Millisecond-1) / time.Millisecond)
		}
		fds := [2]unix.PollFd{{Fd: int32(s.fd), Events: events}, {Fd: int32(s.closed), Events: unix.POLLIN}}
		n, err := unix.Poll(fds[:], ms)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			return net.ErrClosed
		case n > 0:
			return nil
		default:
			return os.ErrDeadlineExceeded
		}
	}
}

// receive reads some data, with its control data. It waits for data at most for timeout.
func (s *socket) receive(p, oob []byte) (n, oobn int, err error) {
	s.users.RLock()
	defer s.users.RUnlock()
	for err == nil {
		if s.fd < 0 {
			return 0, 0, net.ErrClosed
		}
		n, oobn, _, _, err = unix.Recvmsg(s.fd, p, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			err = nil
		case err == unix.EAGAIN:
			err = s.ready(unix.POLLIN, time.Now().Add(s.timeout))
		case err != nil:
			err = os.NewSyscallError("recvmsg", err)
		case n == 0:
			return 0, oobn, io.EOF
		default:
			return n, oobn, nil
		}
	}
	return 0, 0, err
}

// send writes all of p, and control data with its first byte, within timeout.
func (s *socket) send(p, oob []byte) error {
	s.users.RLock()
	defer s.users.RUnlock()
	var deadline time.Time
	for len(p) > 0 {
		if s.fd < 0 {
			return net.ErrClosed
		}
		n, err := unix.SendmsgN(s.fd, p, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			if deadline.IsZero() {
				deadline = time.Now().Add(s.timeout)
			}
			if err := s.ready(unix.POLLOUT, deadline); err != nil {
				return err
			}
		case err != nil:
			return os.NewSyscallError("sendmsg", err)
		default:
			p, oob = p[n:], nil
		}
	}
	return nil
}
