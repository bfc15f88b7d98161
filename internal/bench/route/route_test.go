package route_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// TestFind compares the path to a target with the kernel's route, for everything that the kernel's choice depends on.
// docs/use/measure.md has the same rows.
func TestFind(t *testing.T) {
	needs.Root(t, "network namespaces")
	needs.Programs(t, "ip")
	of := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	const one, two = "10.1.0.1", "10.2.0.1" // routers on the interfaces one and two
	n := must.Get(testbed.NewNamespace())(t)
	defer n.Close()
	must.OK(t, n.Do(func() error {
		return batch(4, "link add one type veth peer name two", "tuntap add mode tun dev three",
			"tuntap add mode tun dev four", "link set lo up",
			"addr add 10.1.0.9/24 dev one", "addr add fd01::9/64 dev one nodad", "addr add 10.2.0.9/24 dev two",
			"addr add fd02::9/64 dev two nodad",
			"link set one addrgenmode none up", "link set two addrgenmode none up", "addr add fe80::9/64 dev two nodad",
			"addr add 10.3.0.9/24 dev three", "link set three up", "route add default via "+one)
	}))
	for _, c := range []struct {
		name   string
		ip     []string // commands of ip
		target string
		with   route.Constraints
		want   string // interface, next hop, source and MTU, and why there are no frames; or a part of the error
	}{
		{"on the link", nil, "10.1.0.5", route.Constraints{}, "one 10.1.0.5 10.1.0.9 1500"},
		{"a router", nil, "10.9.9.9", route.Constraints{}, "one 10.1.0.1 10.1.0.9 1500"},
		{"IPv6", nil, "fd01::5", route.Constraints{}, "one fd01::5 fd01::9 1500"},
		{"IPv4 through an IPv6 router", []string{"route add 10.7.0.0/16 via inet6 fe80::1 dev two"}, "10.7.0.1", route.Constraints{}, "two fe80::1 10.2.0.9 1500"},
		{"preferred source", []string{"route add 10.7.0.0/16 via " + two + " src 10.1.0.9"}, "10.7.0.1", route.Constraints{}, "two 10.2.0.1 10.1.0.9 1500"},
		{"longest prefix", []string{"route add 10.7.0.0/16 via " + two, "route add 10.7.1.0/24 via " + one}, "10.7.1.1", route.Constraints{}, "one 10.1.0.1 10.1.0.9 1500"},
		{"lowest metric", []string{"route add 10.7.0.0/16 via " + two + " metric 9", "route add 10.7.0.0/16 via " + one + " metric 10"}, "10.7.1.1", route.Constraints{}, "two 10.2.0.1 10.2.0.9 1500"},
		{"interface", nil, "10.9.9.9", route.Constraints{Interface: "two"}, "two 10.9.9.9 10.2.0.9 1500"},
		{"interface with a route", []string{"route add default via " + two + " metric 9"}, "10.9.9.9", route.Constraints{Interface: "two"}, "two 10.2.0.1 10.2.0.9 1500"},
		{"gateway", nil, "10.9.9.9", route.Constraints{Gateway: of(two)}, "two 10.2.0.1 10.2.0.9 1500"},
		{"IPv6 gateway of an IPv4 target", nil, "10.9.9.9", route.Constraints{Gateway: of("fe80::1%two")}, "two fe80::1%two 10.2.0.9 1500"},
		{"rule by source", []string{"rule add from 10.2.0.9 table 7", "route add default via " + two + " table 7"},
			"10.9.9.9",
			route.Constraints{Source: of("10.2.0.9")}, "two 10.2.0.1 10.2.0.9 1500"},
		{"rule by the source that the kernel chooses", []string{"rule add from 10.1.0.9 table 7",
			"route add default via " + two + " table 7"}, "10.9.9.9",
			route.Constraints{}, "two 10.2.0.1 10.1.0.9 1500"},
		{"rule by source, IPv6", []string{"rule add from fd02::9 table 7", "route add default via fd02::1 table 7"},
			"fd99::9",
			route.Constraints{Source: of("fd02::9")}, "two fd02::1 fd02::9 1500"},
		{"a source that the kernel does not have", []string{"rule add from 10.2.0.77 table 7",
			"route add default via " + two + " table 7"}, "10.9.9.9",
			route.Constraints{Source: of("10.2.0.77")}, "one 10.1.0.1 10.2.0.77 1500"},
		{"DSCP, not ECN", []string{"rule add tos 0x10 table 7", "route add default via " + two + " table 7"}, "10.9.9.9", route.Constraints{TOS: 0x13}, "two 10.2.0.1 10.2.0.9 1500"},
		{"another DSCP", []string{"rule add tos 0x10 table 7", "route add default via " + two + " table 7"}, "10.9.9.9", route.Constraints{TOS: 0x08}, "one 10.1.0.1 10.1.0.9 1500"},
		{"this user", []string{"rule add uidrange 0-0 table 7", "route add default via " + two + " table 7"}, "10.9.9.9", route.Constraints{}, "two 10.2.0.1 10.2.0.9 1500"},
		{"no mark", []string{"rule add fwmark 0/1 table 7", "route add default via " + two + " table 7"}, "10.9.9.9", route.Constraints{}, "two 10.2.0.1 10.2.0.9 1500"},
		{"a mark", []string{"rule add fwmark 1 table 7", "route add default via " + two + " table 7"}, "10.9.9.9", route.Constraints{}, "one 10.1.0.1 10.1.0.9 1500"},
		{"protocol and port", []string{"rule add ipproto udp dport 862 table 7",
			"route add default via " + two + " table 7"}, "10.9.9.9",
			route.Constraints{Protocol: unix.IPPROTO_UDP, Port: 862}, "two 10.2.0.1 10.2.0.9 1500"},
		{"another port", []string{"rule add ipproto udp dport 862 table 7",
			"route add default via " + two + " table 7"}, "10.9.9.9",
			route.Constraints{Protocol: unix.IPPROTO_UDP, Port: 7}, "one 10.1.0.1 10.1.0.9 1500"},
		{"ICMP", []string{"rule add ipproto icmp table 7", "route add default via " + two + " table 7"}, "10.9.9.9",
			route.Constraints{Protocol: unix.IPPROTO_ICMP}, "two 10.2.0.1 10.2.0.9 1500"},
		{"ICMPv6", []string{"route add default via fd02::1 table 7", "rule add ipproto ipv6-icmp table 7"}, "fd99::9",
			route.Constraints{Protocol: unix.IPPROTO_ICMPV6}, "two fd02::1 fd02::9 1500"},
		{"prohibit", []string{"route add prohibit 10.7.0.0/16"}, "10.7.0.1", route.Constraints{}, "no route: a route or a rule of the kernel prohibits it (ip route get 10.7.0.1)"},
		{"prohibit on an interface", []string{"route add prohibit 10.7.0.0/16"}, "10.7.0.1", route.Constraints{Interface: "two"}, "two 10.7.0.1 10.2.0.9 1500"},
		{"prohibit, IPv6", []string{"route add prohibit fd07::/16"}, "fd07::1", route.Constraints{}, "prohibits it"},
		{"prohibit on an interface, IPv6", []string{"route add prohibit fd07::/16"}, "fd07::1", route.Constraints{Interface: "two", Source: of("fd02::9")}, "prohibits it"},
		{"a rule that prohibits", []string{"rule add to 10.7.0.0/16 prohibit"}, "10.7.0.1", route.Constraints{}, "prohibits it"},
		{"blackhole", []string{"route add blackhole 10.7.0.0/16"}, "10.7.0.1", route.Constraints{}, "discards its packets (blackhole)"},
		{"blackhole, IPv6", []string{"route add blackhole fd07::/16"}, "fd07::1", route.Constraints{}, "discards its packets (blackhole)"},
		{"unreachable", []string{"route add unreachable 10.7.0.0/16"}, "10.7.0.1", route.Constraints{}, "declares it unreachable"},
		{"unreachable, IPv6", []string{"route add unreachable fd07::/16"}, "fd07::1", route.Constraints{}, "declares it unreachable"},
		{"throw", []string{"rule add table 7", "route add throw 10.7.0.0/16 table 7"}, "10.7.0.1", route.Constraints{}, "one 10.1.0.1 10.1.0.9 1500"},
		{"none", []string{"route del default via " + one}, "10.9.9.9", route.Constraints{}, "no route: add one, or set -iface and -source"},
		{"none, IPv6", nil, "fd99::9", route.Constraints{}, "no route: add one, or set -iface and -source"},
		{"none, on an interface", nil, "fd99::9", route.Constraints{Interface: "two", Source: of("fd99::1")}, "two fd99::9 fd99::1 1500"},
		{"broadcast", nil, "10.1.0.255", route.Constraints{}, "it is a broadcast address"},
		{"an address of this host", nil, "10.1.0.9", route.Constraints{Interface: "one"}, "lo 10.1.0.9 10.1.0.9 65536: 10.1.0.9 is reached through the loopback interface lo"},
		{"MTU of the route", []string{"route add 10.7.0.0/16 via " + two + " mtu 1400"}, "10.7.0.1", route.Constraints{}, "two 10.2.0.1 10.2.0.9 1400"},
		{"MTU of the route, IPv6", []string{"route add fd07::/16 via fd02::1 mtu 1400"}, "fd07::1", route.Constraints{}, "two fd02::1 fd02::9 1400"},
		{"MTU above the interface's", []string{"route add 10.7.0.0/16 via " + two + " mtu 9000"}, "10.7.0.1", route.Constraints{}, "two 10.2.0.1 10.2.0.9 1500"},
		{"encapsulation", []string{"route add 10.7.0.0/16 encap ip id 5 dst 10.2.0.1 dev two"}, "10.7.0.1", route.Constraints{},
			"two 10.7.0.1 10.2.0.9 1500: the route to 10.7.0.1 encapsulates packets (ip), which only the kernel does"},
		{"encapsulation, IPv6", []string{"route add fd07::/16 encap seg6 mode encap segs fd02::1 dev two"}, "fd07::1", route.Constraints{},
			"two fd07::1 fd02::9 1500: the route to fd07::1 encapsulates packets (seg6), which only the kernel does"},
		{"VRF", []string{"link add red type vrf table 7", "link set red up", "link set two master red"}, "10.2.0.5", route.Constraints{Interface: "red"}, "two 10.2.0.5 10.2.0.9 1500"},
		{"zone", nil, "fe80::1%two", route.Constraints{}, "two fe80::1%two fe80::9 1500"},
		{"numeric zone", nil, "fe80::1%2", route.Constraints{}, "two fe80::1%2 fe80::9 1500"},
		{"zone of no interface", nil, "fe80::1%77", route.Constraints{}, "interface 77: no such interface"},
		{"zone of another interface", nil, "fe80::1%2", route.Constraints{Interface: "one"}, "the zone of fe80::1%2 is two, not one"},
		{"an interface that is down", nil, "10.4.0.1", route.Constraints{Interface: "four"}, "interface four: interface is down"},
		{"no interface", nil, "10.1.0.5", route.Constraints{Interface: "five"}, "interface five: no such interface"},
		{"zone of a gateway", nil, "10.1.0.5", route.Constraints{Interface: "one", Gateway: of("fe80::1%two")}, "the zone of fe80::1%two is two, not one"},
		{"source of another family", nil, "10.1.0.5", route.Constraints{Source: of("fd01::9")}, "source fd01::9 and target 10.1.0.5 are of different families"},
		{"no source of the family", nil, "fd07::1", route.Constraints{Gateway: of("10.3.0.1")}, "interface three has none for fd07::1: set -source"},
		{"IPv4 gateway of an IPv6 target", nil, "fd07::1", route.Constraints{Gateway: of("10.2.0.1")}, "two 10.2.0.1 fd02::9 1500"},
		{"IPv4 in IPv6", nil, "::ffff:10.1.0.5", route.Constraints{}, "one 10.1.0.5 10.1.0.9 1500"},
		{"no Ethernet", nil, "10.3.0.1", route.Constraints{}, "three 10.3.0.1 10.3.0.9 1500: interface three carries no Ethernet frames (its link type is none)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			family := 4
			if of(c.target).Is6() {
				family = 6
			}
			undo := slices.Clone(c.ip)
			slices.Reverse(undo)
			swap := strings.NewReplacer(" add ", " del ", " del ", " add ")
			for i := range undo {
				undo[i] = swap.Replace(undo[i])
			}
			err := n.Do(func() error { return batch(family, c.ip...) })
			if err != nil && (strings.Contains(err.Error(), "encapsulation type not supported") ||
				strings.Contains(err.Error(), "Unknown device type")) {
				t.Skip(err)
			}
			must.OK(t, err)
			var p route.Path
			err = n.Do(func() (err error) { p, err = route.Find(of(c.target), c.with); return err })
			must.OK(t, n.Do(func() error { return batch(family, undo...) }))
			if err != nil {
				check.Contains(t, err.Error(), c.want)
				return
			}
			got := fmt.Sprint(p.Interface, " ", p.Next, " ", p.Source, " ", p.MTU)
			if why := p.NoFrames(of(c.target)); why != nil {
				got += ": " + why.Error()
			}
			if got != c.want && !(strings.Contains(c.want, ": ") && strings.HasPrefix(got, c.want)) {
				t.Errorf("%s\nwant %s", got, c.want)
			}
		})
	}
}

// Of several next hops the kernel's is used: that of a connected socket, which depends on the source too.
func TestMultipath(t *testing.T) {
	needs.Root(t, "network namespaces")
	needs.Programs(t, "ip")
	n := must.Get(testbed.NewNamespace())(t)
	defer n.Close()
	hops := map[string]int{}
	must.OK(t, n.Do(func() error {
		if err := batch(4, "link add one type veth peer name two", "addr add 10.1.0.9/24 dev one",
			"addr add 10.2.0.9/24 dev two", "link set one up", "link set two up",
			"route add 10.7.0.0/16 nexthop via 10.1.0.1 nexthop via 10.2.0.1"); err != nil {
			return err
		}
		for i := range 32 {
			to := netip.AddrFrom4([4]byte{10, 7, 0, byte(i)})
			p, err := route.Find(to, route.Constraints{})
			if err != nil {
				return err
			}
			out, err := exec.Command("ip", "route", "get", to.String(), "from", p.Source.String()).Output()
			if want := fmt.Sprintf(" via %v dev %s ", p.Next, p.Interface); err != nil ||
				!strings.Contains(string(out), want) {
				t.Errorf("%v: %q, the kernel has %s%v", to, want, out, err)
			}
			hops[p.Next.String()]++
		}
		return nil
	}))
	check.Equal(t, len(hops), 2, "%d next hops")
}

// What the kernel knows about neighbours, and whether it may be asked.
func TestKernelsNeighbours(t *testing.T) {
	needs.Root(t, "network namespaces")
	needs.Programs(t, "ip")
	n := must.Get(testbed.NewNamespace())(t)
	defer n.Close()
	must.OK(t, n.Do(func() error {
		if err := batch(4, "link add one type veth peer name two", "link set one up", "link set two up",
			"addr add 10.1.0.9/24 dev one", "addr add fd01::9/64 dev one nodad", "addr add fd01::8/64 dev one nodad",
			"neigh add 10.1.0.1 lladdr 02:00:00:00:00:01 dev one nud permanent",
			"neigh add 10.1.0.2 lladdr 02:00:00:00:00:02 dev one nud noarp",
			"neigh add 10.1.0.3 lladdr 02:00:00:00:00:03 dev one nud reachable",
			"neigh add 10.1.0.4 lladdr 02:00:00:00:00:04 dev one nud stale",
			"neigh add 10.1.0.5 lladdr 02:00:00:00:00:05 dev one nud failed",
			"neigh add fd01::1 lladdr 02:00:00:00:00:06 dev one nud permanent"); err != nil {
			return err
		}
		four, err := route.Find(netip.MustParseAddr("10.1.0.1"), route.Constraints{})
		must.OK(t, err)
		for _, c := range []struct{ next, want string }{
			{"10.1.0.1", "020000000001 true"}, {"10.1.0.2", "020000000002 true"}, {"10.1.0.3", "020000000003 false"},
			{"10.1.0.4", "020000000004 false"}, {"10.1.0.5", "unknown"}, {"10.1.0.6", "unknown"},
			{"fd01::1", "020000000006 true"}, {"fd01::2", "unknown"},
		} {
			p := four
			p.Next = netip.MustParseAddr(c.next)
			all := route.Neighbours(p.Index, p.Next.Is6())
			one, ok := p.Known()
			entry, also := all[p.Next]
			got := "unknown"
			if ok {
				got = fmt.Sprintf("%x %t", one.MAC, one.Permanent)
			}
			if got != c.want || ok != also || one.MAC != entry.MAC || one.Permanent != entry.Permanent {
				t.Errorf("%s: %s, want %s; in the table %+v, %t", c.next, got, c.want, entry, also)
			}
			if from, _, ok := route.Announced(p.Asker(p.MAC).Ask(p.Next)); p.Next.Is4() &&
				(!ok || from != p.Source) {
				t.Errorf("asked from %v, %t", from, ok)
			} else if q := p.Asker(p.MAC).Ask(p.Next); p.Next.Is6() &&
				[16]byte(q[22:38]) != netip.MustParseAddr("fd01::9").As16() &&
				[16]byte(q[22:38]) != netip.MustParseAddr("fd01::8").As16() {
				t.Errorf("asked %x", q)
			}
		}
		four.Next = netip.MustParseAddr("10.1.0.7")
		must.OK(t, four.AskKernel())
		four.Index = 99
		check.Fails(t, "no interface", four.AskKernel(), nil)
		check.Same(t, (&route.Path{}).Bypassed(false), nil, "%q")
		unknown := (&route.Path{Interface: "five", Index: 5}).Bypassed(false)
		check.Contains(t, strings.Join(unknown, ""), "unknown whether raw frames bypass")
		return nil
	}))
}

// batch runs commands of ip in the calling thread's network namespace. The family is that of rules.
func batch(family int, commands ...string) error {
	args := []string{"-batch", "-"}
	if family == 6 {
		args = append(args, "-6")
	}
	c := exec.Command("ip", args...)
	c.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %q: %w: %s", commands, err, out)
	}
	return nil
}
