package proto

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// sockets returns the ends of a connection.
func sockets(t testing.TB) (ends [2]*net.UnixConn) {
	t.Helper()
	for i, fd := range must.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t) {
		ends[i] = unixConn(t, fd)
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends
}

func unixConn(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "pair")
	defer f.Close()
	return must.Get(net.FileConn(f))(t).(*net.UnixConn)
}

func newConn(t testing.TB, sock *net.UnixConn, request func(Message) error) *Conn {
	t.Helper()
	c := must.Get(NewConn(sock, request))(t)
	t.Cleanup(func() { c.Fail(ErrClosed) })
	return c
}

func raw(id uint16, cmd Command, flags uint32, body ...any) []byte {
	b := Encode(body...)
	return Encode(id, uint16(cmd), uint32(HeaderSize+len(b)), flags, uint32(0), b)
}

// Both sides call at the same time, from several goroutines: each caller receives its own reply, even if another
// goroutine read it. The side that keeps requests for Next answers them from another goroutine.
func TestCallsOfBothSides(t *testing.T) {
	s := sockets(t)
	var a *Conn
	a = newConn(t, s[0], func(m Message) error { return a.Reply(m, m.Body, nil) })
	b := newConn(t, s[1], nil)
	var readers, callers sync.WaitGroup
	readers.Go(func() { check.Fails(t, "Run", a.Run(), ErrClosed) })
	readers.Go(func() {
		for {
			m, err := b.Next()
			if err != nil {
				check.Fails(t, "Next", err, ErrClosed)
				return
			}
			b.Reply(m, m.Body, nil)
		}
	})
	for i := range 8 {
		c := [...]*Conn{a, b}[i%2]
		callers.Go(func() {
			for k := range 200 {
				want := Encode(uint64(i), uint64(k))
				m, err := c.Call(CmdDMARead, want)
				if err != nil || string(m.Body) != string(want) {
					t.Errorf("reply to %x is %x: %v", want, m.Body, err)
					return
				}
			}
		})
	}
	callers.Wait()
	a.Fail(ErrClosed)
	readers.Wait()
}

// A Call keeps the requests that it reads for Next, in their order.
func TestRequestsBeforeAReply(t *testing.T) {
	s := sockets(t)
	c := newConn(t, s[0], nil)
	must.Get(s[1].Write(append(raw(7, CmdReset, 0), append(raw(8, CmdGetInfo, 0),
		raw(0, CmdDMARead, FlagReply, uint32(5))...)...)))(t)
	m := must.Get(c.Call(CmdDMARead, nil))(t)
	check.Equal(t, le.Uint32(m.Body), 5, "the reply has %d")
	must.Get(s[1].Write(raw(9, CmdReset, 0)))(t)
	for id := uint16(7); id <= 9; id++ {
		check.Equal(t, must.Get(c.Next())(t).ID, id, "request %d")
	}
}

// A request that comes after a Call, while no other is made, is answered.
func TestRequestWithoutCalls(t *testing.T) {
	for _, alert := range []bool{false, true} {
		s := sockets(t)
		var c *Conn
		c = newConn(t, s[0], func(m Message) error { return c.Reply(m, nil, nil) })
		if alert {
			c.Alert()
		}
		go c.Run()
		called := make(chan error)
		go func() { called <- check.Err(c.Call(CmdGetInfo, nil)) }()
		var got [HeaderSize]byte
		must.Get(io.ReadFull(s[1], got[:]))(t)
		must.Get(s[1].Write(raw(0, CmdGetInfo, FlagReply)))(t)
		must.OK(t, <-called)
		must.Get(s[1].Write(raw(3, CmdDMARead, 0)))(t)
		must.Get(io.ReadFull(s[1], got[:]))(t)
		check.Equal(t, le.Uint16(got[:]), 3, "reply to %d")
	}
}

// A message that is longer than the socket's buffer arrives whole, with its descriptor once.
func TestLongMessage(t *testing.T) {
	s := sockets(t)
	a, b := newConn(t, s[0], nil), newConn(t, s[1], nil)
	body := bytes.Repeat([]byte("0123456789abcde"), MaxTransfer/15)
	go a.Call(CmdDMAWrite, body, a.sock.fd)
	m := must.Get(b.Next())(t)
	defer m.CloseFDs()
	check.Equal(t, bytes.Equal(m.Body, body), true, "the body is the same: %v")
	check.Equal(t, len(m.FDs), 1, "%d descriptors")
}

// Whatever ends a connection ends every wait on it, and later uses fail.
func TestWaitsEnd(t *testing.T) {
	big := make([]byte, MaxTransfer) // more than the socket takes
	call := func(c *Conn) error { return check.Err(c.Call(CmdReset, nil)) }
	next := func(c *Conn) error { return check.Err(c.Next()) }
	waits := map[string]func(*Conn) error{"Call": call, "Next": next, "Run": (*Conn).Run,
		"write": func(c *Conn) error { return check.Err(c.Call(CmdReset, big)) }}
	for name, end := range map[string]func(c *Conn, far *net.UnixConn){
		"Fail":     func(c *Conn, _ *net.UnixConn) { c.Fail(errors.New("over")) },
		"hang-up":  func(_ *Conn, far *net.UnixConn) { far.Close() },
		"shutdown": func(_ *Conn, far *net.UnixConn) { far.CloseWrite(); far.CloseRead() },
	} {
		for what, wait := range waits {
			s := sockets(t)
			c := newConn(t, s[0], nil)
			ended := make(chan error, 2)
			go func() { ended <- wait(c) }()
			if what != "Run" { // and one that waits for the first one to read, or beside it
				go func() { ended <- call(c) }()
			} else {
				ended <- ErrClosed
			}
			end(c, s[1])
			for range 2 {
				check.Fails(t, what+" after "+name, <-ended, ErrClosed)
			}
			for _, again := range []func(*Conn) error{call, next, (*Conn).Run} {
				check.Fails(t, "a use of a closed connection", again(c), ErrClosed)
			}
			check.Equal(t, c.sock.fd, -1, what+" after "+name+": the socket is %d")
		}
	}
}

// A peer that does not reply, stops in the middle of a message, or reads nothing is given up after the timeout.
func TestTimeouts(t *testing.T) {
	call := func(c *Conn) error { return check.Err(c.Call(CmdReset, nil)) }
	for _, r := range []struct {
		name string
		sent []byte
		do   func(c *Conn) error
		says string
	}{
		{"no reply", nil, call, "no reply to DEVICE_RESET in"},
		{"no reply, another goroutine reads", nil, func(c *Conn) error {
			go c.Next()
			await.Holds(func() bool { return len(c.reader) == 1 })
			return call(c)
		}, "no reply to DEVICE_RESET in"},
		{"half a header", raw(1, CmdReset, 0)[:7], call, os.ErrDeadlineExceeded.Error()},
		{"half a body", raw(1, CmdReset, 0, uint64(1))[:20], func(c *Conn) error { return check.Err(c.Next()) }, os.ErrDeadlineExceeded.Error()},
		{"the peer reads nothing", nil, func(c *Conn) error { return check.Err(c.Call(CmdReset, make([]byte, MaxTransfer))) }, "write: " + os.ErrDeadlineExceeded.Error()},
	} {
		t.Run(r.name, func(t *testing.T) {
			s := sockets(t)
			c := newConn(t, s[0], nil)
			c.sock.timeout = 20 * time.Millisecond
			must.Get(s[1].Write(r.sent))(t)
			check.Fails(t, r.name, r.do(c), ErrClosed, r.says)
		})
	}
}

// Replies that break the protocol end the call and the connection, and their descriptors are closed.
func TestRepliesThatBreakTheProtocol(t *testing.T) {
	for name, message := range map[string][]byte{
		"another request's":   raw(4, CmdReset, FlagReply),
		"another command's":   raw(0, CmdGetInfo, FlagReply),
		"no known type":       raw(0, CmdReset, 5),
		"shorter than itself": Encode(uint16(0), uint16(CmdReset), uint32(HeaderSize-1), uint32(FlagReply), uint32(0)),
		"too long": Encode(uint16(0), uint16(CmdReset), uint32(HeaderSize+maxBody+1), uint32(FlagReply),
			uint32(0)),
	} {
		s := sockets(t)
		c := newConn(t, s[0], nil)
		r, w := pipe(t)
		must.Get(s[1].SyscallConn())(t).Control(func(fd uintptr) {
			must.OK(t, unix.Sendmsg(int(fd), message, unix.UnixRights(w), nil, 0))
		})
		unix.Close(w)
		check.Fails(t, name, check.Err(c.Call(CmdReset, nil)), ErrProtocol)
		if n, err := unix.Read(r, make([]byte, 1)); n != 0 || err != nil {
			t.Errorf("%s: the descriptor in the reply is open: %d, %v", name, n, err)
		}
		check.Fails(t, name+", then", check.Err(c.Call(CmdReset, nil)), ErrClosed)
	}
	// An error is a reply like another.
	s := sockets(t)
	c := newConn(t, s[0], nil)
	must.Get(s[1].Write(Encode(uint16(0), uint16(CmdReset), uint32(HeaderSize), uint32(FlagReply|FlagError),
		uint32(syscall.ENOSPC))))(t)
	check.Fails(t, "an error", check.Err(c.Call(CmdReset, nil)), syscall.ENOSPC)
	must.Get(s[1].Write(raw(1, CmdReset, FlagReply)))(t)
	check.OK(t, check.Err(c.Call(CmdReset, nil)))
}

// pipe returns a pipe whose reading end does not block.
func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	must.OK(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	t.Cleanup(func() { unix.Close(p[0]) })
	return p[0], p[1]
}

// A Call keeps a limited number of requests.
func TestRequestsInPlaceOfAReply(t *testing.T) {
	s := sockets(t)
	c := newConn(t, s[0], nil)
	c.requests = make([]Message, maxRequests)
	must.Get(s[1].Write(raw(9, CmdReset, 0)))(t)
	check.Fails(t, "one more request", check.Err(c.Call(CmdReset, nil)), ErrProtocol, fmt.Sprint(maxRequests))
}
