package handover

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
)

// DefaultPort is the port of the first service, as in ibv_ud_pingpong and perftest.
const DefaultPort = 18515

const (
	// clients at a time, of all services: a new one displaces one that has not given its address yet
	maxConns   = 32
	firstWait  = 5 * time.Second  // for each message of the hand-over
	wholeTest  = 10 * time.Minute // perftest stays connected through its test, and shakes hands at its end
	ourVersion = "6.20"           // below 6.28, with which perftest compares all settings of both ends
	oldest     = 5.70             // of perftest's client, as perftest's server has it
)

// Book is the part of a port that a server uses.
type Book interface {
	Endpoints() []nic.Endpoint
	Prewarm(gid netip.Addr) error
}

// Server hands over the addresses of a port's queue pairs.
type Server struct {
	book      Book
	log       *slog.Logger
	listeners []net.Listener
	services  []nic.Service
	next      atomic.Uint32 // counts clients, to spread them over queues
	all       sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]time.Time // when it was accepted, zero once it has given its address
	closed bool
}

// ParseAddress parses HOST:PORT, where HOST is one address of this machine. The ports of all services must exist; port
// 0 selects free ports.
func ParseAddress(text string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q is not ADDRESS:PORT, such as \"10.0.0.2:%d\"", text, DefaultPort)
	case a.Addr().IsUnspecified() || a.Addr().IsMulticast():
		return a, fmt.Errorf("%v is not the address of one host: use the address that clients connect to", a.Addr())
	case int(a.Port())+nic.Services-1 > 0xFFFF:
		return a, fmt.Errorf("port %d: the last of %d services would be at %d", a.Port(), nic.Services,
			int(a.Port())+nic.Services-1)
	}
	return a, nil
}

// Listen serves the hand-over at a. Each service of book has its own port, in order, starting with a's.
func Listen(a netip.AddrPort, book Book, log *slog.Logger) (*Server, error) {
	s := &Server{book: book, log: log, conns: map[net.Conn]time.Time{}}
	for service := range nic.Service(nic.Services) {
		if !slices.ContainsFunc(book.Endpoints(), func(e nic.Endpoint) bool { return e.Service == service }) {
			continue
		}
		at := a
		if a.Port() != 0 {
			at = netip.AddrPortFrom(a.Addr(), a.Port()+uint16(service))
		}
		l, err := net.Listen("tcp", at.String())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("hand-over of %v: %w", service, err), s.Close())
		}
		s.listeners, s.services = append(s.listeners, l), append(s.services, service)
		s.all.Go(func() { s.accept(l, service) })
	}
	return s, nil
}

// String lists the services with their addresses: "ud@10.0.0.2:18515,srd@10.0.0.2:18516".
func (s *Server) String() string {
	var all []string
	for i, l := range s.listeners {
		all = append(all, s.services[i].String()+"@"+l.Addr().String())
	}
	return strings.Join(all, ",")
}

// Close ends all connections, and returns when the server has stopped.
func (s *Server) Close() (err error) {
	for _, l := range s.listeners {
		err = errors.Join(err, l.Close())
	}
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.all.Wait()
	return err
}

// accept serves the connections of one listener until it is closed, each in a goroutine. It rejects those above
// maxConns.
func (s *Server) accept(l net.Listener, service nic.Service) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // out of descriptors, say
			s.log.Warn("hand-over", "service", service, "err", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if !s.admit(c) {
			s.log.Warn("hand-over: client rejected", "client", c.RemoteAddr(), "why", "too many clients at a time",
				"most", maxConns)
			c.Close()
			continue
		}
		s.all.Go(func() {
			defer s.drop(c)
			if err := s.serve(c, service); err != nil && !errors.Is(err, net.ErrClosed) {
				s.log.Warn("hand-over failed", "service", service, "client", c.RemoteAddr(), "err", err)
			}
		})
	}
}

// admit records a connection for Close, and reports whether there is room for it. If not, it drops the oldest
// connection that has not sent its address yet.
func (s *Server) admit(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if len(s.conns) >= maxConns {
		var oldest net.Conn
		for o, since := range s.conns {
			if !since.IsZero() && (oldest == nil || since.Before(s.conns[oldest])) {
				oldest = o
			}
		}
		if oldest == nil {
			return false
		}
		delete(s.conns, oldest)
		oldest.Close()
	}
	s.conns[c] = time.Now()
	return true
}

// greet registers a client's address with the port. From then on the connection is not displaced.
func (s *Server) greet(c net.Conn, gid netip.Addr) error {
	s.mu.Lock()
	if _, ok := s.conns[c]; ok {
		s.conns[c] = time.Time{}
	}
	s.mu.Unlock()
	return s.book.Prewarm(gid)
}

func (s *Server) drop(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	c.Close()
}

// serve speaks with one client.
func (s *Server) serve(c net.Conn, service nic.Service) error {
	own, err := s.endpoint(service)
	if err != nil {
		return err
	}
	first := make([]byte, 5)
	if err := read(c, first, firstWait); err != nil {
		return err
	}
	if first[4] == ':' {
		return s.pingpong(c, first, own)
	}
	return s.perftest(c, first, own)
}

// endpoint chooses the queue pair for a client, round-robin.
func (s *Server) endpoint(service nic.Service) (nic.Endpoint, error) {
	var all []nic.Endpoint
	for _, e := range s.book.Endpoints() {
		if e.Service == service {
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		return nic.Endpoint{}, fmt.Errorf("no queue pair of %v", service)
	}
	return all[int(s.next.Add(1)-1)%len(all)], nil
}

// pingpong serves ibv_ud_pingpong: an address each, and "done".
func (s *Server) pingpong(c net.Conn, first []byte, own nic.Endpoint) error {
	b := make([]byte, pingpongSize)
	copy(b, first)
	if err := read(c, b[len(first):], firstWait); err != nil {
		return err
	}
	peer, err := parsePingpong(b)
	if err != nil {
		return fmt.Errorf("address of ibv_ud_pingpong: %w", err)
	}
	if err := s.greet(c, peer.gid); err != nil {
		return err
	}
	if err := write(c, appendPingpong(nil, dest{qpn: uint64(own.QPN), gid: own.GID})); err != nil {
		return err
	}
	done := make([]byte, doneSize)
	if err := read(c, done, firstWait); err != nil {
		return err
	}
	if string(done) != "done\x00" {
		return fmt.Errorf("received %q, expected \"done\" from ibv_ud_pingpong", done)
	}
	s.handed(c, "ibv_ud_pingpong or bench", peer, own)
	return nil
}

// perftest serves ib_send_lat. Of the values before the keys, the version is ours; page size, cache line and MTU repeat
// the client's, so that they agree. Keys are exchanged several times, as a handshake before, between and after its
// tests.
func (s *Server) perftest(c net.Conn, first []byte, own nic.Endpoint) error {
	b := make([]byte, versionSize)
	copy(b, first)
	if err := read(c, b[len(first):], firstWait); err != nil {
		return err
	}
	v, err := parseVersion(b)
	switch {
	case err != nil:
		return err
	case v < oldest:
		return fmt.Errorf("perftest's protocol %v is not supported: want %v or later", v, oldest)
	}
	clear(b)
	copy(b, ourVersion)
	if err := write(c, b); err != nil {
		return err
	}
	for _, n := range []int{4, 4, 2} {
		if err := read(c, b[:n], firstWait); err != nil {
			return err
		}
		if err := write(c, b[:n]); err != nil {
			return err
		}
	}
	var peer dest
	keys, wait := make([]byte, keysSize), firstWait
	for n := 0; ; n++ {
		const told = keysHead + 3
		if err := read(c, keys[:told], wait); n > 0 && errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if !withGID(keys) {
			return errors.New("keys without a GID: run perftest with -x 0")
		}
		if err := read(c, keys[told:], firstWait); err != nil {
			return err
		}
		now, err := parseKeys(keys)
		if err != nil {
			return fmt.Errorf("perftest's keys: %w", err)
		}
		if n == 0 || now.gid != peer.gid {
			if err := s.greet(c, now.gid); err != nil {
				return err
			}
			s.handed(c, "perftest", now, own)
		}
		peer, wait = now, wholeTest
		if err := write(c, appendKeys(nil, dest{reads: now.reads, qpn: uint64(own.QPN), gid: own.GID})); err != nil {
			return err
		}
	}
}

func (s *Server) handed(c net.Conn, tool string, peer dest, own nic.Endpoint) {
	s.log.Info("hand-over", "tool", tool, "client", c.RemoteAddr(), "service", own.Service, "queue", own.Queue, "gid",
		peer.gid, "qpn", peer.qpn)
}

// read fills b within a time. io.EOF is an end before the first byte.
func read(c net.Conn, b []byte, within time.Duration) error {
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	n, err := io.ReadFull(c, b)
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("the connection ended: %w", err)
	case err != nil:
		return fmt.Errorf("received %d of %d bytes: %w", n, len(b), err)
	}
	return nil
}

func write(c net.Conn, b []byte) error {
	if err := c.SetWriteDeadline(time.Now().Add(firstWait)); err != nil {
		return err
	}
	_, err := c.Write(b)
	return err
}
