package endtoend

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
)

// fork is a network with two equal-cost paths: near, a router that chooses one of two others by a hash of the ports,
// and far, which answers through the first.
type fork struct {
	*network
	router, a, b *testbed.Namespace
}

const (
	forkFar4, forkFar6 = "10.98.9.1", "fd98:9::1"
	routerHop4         = "10.98.1.2"
	routerHop6         = "fd98:1::2"
	bHop4, bHop6       = "10.98.3.2", "fd98:3::2"
)

func newFork(t *testing.T) *fork {
	needRoot(t)
	f := &fork{network: &network{t: t}}
	for _, s := range []**testbed.Namespace{&f.near, &f.router, &f.a, &f.b, &f.far} {
		*s = f.namespace("ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1", "ipv4/conf/all/rp_filter=0",
			"ipv4/conf/default/rp_filter=0",
			"ipv4/fib_multipath_hash_policy=1", "ipv6/fib_multipath_hash_policy=1")
	}
	// Link i has the subnets 10.98.i.0/24 and fd98:i::/64. Its first side has .1, the second .2.
	for i, link := range [][2]*testbed.Namespace{{f.near, f.router}, {f.router, f.a}, {f.router, f.b}, {f.a, f.far},
		{f.b, f.far}} {
		i++
		name := fmt.Sprint("l", i)
		f.connect(link[0], name, link[1], name)
		for side, n := range link {
			f.link(n, name, func(l netlink.Link) error {
				return errors.Join(address(l, fmt.Sprintf("10.98.%d.%d/24", i, side+1)),
					address(l, fmt.Sprintf("fd98:%d::%d/64", i, side+1)), netlink.LinkSetUp(l))
			})
		}
	}
	f.link(f.far, "lo", func(lo netlink.Link) error {
		return errors.Join(address(lo, forkFar4+"/32"), address(lo, forkFar6+"/128"))
	})
	for far, mid := range map[string]string{forkFar4 + "/32": "10.98.%d.%d", forkFar6 + "/128": "fd98:%d::%d"} {
		at := func(link, side int) string { return fmt.Sprintf(mid, link, side) }
		f.route(f.near, far, at(1, 2))
		f.route(f.router, far, at(2, 2), at(3, 2))
		f.route(f.a, far, at(4, 2))
		f.route(f.b, far, at(5, 2))
		back := "10.98.1.0/24"
		if strings.Contains(far, ":") {
			back = "fd98:1::/64"
		}
		f.route(f.far, back, at(4, 1))
		f.route(f.a, back, at(2, 1))
		f.route(f.b, back, at(3, 1))
	}
	return f
}

// drop makes b send all packets to a MAC address that far does not have; restore removes that.
func (f *fork) drop(restore bool) {
	f.t.Helper()
	f.link(f.b, "l5", func(l netlink.Link) (err error) {
		for _, next := range []string{"10.98.5.2", "fd98:5::2"} {
			n := &netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(next),
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
			if restore {
				err = errors.Join(err, netlink.NeighDel(n))
			} else {
				err = errors.Join(err, netlink.NeighSet(n))
			}
		}
		return err
	})
}

// byPort returns the values of a metric of a target, by source port.
func byPort(v map[string]float64, metric, target string) map[int]float64 {
	out := map[int]float64{}
	for name, value := range v {
		if port, _, ok := portLabel(name, metric, target); ok {
			out[port] = value
		}
	}
	return out
}

// portLabel returns a sample's source port and the labels before it, if it is of that metric and target.
func portLabel(name, metric, target string) (port int, before string, ok bool) {
	labels, ok := strings.CutPrefix(name, metric+"{")
	if !ok {
		return 0, "", false
	}
	if labels, ok = strings.CutSuffix(labels, `",target="`+target+`"}`); !ok {
		return 0, "", false
	}
	before, number, ok := strings.Cut(labels, `source_port="`)
	port, err := strconv.Atoi(number)
	return port, before, ok && err == nil
}

func sum(of map[int]float64) (n float64) {
	for _, v := range of {
		n += v
	}
	return n
}

// One of two equal-cost paths drops all packets: the watch names the source ports whose probes take it and the last hop
// that answers, counts no loss for the others, and notices that it works again. With sockets it needs no privilege.
// From an address that the kernel does not have, there is no trace.
func TestWatchPaths(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args   []string
		user   uint32
		traced bool
	}{
		"sockets":    {[]string{"-transport", "socket"}, 65534, true},
		"afpacket":   {[]string{"-driver", "afpacket"}, 0, true},
		"an address": {[]string{"-driver", "afxdp", "-source", "10.98.1.77", "-source", "fd98:1::77", "-iface", "l1"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testPaths(t, c.user, c.traced, c.args...)
		})
	}
}

func testPaths(t *testing.T, user uint32, traced bool, args ...string) {
	f := newFork(t)
	echo, reflector := f.server(forkFar4+":4100", false), f.server("["+forkFar6+"]:862", true)
	f.user = user
	const ports = 16
	udp, stamp := "udp:"+forkFar4+":4100", "stamp:["+forkFar6+"]:862"
	w := f.watch(9520, append(args, "-target", udp, "-target", stamp, "-rate", "40", "-timeout", "3s", "-source-ports",
		strconv.Itoa(ports))...)
	w.until("all ports are answered", func(v map[string]float64) bool {
		for _, target := range []string{udp, stamp} {
			up := byPort(v, "rebound_path_up", target)
			if len(up) != ports || sum(up) != ports || v[of("rebound_rtt_seconds_count", target)] < 10*ports {
				return false
			}
		}
		return true
	})
	f.drop(false)
	var named map[string][]int
	v := w.until("some ports are down, and each target has a trace", func(v map[string]float64) bool {
		named = map[string][]int{}
		for _, target := range []string{udp, stamp} {
			lost := byPort(v, "rebound_path_lost_total", target)
			for port, up := range byPort(v, "rebound_path_up", target) {
				if up == 0 {
					named[target] = append(named[target], port)
				}
				if up != 0 && lost[port] > 0 || up == 0 && lost[port] < 5 {
					return false
				}
			}
			slices.Sort(named[target])
			if len(named[target]) == 0 || len(named[target]) == ports || traced && len(byPortHop(v, target)) == 0 {
				return false
			}
		}
		return true
	})
	for target, hop := range map[string]string{udp: bHop4, stamp: bHop6} {
		router := map[string]string{udp: routerHop4, stamp: routerHop6}[target]
		if traced {
			w.says(`result="nothing answers after hop 2, ` + hop + `"`)
			w.says(`hops="` + router + " " + hop + `"`)
		} else {
			w.says("no trace of the source port")
		}
		for port, at := range byPortHop(v, target) {
			if !slices.Contains(named[target], port) || at != hop+" 2" {
				t.Errorf("%s: the trace of port %d ends after hop %s, want %s 2", target, port, at, hop)
			}
		}
		check.Equal(t, sum(byPort(v, "rebound_path_lost_total", target)), v[of("rebound_lost_total", target)],
			target+": %v lost by port")
		check.Equal(t, sum(byPort(v, "rebound_path_probes_total", target)), v[of("rebound_probes_total", target)],
			target+": %v sent by port")
		if v[of("rebound_target_up", target)] != 1 || v[of("rebound_replies_trouble_total", target, `kind="corrupt"`)]+
			v[of("rebound_replies_trouble_total", target, `kind="duplicate"`)]+
			v[of("rebound_replies_trouble_total", target, `kind="icmp_error"`)] != 0 {
			t.Errorf("%s: %v", target, v)
		}
		for _, port := range named[target] {
			w.says(fmt.Sprintf("target=%s source_port=%d", target, port))
		}
	}
	for target, server := range map[string]*portServer{udp: echo, stamp: reflector} {
		server.forget()
		missing := func() (ports []int) {
			for port := range byPort(v, "rebound_path_up", target) {
				if server.count(port) == 0 {
					ports = append(ports, port)
				}
			}
			slices.Sort(ports)
			return ports
		}
		await.Until(t, "the target receives probes from all other ports",
			func() bool { return slices.Equal(missing(), named[target]) },
			func() string {
				return fmt.Sprintf("%s: ports %v are named, nothing arrives from %v", target, named[target], missing())
			})
	}
	f.drop(true)
	w.until("all ports are answered again", func(v map[string]float64) bool {
		return sum(byPort(v, "rebound_path_up", udp)) == ports && sum(byPort(v, "rebound_path_up", stamp)) == ports
	})
	forward, backward := of("rebound_lost_oneway_total", stamp, `direction="forward"`),
		of("rebound_lost_oneway_total", stamp, `direction="backward"`)
	w.until("all loss was on the way there", func(v map[string]float64) bool {
		return v[forward] > 0 && v[forward] == v[of("rebound_lost_total", stamp)] && v[backward] == 0
	})
	w.end()
	t.Log(w.Log.String())
}

// byPortHop returns the last hop of each trace of a target and its number, by source port.
func byPortHop(v map[string]float64, target string) map[int]string {
	out := map[int]string{}
	for name, value := range v {
		if port, before, ok := portLabel(name, "rebound_path_last_hop", target); ok {
			_, hop, _ := strings.Cut(before, `hop="`)
			hop, _, _ = strings.Cut(hop, `"`)
			out[port] = fmt.Sprint(hop, " ", value)
		}
	}
	return out
}

// portServer answers UDP, and counts datagrams by source port.
type portServer struct {
	mu  sync.Mutex
	got map[int]uint32
}

func (s *portServer) forget() { s.mu.Lock(); defer s.mu.Unlock(); clear(s.got) }

func (s *portServer) count(port int) uint32 { s.mu.Lock(); defer s.mu.Unlock(); return s.got[port] }

// server starts an echo server in far, or a STAMP reflector that counts the packets from each source port.
func (f *fork) server(address string, stamp bool) *portServer {
	f.t.Helper()
	s, sessions := &portServer{got: map[int]uint32{}}, map[uint16]uint32{}
	serveUDP(f.t, f.far, address, func(b []byte, from netip.AddrPort) []byte {
		s.mu.Lock()
		s.got[int(from.Port())]++
		s.mu.Unlock()
		if !stamp {
			return b
		}
		sessions[from.Port()]++
		return stampReply(b, sessions[from.Port()]-1)
	})
	return s
}
