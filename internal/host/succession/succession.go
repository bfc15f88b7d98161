package succession

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// What the two say. Each message has its length in front.
const (
	request = "rebound take-over, version 1"
	ready   = "ready"
	afresh  = "afresh" // the same, and the device must be stopped
)

const (
	largest  = 1 << 20          // bytes of a message
	atOnce   = 1 << 15          // bytes that the socket's buffer holds
	mostFDs  = 253              // files of a message (SCM_MAX_FD of linux/net/scm.h)
	patience = 10 * time.Second // for each message but ready, for which the successor prepares everything
)

// Predecessor is the end of a connection that has the sockets of the responder before this one.
type Predecessor struct {
	conn  *net.UnixConn
	ended bool
	nic.Inheritance
}

// Find connects to the responder that has claimed name, and gets its sockets. It returns nil if there is none.
func Find(name string) (*Predecessor, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("the responder that runs: %w", err)
	}
	p := &Predecessor{conn: c}
	if p.Inheritance, err = receiveFiles(c); err != nil {
		c.Close()
		for _, fd := range p.Files {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("the responder that runs does not hand over its sockets (does it run with another user or driver?): %w", err)
	}
	p.Afresh = func() error {
		_, err := p.end(afresh)
		return err
	}
	return p, nil
}

func receiveFiles(c *net.UnixConn) (in nic.Inheritance, err error) {
	c.SetDeadline(time.Now().Add(patience))
	defer c.SetDeadline(time.Time{})
	if err := send(c, []byte(request)); err != nil {
		return in, err
	}
	b, oob := make([]byte, atOnce), make([]byte, unix.CmsgSpace(4*mostFDs))
	n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil {
		return in, err
	}
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return in, err
	}
	for _, m := range controls {
		files, err := unix.ParseUnixRights(&m)
		if err != nil {
			return in, err
		}
		in.Files = append(in.Files, files...)
	}
	for _, fd := range in.Files {
		unix.CloseOnExec(fd)
	}
	if n < 4 || binary.BigEndian.Uint32(b) > largest {
		return in, fmt.Errorf("a message of %d bytes without a valid length in front", n)
	}
	in.State = make([]byte, binary.BigEndian.Uint32(b))
	have := copy(in.State, b[4:n])
	_, err = io.ReadFull(c, in.State[have:])
	return in, err
}

// Take has the predecessor stop, and returns where it stopped.
func (p *Predecessor) Take() (position []byte, err error) { return p.end(ready) }

// Ended reports whether the predecessor has stopped already, by Take or Afresh.
func (p *Predecessor) Ended() bool { return p.ended }

func (p *Predecessor) end(how string) (position []byte, err error) {
	defer p.conn.Close()
	p.ended = true
	p.conn.SetDeadline(time.Now().Add(patience))
	if err := send(p.conn, []byte(how)); err != nil {
		return nil, fmt.Errorf("the responder that ran: %w", err)
	}
	if position, err = receive(p.conn); err != nil {
		return nil, fmt.Errorf("the responder that ran did not say where it stopped: %w", err)
	}
	return position, nil
}

// Close leaves the predecessor as it is, which then continues.
func (p *Predecessor) Close() { p.conn.Close() }

// Claim reserves a name, by a listening socket, until the process and its successors have ended.
func Claim(name string) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Offer hands the sockets of this process to a successor.
type Offer struct {
	listeners []net.Listener
	port      nic.Heritable
	user      int
	log       *slog.Logger
	stop      func() // ends the loops

	mu     sync.Mutex
	heir   *net.UnixConn
	afresh bool // it wants the device stopped
}

// Listen offers port's sockets to a process of root or of user, on the listening sockets claims. stop is called when a successor is
// ready.
func Listen(claims []int, port nic.Heritable, user int, stop func(), log *slog.Logger) (*Offer, error) {
	o := &Offer{port: port, user: user, stop: stop, log: log}
	for _, fd := range claims {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, errors.Join(err, o.Close())
		}
		f := os.NewFile(uintptr(dup), "claim")
		l, err := net.FileListener(f)
		f.Close()
		if err != nil {
			return nil, errors.Join(err, o.Close())
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		o.listeners = append(o.listeners, l)
		go o.accept(l)
	}
	return o, nil
}

// Close ends the offer.
func (o *Offer) Close() error {
	for _, l := range o.listeners {
		l.Close()
	}
	return nil
}

func (o *Offer) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			time.Sleep(patience / 10) // no descriptors left
			continue
		}
		go func() {
			if err := o.serve(c.(*net.UnixConn)); err != nil {
				o.log.Debug("no successor", "error", err)
				c.Close()
			}
		}()
	}
}

// serve hands the sockets over. Only one successor gets as far as ready.
func (o *Offer) serve(c *net.UnixConn) error {
	c.SetDeadline(time.Now().Add(patience))
	if b, err := receive(c); err != nil || string(b) != request {
		return fmt.Errorf("no request: %w", err) // a client that only checks who has the claim
	}
	peer, err := userOf(c)
	if err != nil {
		return err
	}
	if peer != 0 && peer != o.user {
		return fmt.Errorf("user %d may not take over from user %d", peer, o.user)
	}
	in, err := o.port.Bequest()
	if err != nil {
		return err
	}
	message := framed(in.State)
	n, _, err := c.WriteMsgUnix(message[:min(len(message), atOnce)], unix.UnixRights(in.Files...), nil)
	if err == nil {
		_, err = c.Write(message[n:])
	}
	if err != nil {
		return err
	}
	c.SetDeadline(time.Time{})
	b, err := receive(c)
	if _, can := o.port.(nic.Yielder); err != nil || string(b) != ready && (string(b) != afresh || !can) {
		return fmt.Errorf("the successor gave up: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.heir != nil {
		return errors.New("there is another successor")
	}
	o.heir, o.afresh = c, string(b) == afresh
	o.Close()
	o.stop()
	return nil
}

// Finish tells the successor, if there is one, where the loops stopped. Call it once they have.
func (o *Offer) Finish() error {
	o.mu.Lock()
	c := o.heir
	o.mu.Unlock()
	if c == nil {
		return nil
	}
	defer c.Close()
	var position []byte
	var err error
	if o.afresh {
		err = o.port.(nic.Yielder).Yield()
	} else {
		position, err = o.port.Position()
	}
	if err == nil {
		c.SetDeadline(time.Now().Add(patience))
		err = send(c, position)
	}
	if err != nil {
		return fmt.Errorf("the successor does not know where to continue: %w", err)
	}
	o.log.Info("another responder took over")
	return nil
}

// userOf is the user of the process at the other end, as it was when that connected.
func userOf(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	if failed := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); failed != nil {
		return 0, failed
	}
	if err != nil {
		return 0, err
	}
	return int(peer.Uid), nil
}

func framed(b []byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }

func send(c *net.UnixConn, b []byte) error {
	_, err := c.Write(framed(b))
	return err
}

func receive(c *net.UnixConn) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(n[:]) > largest {
		return nil, fmt.Errorf("a message of %d bytes, want at most %d", binary.BigEndian.Uint32(n[:]), largest)
	}
	b := make([]byte, binary.BigEndian.Uint32(n[:]))
	_, err := io.ReadFull(c, b)
	return b, err
}
