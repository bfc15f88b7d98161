package veth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// Addresses that a Server answers for: in Host's subnets, but not assigned to a kernel.
var (
	Our4 = netip.MustParsePrefix("192.0.2.10/24")
	Our6 = netip.MustParsePrefix("2001:db8::10/64")
)

// EchoPort is the UDP port that a Server answers.
const EchoPort = 7007

// Open is a driver's Open function.
type Open func(nic.Options) (nic.Device, error)

// Config returns a Server's configuration.
func (v *Pair) Config() *fastpath.Config {
	return &fastpath.Config{
		MAC: [6]byte(v.Host.MAC), Addresses: []netip.Prefix{Our4, Our6}, UDPPorts: []uint16{EchoPort},
		ChecksumBytes: 9000,
	}
}

// patience is how long to wait for something that must happen, because other programs may use the CPU.
const patience = time.Minute

// Server is a device on Host that serves.
type Server struct {
	Device     nic.Device
	Responders []*fastpath.Responder
	Done       chan error // one result of each queue's Serve

	stop atomic.Bool
}

// Serve opens a device on Host and serves all of its queues until the test ends.
func (v *Pair) Serve(t testing.TB, open Open, o nic.Options) *Server {
	t.Helper()
	return v.Host.serve(t, open, o, *v.Config())
}

// serve opens a device on the end and serves all of its queues with configuration c until the test ends.
func (e *End) serve(t testing.TB, open Open, o nic.Options, c fastpath.Config) *Server {
	t.Helper()
	o.Device, o.Match = e.Name, &c
	queues := max(1, o.Queues)
	s := &Server{Done: make(chan error, queues)}
	var err error
	e.Do(func() { s.Device, err = open(o) })
	if err != nil {
		t.Fatal(err)
	}
	c.PartialChecksums = s.Device.Info().PartialChecksums
	for i := range queues {
		r := must.Get(fastpath.New(c))(t)
		s.Responders = append(s.Responders, r)
		go onThread(func() { s.Done <- s.Device.Serve(i, &s.stop, r) })
	}
	t.Cleanup(func() {
		s.stop.Store(true)
		for range queues {
			if err := <-s.Done; err != nil {
				t.Error(err)
			}
		}
		must.Close(t, s.Device)
	})
	return s
}

// Ping runs ping in Peer, 50 times at a high rate, and expects every reply once. The replies are counted by the kernel,
// because ping itself waits for the last ones only for two of the previous round trips, and counts later ones as lost.
func (v *Pair) Ping(t testing.TB, a netip.Addr, args ...string) {
	t.Helper()
	needs.Programs(t, "ping")
	const count = 50
	args = append(args, "-n", "-q", "-c", fmt.Sprint(count), "-i", "0.002", "-W", "20", a.String())
	before := v.Peer.echoReplies(t, a)
	v.Peer.Do(func() {
		out, err := exec.Command("ping", args...).CombinedOutput()
		if err != nil || strings.Contains(string(out), "duplicates") || strings.Contains(string(out), "errors") ||
			strings.Contains(string(out), "wrong") || strings.Contains(string(out), "corrupted") {
			t.Errorf("ping %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	})
	n := 0
	for end := time.Now().Add(patience); n < count && time.Now().Before(end); time.Sleep(time.Millisecond) {
		n = v.Peer.echoReplies(t, a) - before
	}
	if n != count {
		t.Errorf("ping %s: %d replies came, want %d", strings.Join(args, " "), n, count)
	}
}

// UDP sends datagrams of many sizes from a socket in Peer and expects each back.
func (v *Pair) UDP(t testing.TB, a netip.Addr) {
	t.Helper()
	v.Peer.Do(func() {
		c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, EchoPort)))
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		buf := make([]byte, 2048)
		for size := 0; size <= 1452; size += 11 {
			sent := bytes.Repeat([]byte{byte(size), byte(size >> 8), 0x5a}, size/3+1)[:size]
			c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Write(sent); err != nil {
				t.Error(err)
				return
			}
			n, err := c.Read(buf)
			if err != nil || !bytes.Equal(buf[:n], sent) {
				t.Errorf("UDP echo of %d bytes from %v: got %d bytes, %v", size, a, n, err)
				return
			}
		}
	})
}

// Flows sends one datagram from each of many ports, and expects each back once, with some on every queue.
func (v *Pair) Flows(t testing.TB, s *Server) {
	t.Helper()
	const flows = 32
	v.Peer.Do(func() {
		var conns []net.Conn
		for range flows {
			c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(Our4.Addr(), EchoPort)))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			c.Write([]byte("flow"))
			conns = append(conns, c)
		}
		for _, c := range conns {
			if n, err := c.Read(make([]byte, 16)); n != 4 {
				t.Error(err)
			}
		}
	})
	var answered, datagrams uint64
	for i, r := range s.Responders {
		st := r.Stats()
		if st.Answered() == 0 {
			t.Errorf("queue %d answered nothing", i)
		}
		answered += st.Answered() // including ARP, which a busy machine may request more than once
		datagrams += st[fastpath.AnsweredUDPv4]
	}
	if datagrams != flows {
		t.Errorf("%d replies to %d datagrams", datagrams, flows)
	}
	var st nic.Stats
	// counted after the kernel has sent them
	for end := time.Now().Add(patience); st.TxFrames != answered && time.Now().Before(end); {
		must.OK(t, s.Device.ReadStats(&st))
	}
	if st.TxFrames != answered {
		t.Errorf("%d frames sent for %d replies", st.TxFrames, answered)
	}
}

// TCP sends a megabyte to Host's kernel and expects it back: traffic not meant for the responder still arrives.
func (v *Pair) TCP(t testing.TB) {
	t.Helper()
	var l net.Listener
	var err error
	v.Host.Do(func() { l, err = net.Listen("tcp", netip.AddrPortFrom(v.Host.IPv4.Addr(), 0).String()) })
	if err != nil {
		t.Error(err)
		return
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		io.Copy(c, c)
		c.Close()
	}()
	v.Peer.Do(func() {
		c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err != nil {
			t.Error("TCP to the host's kernel:", err)
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		go func() {
			c.Write(sent)
			c.(*net.TCPConn).CloseWrite()
		}()
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("TCP to the host's kernel: %d of %d bytes back, %v", len(got), len(sent), err)
		}
	})
}

// Tagged sends echo requests behind one and two VLAN tags and expects each reply with the same tags.
func (v *Pair) Tagged(t testing.TB) {
	t.Helper()
	raw := v.Peer.Raw(t)
	q, ad := [4]byte{0x81, 0x00, 0x60, 0x07}, [4]byte{0x88, 0xa8, 0x00, 0x2a}
	seq := uint16(100)
	for _, a := range []netip.Addr{Our4.Addr(), Our6.Addr()} {
		for _, tags := range [][][4]byte{{}, {q}, {ad}, {ad, q}, {q, q}} {
			seq++
			sent := v.Echo(a, seq, tags...)
			raw.Send(sent)
			got := raw.Recv(func(f []byte) bool { return v.isReply(f, sent) })
			if len(got) != len(sent) {
				t.Errorf("reply of %d bytes to %d", len(got), len(sent))
			}
		}
	}
}

// isReply reports whether f is sent's echo reply, with the same tags, identifier, sequence number and payload.
func (v *Pair) isReply(f, sent []byte) bool {
	if len(f) < len(sent) || !bytes.Equal(f[:6], sent[6:12]) || !bytes.Equal(f[6:12], sent[:6]) {
		return false
	}
	l3 := bytes.Index(sent, []byte{0x08, 0x00, 0x45}) + 2
	if l3 < 12 {
		l3 = bytes.Index(sent, []byte{0x86, 0xdd, 0x60}) + 2
	}
	icmp := len(sent) - 64
	return bytes.Equal(f[12:l3], sent[12:l3]) && f[icmp] != sent[icmp] &&
		bytes.Equal(f[icmp+4:len(sent)], sent[icmp+4:])
}

// Burst sends more frames than fit into any ring, as fast as the kernel accepts them, and expects each to be accounted
// for and the server to keep working.
func (v *Pair) Burst(t testing.TB, s *Server) {
	t.Helper()
	raw := v.Peer.Raw(t)
	var before nic.Stats
	must.OK(t, s.Device.ReadStats(&before))
	const frames = 20000
	f := v.Echo(Our4.Addr(), 1)
	answered, came, back := s.count(fastpath.AnsweredICMPv4), v.Peer.echoReplies(t, Our4.Addr()), v.Host.txDropped(t)
	lost := v.Peer.txDropped(t)
	for range frames {
		raw.offer(f)
	}
	lost = v.Peer.txDropped(t) - lost
	var after nic.Stats
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		must.OK(t, s.Device.ReadStats(&after))
		seen := after.RxFrames + after.RxDropped - before.RxFrames - before.RxDropped + lost
		if seen >= frames && after.TxFrames+after.TxDropped+after.TxErrors-before.TxFrames >= after.RxFrames-
			before.RxFrames-100 {
			break
		}
	}
	t.Logf("burst of %d: %d lost on the wire, received %d, dropped %d, answered %d (%d not: no room), errors %d, %v",
		frames, lost,
		after.RxFrames-before.RxFrames, after.RxDropped-before.RxDropped, after.TxFrames-before.TxFrames,
		after.TxDropped, after.TxErrors, after.Extra)
	if seen := after.RxFrames + after.RxDropped - before.RxFrames - before.RxDropped; seen+lost < frames {
		t.Errorf("%d of %d frames accounted for, %d lost on the wire: %+v", seen, frames, lost, after)
	}
	// Peer's kernel may receive the last replies later, and Ping would count them among its own. Some drivers count
	// replies that the kernel refused to send, others do not.
	wait(t, "what became of each reply", func() bool {
		must.OK(t, s.Device.ReadStats(&after))
		refused := max(after.TxDropped+after.TxErrors-before.TxDropped-before.TxErrors, v.Host.txDropped(t)-back)
		return uint64(v.Peer.echoReplies(t, Our4.Addr())-came)+refused >= s.count(fastpath.AnsweredICMPv4)-answered
	})
	v.Ping(t, Our4.Addr())
}

// Answers runs every kind of traffic against a driver.
func Answers(t *testing.T, open Open, o nic.Options) {
	v := New(t)
	s := v.Serve(t, open, o)
	info := s.Device.Info()
	if info.Model != "veth" || info.MAC != v.Host.MAC.String() || info.MTU != 1500 || info.Backend != nic.Socket {
		t.Errorf("info %+v", info)
	}
	t.Logf("%+v", info)
	if l, err := s.Device.Link(); err != nil || !l.Up || l.Speed != 10000 {
		t.Errorf("link %+v, %v", l, err)
	}
	for _, a := range []netip.Addr{Our4.Addr(), Our6.Addr()} {
		t.Run(fmt.Sprint("ping/", a), func(t *testing.T) { v.Ping(t, a) })
		t.Run(fmt.Sprint("big ping/", a), func(t *testing.T) { v.Ping(t, a, "-s", "1452") })
		t.Run(fmt.Sprint("udp/", a), func(t *testing.T) { v.UDP(t, a) })
	}
	t.Run("tagged", func(t *testing.T) { v.Tagged(t) })
	t.Run("kernel", func(t *testing.T) {
		v.TCP(t)
		v.Ping(t, v.Host.IPv4.Addr())
		v.Ping(t, v.Host.IPv6.Addr())
	})
	if t.Failed() {
		return
	}
	t.Run("burst", func(t *testing.T) { v.Burst(t, s) })
	var st nic.Stats
	if err := s.Device.ReadStats(&st); err != nil || st.TxErrors != 0 {
		t.Errorf("stats %+v, %v", st, err)
	}
}

// Faults opens interfaces that cannot be opened, and removes the interface from a running server.
func Faults(t *testing.T, open Open) {
	v := New(t)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4)) // the test continues while a loop is pinned, even on one CPU
	fails := func(what string, want error, o nic.Options) {
		t.Helper()
		v.Host.Do(func() {
			d, err := open(o)
			if err == nil {
				d.Close()
			}
			t.Logf("%s: %v", what, err)
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", what, err, want)
			}
		})
	}
	link := func(what string, f func(netlink.Link) error) {
		t.Helper()
		v.Host.Do(func() {
			l, err := netlink.LinkByName(v.Host.Name)
			if err == nil {
				err = f(l)
			}
			if err != nil {
				t.Error(what, err)
			}
		})
	}
	fails("no interface", nic.ErrNoDevice, nic.Options{Device: "none0"})
	fails("MTU", nic.ErrFrameSize, nic.Options{Device: v.Host.Name, MTU: 9000})
	link("down", netlink.LinkSetDown)
	fails("down", nic.ErrDown, nic.Options{Device: v.Host.Name})
	link("up", netlink.LinkSetUp)

	serveUntil := func(what string, want error, f func(netlink.Link) error) {
		t.Helper()
		s := &Server{}
		var err error
		v.Host.Do(func() { s.Device, err = open(nic.Options{Device: v.Host.Name, Match: v.Config()}) })
		if err != nil {
			t.Fatal(err)
		}
		r := must.Get(fastpath.New(*v.Config()))(t)
		done := make(chan error)
		collect := debug.SetGCPercent(-1) // a pinned loop and a garbage collection would wait for each other,
		runtime.GC()                      // as would the end of a collection in progress
		go onThread(func() {
			polling.Pin()
			err := s.Device.Serve(0, &s.stop, r)
			polling.Unpin()
			done <- err
		})
		link(what, f)
		select {
		case err = <-done:
		case <-time.After(patience):
			s.stop.Store(true)
			<-done
			err = errors.New("Serve went on")
		}
		debug.SetGCPercent(collect)
		t.Logf("%s while serving: %v", what, err)
		if !errors.Is(err, want) {
			t.Errorf("%s while serving: got %v, want %v", what, err, want)
		}
		if err := s.Device.Close(); err != nil {
			t.Errorf("close after %s: %v", what, err)
		}
	}
	serveUntil("down", nic.ErrDown, netlink.LinkSetDown)
	link("up", netlink.LinkSetUp)
	serveUntil("removal", nic.ErrGone, netlink.LinkDel)
}

// Allocates fails the test if a reply allocates. open returns the Poll of queue 0.
func Allocates[D nic.Device](t *testing.T, open func(nic.Options) (D, error), poll func(D, *fastpath.Responder) int) {
	v := New(t)
	var d D
	v.Host.Do(func() { d = must.Get(open(nic.Options{Device: v.Host.Name, Match: v.Config()}))(t) })
	defer d.Close()
	r := must.Get(fastpath.New(*v.Config()))(t)
	raw, f := v.Peer.Raw(t), v.Echo(Our4.Addr(), 1)
	if n := testing.AllocsPerRun(500, func() {
		raw.Send(f)
		for poll(d, r) == 0 {
		}
	}); n != 0 {
		t.Errorf("%v allocations for each reply", n)
	}
}
