package mlx4_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim/fabric"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// Echoes of IPv4 and IPv6, ICMP and UDP, over every path to the wire return unchanged to the LID, service level and
// queue pair of their sender, with a GRH if the request had one. Requests to a group are not answered.
func TestInfiniBandEchoes(t *testing.T) {
	for _, push := range []string{"full", "off"} {
		x := newSubnetRig(t, mlx4sim.Options{})
		x.own.Push = push
		x.Open(nic.Options{})
		i := x.Dev.Info()
		check.Contains(t, list(i.Notes),
			"link layer InfiniBand, state active", "LID 0x2, subnet manager at LID 0x1",
			"with MTU 2044, hardware address")
		check.Equal(t, i.MTU, 2044, "MTU %d")
		for _, n := range []int{28, 56, 60, 84, 176, 177, 500, 1500, 2044} {
			for _, global := range []bool{false, true} {
				for name, p := range map[string][]byte{"icmp4": ping4(n), "icmp6": packet6(58, max(n, 48)),
					"udp6": packet6(17, max(n, 48))} {
					at := 4 + 20 + 8
					if name != "icmp4" {
						at = 4 + 40 + 8
					}
					if got := x.answer(p, global); !bytes.Equal(got[:4], p[:4]) || !bytes.Equal(got[at:], p[at:]) {
						t.Errorf("%s of %d bytes comes back as\n% x\n% x", name, n, got, p)
					}
				}
			}
		}
		check.Equal(t, x.fabric.Multicast(fabric.Broadcast, ping4(84)), 1, "%d members of the broadcast group")
		x.Settle()
		if got := x.fabric.Received(); len(got) != 0 || x.Resp[0].Stats()[fastpath.RefusedMAC] != 1 {
			t.Errorf("a ping to the group: %v, %v", got, x.Resp[0].Stats())
		}
		x.Close()
		check.Equal(t, x.fabric.Leaves, 3, "%d of 3 groups were left")
	}
}

// testPacket returns a UDP header and n bytes of a STAMP test packet (RFC 8762 §4.2.1).
func testPacket(n int) []byte {
	d := make([]byte, 8+n)
	copy(d, []byte{0x9C, 0x40, 3, 0x5E, byte((8 + n) >> 8), byte(8 + n), 0, 0, 0, 0, 0, 42, 0xE8, 0xD4, 0xA5, 0x0F,
		0x11, 0x22, 0x33, 0x44, 0x9F, 1})
	for i := 8 + 44; i < len(d); i++ {
		d[i] = byte(i)
	}
	return d
}

// STAMP over IPoIB, IPv4 and IPv6: the reflected test packet is right byte for byte, inline and by pointer, with and
// without a GRH, and its timestamps are those of the pass that answered it.
func TestInfiniBandSTAMP(t *testing.T) {
	for _, push := range []string{"full", "off"} {
		x := newSubnetRig(t, mlx4sim.Options{})
		x.own.Push = push
		x.Open(nic.Options{})
		var clock atomic.Pointer[fastpath.Clock]
		const now = 0xE8D4A51080000000
		clock.Store(&fastpath.Clock{NTP: now, ErrorEstimate: 0x8587}) // it stalls
		c := *answering()
		c.STAMPPorts, c.Clock = []uint16{862}, &clock
		x.respond(c)
		for far, ours := range map[netip.Addr]netip.Addr{far4: our4.Addr(), far6: our6.Addr()} {
			for _, n := range []int{44, 48, 100, 128, 148, 149, 600, 1400} {
				d := testPacket(n)
				m := d[8:]
				request := udp(far, ours, 57, d)
				copy(d, []byte{3, 0x5E, 0x9C, 0x40})
				be.PutUint64(m[4:], now)               // T3
				copy(m[12:], []byte{0x85, 0x87, 0, 0}) // error estimate
				be.PutUint64(m[16:], now)              // T2
				copy(m[24:], []byte{0, 0, 0, 42, 0xE8, 0xD4, 0xA5, 0x0F, 0x11, 0x22, 0x33, 0x44, 0x9F, 1, 0, 0, 57, 0,
					0, 0})
				for _, global := range []bool{false, true} {
					check.Same(t, x.answer(request, global), udp(ours, far, 56, d),
						fmt.Sprintf("%d bytes, push %s:\n%%x", n, push))
				}
			}
			base := polling.TSC()
			clock.Store(&fastpath.Clock{TSC: base, NTP: 1 << 40, Rate: 1 << 32}) // a unit a tick
			request := udp(far, ours, 57, testPacket(44))
			before := polling.TSC()
			x.Resp[0].Loop.Begin() // T2 is the start of the pass
			reply := x.answer(request, false)
			after := polling.TSC()
			m := reply[len(reply)-44:]
			t3, t2 := be.Uint64(m[4:])-1<<40+base, be.Uint64(m[16:])-1<<40+base
			if before > t2 || t2 > t3 || t3 > after {
				t.Errorf("from %v: called at %d, T2 %d, T3 %d, returned at %d", far, before, t2, t3, after)
			}
			clock.Store(&fastpath.Clock{NTP: now, ErrorEstimate: 0x8587})
		}
		if s := x.Resp[0].Stats(); s[fastpath.AnsweredSTAMPv4] != 8*2+1 || s[fastpath.AnsweredSTAMPv6] != 8*2+1 ||
			s.Refused() != 0 {
			t.Errorf("push %s: %v", push, s)
		}
		x.Close()
	}
}

var solicitedGroup = [16]byte{0xFF, 0x12, 0x60, 0x1B, 0xFF, 0xFF, 11: 1, 12: 0xFF, 15: 2}
var allNodesGroup = [16]byte{0xFF, 0x12, 0x60, 0x1B, 0xFF, 0xFF, 15: 1}

// ARP on the broadcast group and neighbour discovery on the solicited-node group are answered to the sender with
// hardware addresses of 20 bytes; duplicate address detection is answered to all nodes.
func TestInfiniBandNeighbours(t *testing.T) {
	x := newSubnetRig(t, mlx4sim.Options{})
	x.Open(nic.Options{})
	host, gid := x.fabric.HostGID(), x.fabric.Ports[0].GID(x.fabric)
	address := func(qpn uint32, gid [16]byte) []byte { return append(be.AppendUint32(nil, qpn), gid[:]...) }
	arp := func(op byte, from []byte, fromIP byte, to []byte, toIP byte) []byte {
		return ipoib(0x0806, slices.Concat([]byte{0, 32, 8, 0, 20, 4, 0, op}, from, []byte{10, 0, 0, fromIP}, to,
			[]byte{10, 0, 0, toIP}))
	}
	x.fabric.Multicast(fabric.Broadcast, arp(1, address(fabric.HostQP, host), 1, make([]byte, 20), 2))
	k := x.reply()
	if want := arp(2, address(x.qpn, gid), 2, address(fabric.HostQP, host), 1); !bytes.Equal(k.Payload, want) ||
		k.DLID != 1 || k.DQP != fabric.HostQP {
		t.Errorf("%+v\nwant % x", k, want)
	}
	x.fabric.Multicast(fabric.Broadcast, arp(1, address(fabric.HostQP, host), 1, make([]byte, 20), 3))
	x.Settle()
	check.Equal(t, len(x.fabric.Received()), 0, "%d replies to ARP for another")
	solicit := func(from netip.Addr, option ...byte) []byte {
		m := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, our6.Addr().AsSlice()...)
		return ip6(from, solicited, 58, 255, append(m, option...), 2)
	}
	source := append([]byte{1, 3, 0, 0}, address(fabric.HostQP, host)...)
	must.Equal(t, x.fabric.Multicast(solicitedGroup, solicit(far6, source...)), 1,
		"%d members of the solicited-node group")
	k = x.reply()
	m := k.Payload[44:]
	if len(m) != 48 || m[0] != 136 || m[4] != 0x60 || !bytes.Equal(m[24:],
		append([]byte{2, 3, 0, 0}, address(x.qpn, gid)...)) || k.DLID != 1 || k.DQP != fabric.HostQP {
		t.Errorf("advertisement % x to %+v", m, k)
	}
	check.Equal(t, cksum.Sum(k.Payload[12:], 58+48), 0xFFFF, "the advertisement sums to %#x")
	x.fabric.Multicast(solicitedGroup, solicit(netip.IPv6Unspecified()))
	k = x.reply()
	if g := x.fabric.Groups[allNodesGroup]; g == nil || k.DLID != g.MLID || k.DQP != 0xFFFFFF ||
		!bytes.Equal(k.GRH[24:], allNodesGroup[:]) ||
		!bytes.Equal(k.Payload[44+24:], append([]byte{2, 3, 0, 0}, address(x.qpn, gid)...)) {
		t.Errorf("%+v", k)
	}
	x.Close()
}

// Without a subnet manager, or if subnet administration does not answer or refuses, the port opens, one log line says
// what it waits for, and it continues when that arrives.
func TestNoSubnetManager(t *testing.T) {
	mlx4.SetAdministration(t, 20*time.Millisecond, 50*time.Millisecond)
	for name, c := range map[string]struct {
		spoil, repair func(f *fabric.Fabric)
		says          string
	}{
		"no manager": {func(f *fabric.Fabric) { f.Absent = true }, func(f *fabric.Fabric) { f.Absent = false }, "no subnet manager has configured the port: waiting for one"},
		"deaf":       {func(f *fabric.Fabric) { f.DropReceives = true }, func(f *fabric.Fabric) { f.DropReceives = false }, "the port is active, and subnet administration does not answer: retrying"},
		"no group": {func(f *fabric.Fabric) { delete(f.Groups, fabric.Broadcast) }, func(f *fabric.Fabric) {
			f.Groups[fabric.Broadcast] = &fabric.Group{MLID: 0xC000, QKey: f.QKey, Members: map[[16]byte]bool{}}
		}, "status 0x0200: the request is invalid"},
		"denied": {func(f *fabric.Fabric) { f.Refuse = func([]byte) uint16 { return 7 << 8 } }, func(f *fabric.Fabric) { f.Refuse = nil }, "status 0x0700: the request is denied"},
	} {
		x := newSubnetRig(t, mlx4sim.Options{})
		c.spoil(x.fabric)
		must.OK(t, x.TryOpen(nic.Options{Match: answering()}))
		x.until(name, func() bool { return strings.Contains(x.Logs.String(), c.says) })
		x.Busy(func() { x.stepped(func() { mlx4.Looks(x.Dev, 3) }) }) // for a second line, if there is one
		x.Busy(func() {
			l, err := x.Dev.Link()
			if n := strings.Count(x.Logs.String(), c.says); n != 1 || l.Up || err != nil || l.Waits == "" ||
				!strings.Contains(x.Logs.String(), l.Waits) {
				t.Errorf("%s: said %d times, link %v, %v\n%s", name, n, l, err, x.Logs.String())
			}
		})
		x.change(c.repair)
		x.attach()
		x.answer(ping4(84), false)
		x.Close()
	}
}

// The driver follows changes by a subnet manager: a new LID, a new manager, a request to register again, and the port
// down and up.
func TestSubnetChanges(t *testing.T) {
	needs.Long(t)
	x := newSubnetRig(t, mlx4sim.Options{})
	x.Open(nic.Options{})
	p := x.fabric.Ports[0]
	joins := func() (n int) {
		x.change(func(f *fabric.Fabric) { n = f.Joins[fabric.Broadcast] })
		return n
	}
	x.Served(func() {
		x.Answers(84)
		// joined makes a change and waits until the port is a member of all groups again. A join interrupted by the
		// next change fails and is retried, so the total number of joins varies.
		joined := func(name string, change func(f *fabric.Fabric)) {
			before, made, at := x.extra(name), x.extra("group_joins"), joins()
			x.change(change)
			x.Await(func() bool { return x.extra(name) > before && x.extra("group_joins") > made && joins() > at })
		}
		joined("lid_changes", func(f *fabric.Fabric) { p.LID = 9; f.Configure(p, 4, 0) })
		x.Answers(84)
		joined("subnet_manager_changes", func(f *fabric.Fabric) { f.Manager = 5; f.Configure(p, 4, 0) })
		x.Answers(300)
		joined("subnet_changes", func(f *fabric.Fabric) { f.Configure(p, 4, 0x80) })
		x.Answers(84)
		x.Far.SetUp(false)
		x.Await(func() bool { l, err := x.Dev.Link(); return err == nil && !l.Up })
		x.Await(func() bool { return strings.Contains(x.Logs.String(), "state=down") })
		x.Far.SetUp(true)
		x.Await(func() bool { l, err := x.Dev.Link(); return err == nil && l.Up && l.Speed > 0 })
		x.Answers(84)
	})
	if s := x.Stats(); s.Resets != 0 || s.Extra["group_joins"] < 5 || s.Extra["subnet_requests"] == 0 ||
		s.Extra["subnet_requests_unanswered"] != 0 ||
		s.RxFrames == 0 || s.TxFrames == 0 || s.Extra["unknown_events"] != 0 {
		t.Errorf("%+v", s)
	}
	check.Contains(t, x.Logs.String(),
		"the port has another LID", "the subnet has another manager", "asks for memberships to be made again",
		"state=down")
	x.Settle()
	x.Close()
}

// A fault of the device is logged, counted, and repaired by a restart, after which the port is a member again.
func TestInfiniBandRecovery(t *testing.T) {
	needs.Long(t)
	for name, c := range map[string]struct {
		spoil func(x *subnetRig)
		says  string
	}{
		"send error":    {func(x *subnetRig) { x.model.FailNextSend(0x04) }, "send completion with error: syndrome 0x04 local protection error"},
		"receive error": {func(x *subnetRig) { x.model.FailNextReceive(0x01) }, "receive completion with error: syndrome 0x01 local length error"},
		"catastrophe":   {func(x *subnetRig) { x.model.Catastrophe(0xBAD) }, "buffer of catastrophic errors 00000bad"},
		"Q_Key": {func(x *subnetRig) {
			x.change(func(f *fabric.Fabric) {
				f.QKey = 0x1234
				f.Groups[fabric.Broadcast].QKey = 0x1234
				f.Configure(f.Ports[0], 4, 0x80)
			})
		}, "IPoIB's broadcast group has Q_Key 0x1234, had 0xb1b"},
	} {
		t.Run(name, func(t *testing.T) {
			x := newSubnetRig(t, mlx4sim.Options{})
			x.Open(nic.Options{})
			x.Served(func() {
				x.Answers(84)
				c.spoil(x)
				x.Await(func() bool {
					x.fabric.Send(0, x.qpn, ping4(84), nil)
					return strings.Contains(x.Logs.String(), c.says)
				})
				x.Counts(func(s nic.Stats) bool { return s.Resets == 1 })
				// The card was reset, so the subnet manager sees a new port.
				x.change(func(f *fabric.Fabric) { f.Ports[0].Forget() })
				x.Answers(84)
				x.Answers(1000)
			})
			x.Port.ForgetViolations() // of datagrams in flight
			x.Settle()
			x.Close()
		})
	}
}

// Each command that firmware may refuse while an InfiniBand port is opened is an error that names it; nothing is left
// of the attempt.
func TestEachInfiniBandCommandRefused(t *testing.T) {
	for _, bad := range []uint16{0x24, 0x0C, 0x09, 0x23, 0x16} {
		x := newSubnetRig(t, mlx4sim.Options{Status: func(op uint16) uint8 {
			return map[bool]uint8{true: 3}[op == bad]
		}})
		x.Refuses(nic.Options{}, nic.ErrHardware, fmt.Sprintf("(%#x)", bad))
		x.Port.ForgetViolations()
	}
	for _, bad := range []uint16{0x25, 0x26, 0x27} { // once the port is a member: logged once, retried
		var refuse atomic.Bool
		refuse.Store(true)
		x := newSubnetRig(t, mlx4sim.Options{Status: func(op uint16) uint8 {
			return map[bool]uint8{true: 3}[op == bad && refuse.Load()]
		}})
		must.OK(t, x.TryOpen(nic.Options{}))
		x.until("the refusal", func() bool {
			return strings.Contains(x.Logs.String(), "the groups of IPoIB were not joined: trying on") &&
				strings.Contains(x.Logs.String(), fmt.Sprintf("(%#x)", bad))
		})
		refuse.Store(false)
		x.until("the link is up", func() bool { l, err := x.Dev.Link(); return err == nil && l.Up })
		x.Close()
	}
}
