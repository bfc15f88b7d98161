package veth

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/must"
)

// Loops joins a driver to programs that may answer its replies, and expects that no datagram bounces forever: a second
// responder on another port, and echo services on the kernel's sockets.
func Loops(t *testing.T, open Open) {
	t.Run("responder", func(t *testing.T) {
		v := New(t)
		us, they := *v.Config(), *v.Config()
		us.UDPPorts = []uint16{7001}
		they.MAC, they.UDPPorts = [6]byte(v.Peer.MAC), []uint16{7000}
		they.Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.20/24")}
		a, b := v.Host.serve(t, open, nic.Options{}, us), v.Peer.serve(t, open, nic.Options{}, they)
		v.Peer.Raw(t).Send(v.Datagram(they.Addresses[0].Addr(), 7000, Our4.Addr(), 7001))
		wait(t, "a reply whose TTL can go no lower", func() bool {
			return a.count(fastpath.RefusedHopLimit)+b.count(fastpath.RefusedHopLimit) == 1
		})
		if n := a.count(fastpath.AnsweredUDPv4) + b.count(fastpath.AnsweredUDPv4); n != 63 {
			t.Errorf("%d replies to a datagram with TTL 64, want 63", n)
		}
	})
	for _, port := range []int{7, 862, 20001} {
		t.Run("service on "+strconv.Itoa(port), func(t *testing.T) {
			const burst = 50
			v := New(t)
			c := *v.Config()
			c.Loop, c.TicksPerSecond = burst, 1<<42 // a window of minutes, however slow this machine is
			s := v.Host.serve(t, open, nic.Options{}, c)
			echoed := v.service(t, port)
			end := fastpath.RefusedServicePort
			if port >= 1024 {
				end = fastpath.RefusedLoop
			}
			wait(t, "the refusal for "+end.String(), func() bool { return s.count(end) == 1 })
			n := s.count(fastpath.AnsweredUDPv4)
			if port < 1024 && n != 0 || port >= 1024 && n != burst || echoed.Load() != n {
				t.Errorf("%d replies, %d of them echoed; want none from a service's port, and else %d", n,
					echoed.Load(), burst)
			}
		})
	}
}

func (s *Server) count(v fastpath.Verdict) (n uint64) {
	for _, r := range s.Responders {
		n += r.Stats()[v]
	}
	return n
}

func wait(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s has not come for %v", what, patience)
		}
	}
}

// service opens an echo service on a socket in Peer, makes it send a datagram to the server's echo port, and returns
// the number of datagrams echoed.
func (v *Pair) service(t testing.TB, port int) *atomic.Uint64 {
	var c *net.UDPConn
	v.Peer.Do(func() {
		var err error
		if c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: port}); err != nil {
			t.Error(err)
		}
	})
	if c == nil {
		t.FailNow()
	}
	echoed, done := new(atomic.Uint64), make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			echoed.Add(1)
			c.WriteToUDPAddrPort(buf[:n], from)
		}
	}()
	must.Get(c.WriteToUDPAddrPort([]byte("loop"), netip.AddrPortFrom(Our4.Addr(), EchoPort)))(t)
	return echoed
}

// Datagram builds a datagram with TTL 64 from an address in Peer's subnet to one in Host's.
func (v *Pair) Datagram(from netip.Addr, sport uint16, to netip.Addr, dport uint16) []byte {
	be := binary.BigEndian
	f := append(slices.Concat(v.Host.MAC, v.Peer.MAC), 8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0)
	f = append(append(f, from.AsSlice()...), to.AsSlice()...)
	be.PutUint16(f[24:], ^cksum.Sum(f[14:34], 0))
	f = be.AppendUint16(be.AppendUint16(f, sport), dport)
	f = append(f, 0, 26, 0, 0)
	f = append(f, "it goes to and fro"...)
	sum := cksum.Sum(f[26:], 17+26)
	be.PutUint16(f[40:], cksum.UDP(^sum))
	return f
}
