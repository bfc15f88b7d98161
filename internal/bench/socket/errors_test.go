package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// ICMP errors about one datagram are read with their sender, and neither the next send nor a receive fails because of
// them.
func TestICMPErrors(t *testing.T) {
	alone(t)
	for _, c := range []struct {
		source, target string
		typ, code      uint8
	}{
		{"127.0.0.1", "127.0.0.1:9", 3, 3},
		{"::1", "[::1]:9", 1, 4},
	} {
		all := must.Get(OpenPorts(netip.MustParseAddr(c.source), 3, ""))(t)
		defer all.Close()
		for i, s := range all.All {
			check.Equal(t, int(s.Local().Port()), 61000+i, c.source+": port %d")
		}
		s, to := all.All[1], netip.MustParseAddrPort(c.target)
		must.OK(t, errors.Join(s.KeepErrors(true), s.SendTTL(to, 0, []byte("probe"), 7)))
		awaitRefusal(t, s.fd)
		peer := NewPeer(to, 0)
		if err := s.Send(&peer, []byte("another")); err != nil {
			t.Errorf("%s: an earlier datagram's error fails a send: %v", c.source, err)
		}
		buf := make([]byte, 100)
		if n, _, _, err := s.Recv(buf); n != 0 || err != nil {
			t.Errorf("%s: received %d bytes, %v", c.source, n, err)
		}
		e, ok, err := s.NextError(buf, 0)
		if err != nil || !ok || e.From.String() != c.source || e.To != to || e.Type != c.typ || e.Code != c.code ||
			string(e.Payload) != "probe" || e.TimeExceeded() {
			t.Errorf("%s: %+v, %t, %v", c.source, e, ok, err)
		}
		must.OK(t, s.KeepErrors(false))
		if _, ok, err := s.NextError(buf, 0); ok || err != nil {
			t.Errorf("%s: an error was kept, %v", c.source, err)
		}
	}
}

// Held ports are the lowest free ones, of IPv4 and IPv6, and their sockets receive nothing.
func TestHoldPorts(t *testing.T) {
	alone(t)
	for _, a := range []string{"127.0.0.1", "::1"} {
		ip := netip.MustParseAddr(a)
		taken, _, err := hold(ip, 0, FirstPort+1, "")
		must.OK(t, err)
		defer unix.Close(taken)
		all := must.Get(HoldPorts(ip, 0, 3, ""))(t)
		for i, want := range []uint16{FirstPort, FirstPort + 2, FirstPort + 3} {
			check.Equal(t, all[i].Local(), netip.AddrPortFrom(ip, want), "held port %v")
		}
		to := NewPeer(all[1].Local(), 0)
		must.OK(t, all[0].Send(&to, []byte{1}))
		if n, _, _, err := all[1].Recv(make([]byte, 10)); n != 0 || err != nil {
			t.Errorf("%d bytes arrived, %v", n, err)
		}
		for _, s := range all {
			s.Close()
		}
	}
	_, err := HoldPorts(netip.MustParseAddr("127.0.0.1"), 0, 1, "nothing")
	check.Fails(t, "an interface that does not exist", err, nil)
}

// Ready returns the sockets that have a datagram, each of which Recv delivers with its sender.
func TestPorts(t *testing.T) {
	alone(t)
	p := must.Get(OpenPorts(netip.MustParseAddr("127.0.0.1"), 5, ""))(t)
	defer p.Close()
	if s, err := p.Ready(); s != nil || err != nil {
		t.Errorf("nothing was sent: %v, %v", s, err)
	}
	for _, i := range []int{1, 1, 4} {
		to := NewPeer(p.All[i].Local(), 0)
		must.OK(t, p.All[0].Send(&to, []byte{byte(i)}))
	}
	got := map[byte]int{}
	for s, err := p.Ready(); s != nil; s, err = p.Ready() { // the loopback delivers before a send returns
		b := make([]byte, 10)
		n, from, _, e := s.Recv(b)
		if err := errors.Join(err, e); err != nil || n != 1 || from != p.All[0].Local() || s != p.All[b[0]] {
			t.Errorf("%d bytes %v from %v, %v", n, b, from, err)
		}
		got[b[0]]++
	}
	if !maps.Equal(got, map[byte]int{1: 2, 4: 1}) {
		t.Errorf("received %v", got)
	}
}

// extended returns a control message with a sock_extended_err, as the kernel lays it out.
func extended(level, kind int32, origin, typ, code uint8, from []byte) []byte {
	b := make([]byte, unix.CmsgSpace(16+len(from)))
	binary.NativeEndian.PutUint64(b, uint64(unix.CmsgLen(16+len(from))))
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	b[20], b[21], b[22] = origin, typ, code
	copy(b[32:], from)
	return b
}

func sockaddr4(a string) []byte {
	b := make([]byte, 16)
	binary.NativeEndian.PutUint16(b, unix.AF_INET)
	x := netip.MustParseAddr(a).As4()
	copy(b[4:], x[:])
	return b
}

func FuzzICMPError(f *testing.F) {
	f.Add(extended(unix.SOL_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_ICMP, 11, 0, sockaddr4("10.0.0.1")))
	v6 := make([]byte, 28)
	binary.NativeEndian.PutUint16(v6, unix.AF_INET6)
	v6[8], v6[23] = 0xfd, 1
	f.Add(extended(unix.SOL_IPV6, unix.IPV6_RECVERR, unix.SO_EE_ORIGIN_ICMP6, 3, 0, v6))
	f.Add(extended(unix.SOL_IP, unix.IP_RECVERR, unix.SO_EE_ORIGIN_LOCAL, 0, 0, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, ok := parseError(b)
		if ok != e.From.IsValid() || ok && e.V6 != e.From.Is6() {
			t.Errorf("%t, %+v", ok, e)
		}
		_ = fmt.Sprint(e, e.TimeExceeded())
	})
}

// Time exceeded in transit is an answer of a hop; other errors, and those that the host itself made, are not.
func TestParseError(t *testing.T) {
	for _, c := range []struct {
		origin, typ, code uint8
		from              []byte
		ok, exceeded      bool
	}{
		{unix.SO_EE_ORIGIN_ICMP, 11, 0, sockaddr4("10.0.0.1"), true, true},
		{unix.SO_EE_ORIGIN_ICMP, 11, 1, sockaddr4("10.0.0.1"), true, false}, // fragment reassembly
		{unix.SO_EE_ORIGIN_ICMP, 3, 0, sockaddr4("10.0.0.1"), true, false},
		{unix.SO_EE_ORIGIN_LOCAL, 11, 0, sockaddr4("10.0.0.1"), false, false},
		{unix.SO_EE_ORIGIN_ICMP, 11, 0, nil, false, false},
		{unix.SO_EE_ORIGIN_ICMP, 11, 0, sockaddr4("10.0.0.1")[:4], false, false},
	} {
		e, ok := parseError(extended(unix.SOL_IP, unix.IP_RECVERR, c.origin, c.typ, c.code, c.from))
		if ok != c.ok || e.TimeExceeded() != c.exceeded || ok && e.From.String() != "10.0.0.1" {
			t.Errorf("%+v: %t, %+v", c, ok, e)
		}
	}
	for typ, exceeded := range map[uint8]bool{1: false, 3: true, 11: false} {
		e := ICMPError{V6: true, Type: typ}
		check.Equal(t, e.TimeExceeded(), exceeded, fmt.Sprintf("ICMPv6 type %d: %%t", typ))
	}
}
