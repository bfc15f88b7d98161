package socket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/oracle"
)

// pings lets all groups of the test's network namespace open ping sockets.
func pings(t *testing.T) {
	t.Helper()
	must.OK(t, os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0))
}

// marks are a socket's TOS or traffic class, and its TTL or hop limit.
func marks(t *testing.T, fd int, v6 bool) string {
	t.Helper()
	level, tos, ttl := unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL
	if v6 {
		level, tos, ttl = unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_UNICAST_HOPS
	}
	return fmt.Sprint(must.Get(unix.GetsockoptInt(fd, level, tos))(t), " ",
		must.Get(unix.GetsockoptInt(fd, level, ttl))(t))
}

// A socket of each kind sends to its target, receives the reply with the kernel's timestamps, and has the marks that it
// is given.
func TestPort(t *testing.T) {
	alone(t)
	check.Fails(t, "no rights", check.Err(Ping(netip.MustParseAddr("127.0.0.1"), netip.Addr{}, "")), nic.ErrRights,
		"group 0 is not in net.ipv4.ping_group_range")
	pings(t)
	for _, a := range []string{"127.0.0.1", "::1"} {
		for _, ping := range []bool{false, true} {
			ip := netip.MustParseAddr(a)
			echo := must.Get(OpenShared(ip, false, ""))(t)
			what, probe := "udp "+a, []byte("a probe of some bytes")
			open := func() (*Port, error) { return UDP(echo.Local(), netip.Addr{}, "lo") }
			if ping {
				what, probe = "ping "+a, append([]byte{8, 0, 0, 0, 0, 0, 0, 9}, probe...)
				if probe[0] = 8; ip.Is6() {
					probe[0] = 128
				}
				open = func() (*Port, error) { return Ping(ip, ip, "") }
			}
			p := must.Get(open())(t)
			p.Interface = "lo"
			if p.Local().Addr() != ip || p.Local().Port() == 0 {
				t.Errorf("%s: own address %v", what, p.Local())
			}
			for _, c := range []struct {
				tos, ttl uint8
				want     string
			}{{0, 0, "0 64"}, {46 << 2, 0, "184 64"}, {0, 7, "184 7"}} {
				must.OK(t, p.Mark(c.tos, c.ttl))
				check.Equal(t, marks(t, p.fd, ip.Is6()), c.want, what+": TOS and TTL %s")
			}
			buf := make([]byte, 100)
			if n, at, err := p.Recv(buf); n != 0 || at != 0 || err != nil || p.Messages() != 0 {
				t.Errorf("%s: %d bytes, %v", what, n, err)
			}
			sent := int64(0)
			for _, stamps := range []bool{false, true} {
				if stamps {
					must.Get(p.EnableTimestamps(false))(t)
				}
				await.Until(t, what+" is answered, and the kernel has begun to take timestamps", func() bool {
					must.OK(t, p.Send(probe))
					sent++
					received := 0
					await.Until(t, what+" is answered", func() bool {
						n, from, _, err := echo.Recv(buf)
						if must.OK(t, err); n > 0 {
							to := NewPeer(from, 0)
							must.OK(t, echo.Send(&to, buf[:n]))
						}
						received, _, err = p.Recv(buf)
						must.OK(t, err)
						return received > 0
					})
					if got := buf[:received]; !bytes.HasSuffix(got, probe[8:]) || len(got) != len(probe) ||
						!p.FromTarget() {
						t.Errorf("%s: received %q, from the target %t", what, got, p.FromTarget())
					}
					return (p.RxTimestamp().Nanoseconds != 0) == stamps
				})
				check.Equal(t, p.Messages(), sent, what+": %d messages")
			}
			id, stamp, ok, err := p.TxTimestamp()
			if id != 0 || stamp.Nanoseconds == 0 || !ok || err != nil {
				t.Errorf("%s: transmit timestamp %+v of %d, %t, %v", what, stamp, id, ok, err)
			}
			for ok && err == nil {
				_, _, ok, err = p.TxTimestamp()
			}
			must.OK(t, err)
			check.Fails(t, what+": 64 KiB", p.Send(make([]byte, 1<<16)), nic.ErrFrameSize, "65536 bytes in one ")
			if n, err := p.Drops(); n != 0 || err != nil {
				t.Errorf("%s: %d drops, %v", what, n, err)
			}
			must.OK(t, errors.Join(p.Close(), echo.Close()))
			check.Fails(t, what+" is closed", check.Err(p.Drops()), unix.EBADF, "SO_MEMINFO")
			check.Fails(t, what+" is closed", p.Send(probe), unix.EBADF, "send: ")
			check.Fails(t, what+" is closed", p.Mark(4, 0), unix.EBADF, "DSCP and ECN 0x4: ")
			check.Fails(t, what+" is closed", p.Mark(0, 4), unix.EBADF, "TTL 4: ")
			check.Fails(t, what+" is closed", check.Err(p.EnableTimestamps(true)), unix.EBADF, "SO_TIMESTAMPING 0x")
			_, _, err = p.Recv(buf)
			check.Fails(t, what+" is closed", err, unix.EBADF, "receive: ")
			_, _, _, err = p.TxTimestamp()
			check.Fails(t, what+" is closed", err, unix.EBADF, "read a transmit timestamp: ")
		}
	}
	for want, open := range map[string]func() (*Port, error){
		"bind the socket to interface no: ": func() (*Port, error) {
			return UDP(netip.MustParseAddrPort("127.0.0.1:9"), netip.Addr{}, "no")
		},
		"source address 10.0.0.9:0: ": func() (*Port, error) {
			return Ping(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.9"), "")
		},
		"target 10.0.0.9:9: ": func() (*Port, error) {
			return UDP(netip.MustParseAddrPort("10.0.0.9:9"), netip.Addr{}, "")
		},
	} {
		check.Fails(t, want, check.Err(open()), nil, want)
	}
}

// An echo reply with a ping socket's identifier is received from any host.
func TestReplyOfAnotherHost(t *testing.T) {
	alone(t)
	pings(t)
	p := must.Get(Ping(netip.MustParseAddr("127.0.0.1"), netip.Addr{}, ""))(t)
	defer p.Close()
	raw := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP))(t)
	defer unix.Close(raw)
	must.OK(t, unix.Bind(raw, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}}))
	reply := make([]byte, 8)
	binary.BigEndian.PutUint16(reply[4:], p.Local().Port())
	binary.BigEndian.PutUint16(reply[2:], ^oracle.Sum(reply))
	must.OK(t, unix.Sendto(raw, reply, 0, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	await.Until(t, "the reply came", func() bool { n, _, err := p.Recv(make([]byte, 100)); must.OK(t, err); return n > 0 })
	check.Equal(t, p.FromTarget(), false, "from the target: %t")
}

// Sockets of many targets count what they receive, what the kernel drops, and what it has no route for.
func TestShared(t *testing.T) {
	alone(t)
	pings(t)
	for _, a := range []string{"127.0.0.1", "::1"} {
		ip := netip.MustParseAddr(a)
		all := must.Get(OpenPorts(ip, 2, ""))(t)
		ping := must.Get(OpenShared(ip, true, "lo"))(t)
		for _, s := range append(all.All, ping) {
			must.OK(t, s.Mark(4, 9))
			check.Equal(t, marks(t, s.fd, ip.Is6()), "4 9", a+": TOS and TTL %s")
		}
		must.OK(t, unix.SetsockoptInt(all.All[1].fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0))
		to := NewPeer(all.All[1].Local(), 0)
		for range 100 {
			must.OK(t, all.All[0].Send(&to, make([]byte, 1000)))
		}
		buf := make([]byte, 2000)
		for n := 1; n > 0; {
			var err error
			n, _, _, err = all.All[1].Recv(buf)
			must.OK(t, err)
		}
		one, err := all.All[1].Drops()
		must.OK(t, err)
		if sum, err := all.Drops(); sum != one || one == 0 || err != nil || int64(one)+all.Messages() != 100 ||
			all.Messages() != all.All[1].Messages() {
			t.Errorf("%s: %d and %d drops, %d messages of 100, %v", a, one, sum, all.Messages(), err)
		}
		request := append([]byte{8}, make([]byte, 7)...)
		if ip.Is6() {
			request[0] = 128
		}
		to = NewPeer(netip.AddrPortFrom(ip, 0), 0)
		must.OK(t, ping.Send(&to, request))
		await.Until(t, "the kernel answers", func() bool {
			n, from, at, err := ping.Recv(buf)
			if must.OK(t, err); n > 0 && (n != 8 || from.Addr() != ip || at == 0) {
				t.Errorf("%s: %d bytes from %v at %d", a, n, from, at)
			}
			return n > 0
		})
		to = NewPeer(netip.MustParseAddrPort(map[bool]string{false: "10.0.0.9:9", true: "[fd00::9]:9"}[ip.Is6()]), 3)
		check.Equal(t, to.Scope(), map[bool]uint32{true: 3}[ip.Is6()], a+": scope %d")
		check.Fails(t, a+": no route", all.All[0].Send(&to, request), nil, "network is unreachable")
		check.Equal(t, all.All[0].Refused, 1, a+": %d refused")
		must.OK(t, errors.Join(all.Close(), ping.Close()))
		check.Fails(t, "closed", all.Close(), unix.EBADF)
		check.Fails(t, "closed", check.Err(all.Drops()), unix.EBADF)
		check.Fails(t, "closed", check.Err(all.Ready()), unix.EBADF, "epoll: ")
		_, _, _, err = ping.Recv(buf)
		check.Fails(t, "closed", err, unix.EBADF, "receive: ")
		check.Fails(t, "closed", ping.KeepErrors(true), unix.EBADF, "IP_RECVERR: ")
		check.Fails(t, "closed", ping.SendTTL(netip.AddrPortFrom(ip, 0), 0, request, 3), unix.EBADF, "send with TTL 3: ")
	}
}

// Ports are tried in order, and every socket is closed if there are too few.
func TestLowest(t *testing.T) {
	var tried []uint16
	_, err := lowest(1, func(port uint16) (int, error) { tried = append(tried, port); return 0, unix.EADDRINUSE })
	check.Fails(t, "all in use", err, nil, "0 of the UDP ports 61000 to 65535 are free, need 1")
	if n := len(tried); n != 4536 || tried[0] != 61000 || tried[n-1] != 65535 {
		t.Errorf("%d ports from %d to %d", n, tried[0], tried[n-1])
	}
	var opened []int
	all, err := lowest(3, func(port uint16) (int, error) {
		if port == 61002 {
			return 0, unix.EMFILE
		}
		opened = append(opened, must.Get(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t))
		return opened[len(opened)-1], nil
	})
	check.Fails(t, "too many files", err, unix.EMFILE)
	check.Equal(t, len(all), 0, "%d sockets")
	for _, fd := range opened {
		check.Fails(t, "a socket", check.Err(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), unix.EBADF)
	}
	_, err = lowest(1, func(uint16) (int, error) { return -1, nil })
	check.Fails(t, "no socket", err, unix.EBADF, "getsockname: ")
}

// The zone of an address is an interface's name or its number.
func TestZones(t *testing.T) {
	for zone, want := range map[string]uint32{"": 0, "%lo": 1, "%1": 1, "%77": 77, "%none": 0, "%4294967297": 0} {
		a := sockaddr(netip.AddrPortFrom(netip.MustParseAddr("fe80::1"+zone), 5)).(*unix.SockaddrInet6)
		if a.ZoneId != want || a.Port != 5 {
			t.Errorf("%q: %+v", zone, a)
		}
	}
}
