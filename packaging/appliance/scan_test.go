package appliance

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// From the management side only the port of the pages is open. The port under test sends nothing but answers: to ARP
// for its address, to pings, UDP echo and STAMP.
func TestScan(t *testing.T) {
	k := guests(t)
	dir := guestImage(t)
	side := newSide(t)
	m := serveOn(t, k, "ixgbe", 1, "tap:rbappl1")
	until(t, 20*time.Second, "the model's tap", func() bool {
		_,
			err := netlink.LinkByName("rbappl1")
		return err == nil
	})
	address(t, managementTap, "10.77.0.1/24")
	address(t, "rbappl1", "10.9.0.1/24")
	d := disk(t, dir+"/rebound.img", map[string]string{"/rebound.toml": answering(
		"[appliance]\nmanagement = \"0000:00:12.0\"\naddress = \"10.77.0.2/24\"\n")})
	sent := capture(t, "rbappl1")
	g := boot(t, k, machine{disk: d, sockets: m.sockets, netdev: side.netdev()})
	g.says("rebound: ready driver=", 1)
	g.says("management: http://10.77.0.2:9469", 1)

	open, other := scan(side.ns, "10.77.0.2", 65535, 20*time.Second)
	if fmt.Sprint(open) != "[9469]" {
		t.Errorf("open ports on the management side: %v", open)
	}
	if len(other) > 0 { // a closed port is refused
		t.Errorf("%d ports neither open nor refused: %s", len(other), other[0])
	}
	if n := sent.all(); len(n) > 0 {
		t.Errorf("the port under test sent %q before it was asked", n)
	}
	if open, _ := scan(side.ns, "10.9.0.2", 1024, 500*time.Millisecond); len(open) > 0 {
		t.Errorf("open ports on the port under test: %v", open)
	}
	probeAll(t)
	want := []string{"ARP of 10.9.0.2", "ICMP 0 from 10.9.0.2", "UDP from 7 from 10.9.0.2"}
	g.until("answers", func() bool { return len(sent.all()) >= len(want) })
	time.Sleep(5 * time.Second) // for what should not come
	if got := sent.all(); !slices.Equal(got, want) {
		t.Errorf("the port under test sent %q, want %q", got, want)
	}
	g.powerButton()
	fsck(t, d)
}

// scan connects to TCP ports from 1 to last, and returns those that are open, and errors other than a refusal.
func scan(ns netns.NsHandle, host string, last int, limit time.Duration) (open []int, other []string) {
	var mu sync.Mutex
	ports := make(chan int)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			runtime.LockOSThread()
			inside := netns.Set(ns)
			for p := range ports {
				err := inside
				if err == nil {
					var c net.Conn
					if c, err = net.DialTimeout("tcp", fmt.Sprintf("%s:%d", host, p), limit); err == nil {
						c.Close()
					}
				}
				mu.Lock()
				switch {
				case err == nil:
					open = append(open, p)
				case !strings.Contains(err.Error(), "refused"):
					other = append(other, err.Error())
				}
				mu.Unlock()
			}
		})
	}
	for p := 1; p <= last; p++ {
		ports <- p
	}
	close(ports)
	all.Wait()
	return open, other
}

// probeAll sends to the port under test what it answers, and what it does not: other protocols, ports and addresses.
func probeAll(t *testing.T) {
	t.Helper()
	to := unix.SockaddrInet4{Addr: [4]byte{10, 9, 0, 2}}
	for protocol := range 255 {
		if protocol == unix.IPPROTO_TCP || protocol == unix.IPPROTO_IP {
			continue
		}
		fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_RAW, protocol))(t)
		message := make([]byte, 32)
		if protocol == unix.IPPROTO_ICMP {
			message[0] = 8 // echo; the checksum of zeros behind it:
			binary.BigEndian.PutUint16(message[2:], ^uint16(0x0800))
		}
		if protocol != unix.IPPROTO_UDP {
			unix.Sendto(fd, message, 0, &to)
		}
		unix.Close(fd)
	}
	c := must.Get(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1)}))(t)
	defer c.Close()
	for port := 1; port <= 65535; port++ {
		if port != 862 { // STAMP's own tests send what it answers
			c.WriteToUDPAddrPort(make([]byte, 32), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 9, 0, 2}),
				uint16(port)))
		}
		if port%256 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	c.WriteToUDPAddrPort(make([]byte, 32), netip.MustParseAddrPort("10.9.0.3:7")) // ARP for another address
	c.WriteToUDPAddrPort(make([]byte, 32), netip.MustParseAddrPort("10.9.0.2:7")) // again: the guards limit a burst
}

// captured are the kinds of frames that came in on an interface.
type captured struct {
	mu    sync.Mutex
	kinds map[string]bool
}

func (c *captured) all() (kinds []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.kinds {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	return kinds
}

func capture(t *testing.T, name string) *captured {
	t.Helper()
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	fd := must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all))(t)
	t.Cleanup(func() { unix.Shutdown(fd, unix.SHUT_RD); unix.Close(fd) })
	link := must.Get(netlink.LinkByName(name))(t)
	must.OK(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}))
	must.OK(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}))
	must.OK(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	c := &captured{kinds: map[string]bool{}}
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err == unix.EAGAIN || err == unix.EINTR {
				continue
			}
			if err != nil {
				return
			}
			if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype != unix.PACKET_OUTGOING {
				c.mu.Lock()
				c.kinds[kindOf(b[:n])] = true
				c.mu.Unlock()
			}
		}
	}()
	return c
}

// kindOf says what a frame is.
func kindOf(b []byte) string {
	switch {
	case len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_ARP:
		return "ARP of " + netip.AddrFrom4([4]byte(b[28:])).String()
	case len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == unix.ETH_P_IP && b[14] == 0x45:
		from := " from " + netip.AddrFrom4([4]byte(b[26:])).String()
		switch b[23] {
		case unix.IPPROTO_ICMP:
			return fmt.Sprintf("ICMP %d%s", b[34], from)
		case unix.IPPROTO_UDP:
			return fmt.Sprintf("UDP from %d%s", binary.BigEndian.Uint16(b[34:]), from)
		}
		return fmt.Sprintf("protocol %d%s", b[23], from)
	}
	return fmt.Sprintf("% x", b[:min(len(b), 64)])
}
