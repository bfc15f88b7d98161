package endtoend

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// seen has the headers of requests as a UDP server received them.
type seen struct {
	mu       sync.Mutex
	tos, ttl map[int]int
	ports    map[int]int
}

// markServer answers UDP with the traffic class of each request.
func (n *network) markServer(port int) *seen {
	n.t.Helper()
	s := &seen{tos: map[int]int{}, ttl: map[int]int{}, ports: map[int]int{}}
	var conn *net.UDPConn
	n.must(n.far.Do(func() (err error) {
		if conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); err != nil {
			return err
		}
		raw, err := conn.SyscallConn()
		if err != nil {
			return err
		}
		return raw.Control(func(fd uintptr) {
			for _, o := range [][2]int{{unix.IPPROTO_IP, unix.IP_RECVTOS}, {unix.IPPROTO_IP, unix.IP_RECVTTL},
				{unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS}, {unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT}} {
				_ = unix.SetsockoptInt(int(fd), o[0], o[1], 1)
			}
		})
	}))
	n.t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	n.must(err)
	answerWith := func(class byte) {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, int(class))
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, int(class))
		})
	}
	go func() {
		buf, oob := make([]byte, 1<<12), make([]byte, 256)
		for {
			k, c, _, from, err := conn.ReadMsgUDPAddrPort(buf, oob)
			if err != nil {
				return
			}
			messages, _ := unix.ParseSocketControlMessage(oob[:c])
			s.mu.Lock()
			s.ports[int(from.Port())]++
			for _, m := range messages {
				switch {
				case m.Header.Type == unix.IP_TOS && m.Header.Level == unix.IPPROTO_IP,
					m.Header.Type == unix.IPV6_TCLASS && m.Header.Level == unix.IPPROTO_IPV6:
					s.tos[int(m.Data[0])]++
					answerWith(m.Data[0])
				case m.Header.Type == unix.IP_TTL && m.Header.Level == unix.IPPROTO_IP,
					m.Header.Type == unix.IPV6_HOPLIMIT && m.Header.Level == unix.IPPROTO_IPV6:
					s.ttl[int(m.Data[0])]++
				}
			}
			s.mu.Unlock()
			_, _ = conn.WriteToUDPAddrPort(buf[:k], from)
		}
	}()
	return s
}

// The target receives the requested DSCP, ECN, TTL and source ports, in both families and with both transports.
// Congestion marks in the replies are counted.
func TestMarks(t *testing.T) {
	n := newNetwork(t)
	for i, target := range []string{far4, far6} {
		for j, way := range [][]string{{"-driver", "afpacket", "-source-ports", "5", "-ecn", "3"},
			{"-source", map[string]string{far4: "10.98.0.78", far6: "fd98::78"}[target], "-source-ports", "5", "-ecn", map[string]string{far4: "1", far6: "0"}[target]},
			{"-transport", "socket", "-ecn", "1"}} {
			port := 4000 + 10*i + j
			s := n.markServer(port)
			rep, _ := n.measure(t, append([]string{"-target", target, "-proto", "udp", "-port", fmt.Sprint(port),
				"-warmup", "0s", "-dscp", "46", "-ttl", "9", "-count", "50"}, way...)...)
			ecn, _ := strconv.Atoi(way[len(way)-1])
			s.mu.Lock()
			if s.tos[46<<2|ecn] != 50 || s.ttl[9] != 50 {
				t.Errorf("%s %v: the target saw TOS %v, TTL %v", target, way, s.tos, s.ttl)
			}
			want := 5
			if j == 2 {
				want = 1
			}
			for p, count := range s.ports {
				if len(s.ports) != want || count != 50/want {
					t.Errorf("%s %v: %d probes from port %d, of %d ports; want %d ports", target, way, count, p,
						len(s.ports), want)
				}
			}
			s.mu.Unlock()
			if tr := rep.Traffic; tr.DSCP != 46 || int(tr.ECN) != ecn || tr.TTL != 9 {
				t.Errorf("%+v", tr)
			}
			if want := map[bool]int64{true: 50}[ecn == 3]; rep.Counts.CE != want {
				t.Errorf("%s %v: %d replies are marked, want %d", target, way, rep.Counts.CE, want)
			}
			if said := strings.Contains(strings.Join(rep.Notes, "\n"), "met congestion"); said != (ecn != 0) && j != 2 {
				t.Errorf("%s %v: notes %q", target, way, rep.Notes)
			}
		}
	}
}

// With -vlan the responder on that VLAN answers, and is asked for its MAC in a tagged frame.
func TestVLAN(t *testing.T) {
	n := newNetwork(t)
	n.startResponder(t, "afpacket", "10.96.0.2/24")
	args := func(out string, more ...string) []string {
		return quick(append([]string{"-target", "10.96.0.2", "-iface", nearIface, "-source", "10.96.0.77", "-gateway",
			"10.96.0.2", "-count", "50",
			"-out", out}, more...)...)
	}
	dir := filepath.Join(t.TempDir(), "r")
	if rep := read(t, dir, n.bench(args(dir, "-driver", "afpacket", "-size", "1514", "-rate", "1k", "-vlan",
		"7")...)); rep.Traffic.VLAN != 7 {
		t.Errorf("%+v", rep.Traffic)
	}
	dir = filepath.Join(t.TempDir(), "r")
	a, b := filepath.Join(dir, "01-dscp-0"), filepath.Join(dir, "02-dscp-46")
	r := n.bench(args(dir, "-driver", "afpacket", "-vlan", "7", "-ab", "dscp=0", "-ab", "dscp=46", "-slice", "10ms")...)
	if x, y := read(t, a, r), read(t, b, r); x.Traffic.DSCP != 0 || y.Traffic.DSCP != 46 {
		t.Errorf("%+v, %+v", x.Traffic, y.Traffic)
	}
}
