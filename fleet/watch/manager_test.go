package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

// managed is a manager whose loop is not running: the test plays it.
type managed struct {
	*manager
	log *lockedText
}

func newManaged(t *testing.T, o Options, names ...string) *managed {
	t.Helper()
	m := &managed{log: &lockedText{}}
	o.Log = slog.New(slog.NewTextHandler(m.log, nil))
	o.Timeout = time.Second
	w := &watch{options: o, start: noon, archive: newArchive(time.Minute, nil, 0, noon, o.Log),
		fleet: newFleet(0, "", o.Log)}
	w.archive.timeout = o.Timeout
	w.loop = newLoop(must.Get(latency.NewClock())(t), 1<<12, o.Timeout, true, new(atomic.Bool))
	m.manager = newManager(w, nil)
	m.watched(t, names...)
	return m
}

// watched are the targets from now on, each probed once a second unless its text says otherwise.
func (m *managed) watched(t *testing.T, names ...string) {
	t.Helper()
	o := &m.options.Sources
	o.List, o.Defaults.Probes.Interval = filepath.Join(t.TempDir(), "list"), time.Second
	must.OK(t, os.WriteFile(o.List, []byte(strings.Join(names, "\n")), 0o644))
	m.read(t.Context(), true, noon)
	check.Equal(t, len(m.targets), len(names), "%d targets")
}

// adopt runs f while a loop adopts each plan at once.
func (m *managed) adopt(f func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if p := m.loop.offer.Load(); p != nil && p != m.loop.plan {
				m.loop.adopt(p, 0)
			}
			select {
			case <-over:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f()
	close(over)
	<-ended
}

// probed are the targets in the present plan, and why those that are not in it are not.
func (m *managed) probed() string {
	var all []string
	for name, e := range m.entries {
		text := name
		if !slices.Contains(m.current.flows, e.flow) {
			text += ": " + e.state.why
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// sends is what a flow sends, and from where.
func sends(f *flow) string {
	of, own := f.codec.Flow(), "another port"
	switch w := f.wire; {
	case len(f.ports) > 0 && of.SrcPort == f.ports[0]:
		own = "its first port"
	case w.socket != nil && of.SrcPort == w.socket.Local().Port() && of.ID == of.SrcPort,
		w.socket == nil && of.SrcPort == w.locals[of.Src].port && of.ID == w.locals[of.Src].id:
		own = "the wire's port"
	}
	estimate := of.Proto == probe.STAMP &&
		bytes.Contains(f.codec.Build(0, 0), binary.BigEndian.AppendUint16(nil, engine.OwnEstimate()))
	return fmt.Sprintf("%v from %s, layer %d, %d bytes, TTL %d, %d slots, %d ports (by frame %t, %d counted), %d tracers, estimate %t",
		of.Proto, own, of.Layer, len(f.codec.Build(0, 0)), of.TTL, len(f.slots), len(f.ports), f.frames,
		len(f.paths), len(f.tracers), estimate)
}

// A plan has the flows of the targets that can be probed, is offered only if it changes, and keeps the flows of targets
// that do not change. A socket that fails is closed, and opened again after a pause; one that no target uses is closed.
func TestPlan(t *testing.T) {
	m := newManaged(t, Options{Transport: "socket"}, "udp:127.0.0.1:7001", "stamp:127.0.0.1:7003")
	now := time.Now()
	step := func(what, want string) {
		t.Helper()
		m.adopt(func() { m.update(t.Context(), false) })
		check.Equal(t, m.probed(), want, what+": %q")
	}
	const both = "stamp:127.0.0.1:7003\nudp:127.0.0.1:7001"
	step("two targets", both)
	plan, flow := m.current, m.entries["udp:127.0.0.1:7001"].flow
	second := float64(m.loop.clock.Ticks(time.Second))
	if got := float64(plan.slot); got < 0.49*second || got > 0.51*second {
		t.Errorf("a slot of %v of a second", got/second)
	}
	step("the same", both)
	check.Equal(t, m.current, plan, "another plan, %p")
	m.watched(t, "udp:127.0.0.1:7001 site=ams", "stamp:127.0.0.1:7003", "udp:localhost:7001",
		"udp:127.0.0.1:7004 __param_source_ports=3 __param_interval=100ms")
	m.options.Source = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	step("a label, and another name", both+"\nudp:127.0.0.1:7004\nudp:localhost:7001: another target has its address, 127.0.0.1")
	if e := m.entries["udp:127.0.0.1:7001"]; e.flow != flow || e.state.Labels["site"] != "ams" {
		t.Errorf("a label made another flow, or is not known: %v", e.state.Labels)
	}
	check.Equal(t, len(m.wires["udp4 3 ports"].ports.All), 3, "%d sockets")
	for name, want := range map[string]string{"udp:127.0.0.1:7001": "udp from the wire's port, layer 2, 18 bytes, TTL 0, 8 slots, 0 ports (by frame false, 0 counted), 0 tracers, estimate false", "stamp:127.0.0.1:7003": "stamp from the wire's port, layer 2, 44 bytes, TTL 0, 8 slots, 0 ports (by frame false, 0 counted), 0 tracers, estimate true",
		"udp:127.0.0.1:7004": "udp from its first port, layer 2, 18 bytes, TTL 0, 32 slots, 3 ports (by frame false, 3 counted), 3 tracers, estimate false"} {
		check.Equal(t, sends(m.entries[name].flow), want, name+": %s")
	}
	m.targets[0].Interval, m.targets[1].Interval, m.targets[1].DSCP = time.Microsecond, time.Second/2, 46
	step("intervals", "stamp:127.0.0.1:7003: an interval of 1µs with a timeout of 1s: too many probes would be in flight to one target\n"+
		"udp:127.0.0.1:7001\nudp:127.0.0.1:7004\nudp:localhost:7001")
	if e := m.entries["udp:127.0.0.1:7001"]; e.flow == flow || e.flow.interval != m.loop.clock.Ticks(time.Second/2) ||
		e.flow.codec.Flow().TOS != 46<<2 || e.flow.wire != m.wires["udp4 dscp 46"] {
		t.Errorf("the flow is that of before, or %+v", e.flow)
	}
	m.targets = m.targets[1:2]
	step("one is left", "udp:127.0.0.1:7001")
	check.Equal(t, len(m.wires), 1, "%d sockets are open")
	check.Equal(t, strings.Count(m.log.String(), "target is no longer watched"), 3, "%d targets are gone")
	wire := m.wires["udp4 dscp 46"]
	if wire.fail(errors.New("it broke")); !m.unsettled(now) {
		t.Error("nothing is expected of a socket that failed")
	}
	step("failed", "udp:127.0.0.1:7001: it broke")
	step("not yet again", "udp:127.0.0.1:7001: it broke")
	if m.reopened.Load() != 1 || strings.Count(m.log.String(), "reopening it") != 1 || m.unsettled(now) {
		t.Errorf("reopened %d times, unsettled %t:\n%s", m.reopened.Load(), m.unsettled(now), m.log)
	}
	m.adopt(func() { m.build(time.Now().Add(lookEvery)) })
	check.Equal(t, m.probed(), "udp:127.0.0.1:7001", "opened again: %q")
	if w := m.wires["udp4 dscp 46"]; w == nil || w == wire || m.current.wires[0].wire != w {
		t.Error("the plan does not have the new socket")
	}
	m.adopt(func() { m.lost(m.entries["udp:127.0.0.1:7001"], errors.New("no address")); m.build(now) })
	check.Equal(t, m.probed(), "udp:127.0.0.1:7001: no address", "%q")
	check.OK(t, m.close())
	check.Equal(t, len(m.wires), 0, "%d sockets are open")
}

// The route to a target is the kernel's, or for a card that the kernel does not have what the settings say.
func TestFindRoute(t *testing.T) {
	a := func(text string) []netip.Addr {
		if text == "" {
			return nil
		}
		return []netip.Addr{netip.MustParseAddr(text)}
	}
	const card = "0000:ff:1f.7"
	for _, c := range []struct{ transport, device, source, gateway, target, want string }{
		{"raw", card, "10.0.0.1", "", "10.0.0.2", card + " from 10.0.0.1 to 10.0.0.2"},
		{"raw", card, "10.0.0.1", "10.0.0.254", "10.1.0.2", card + " from 10.0.0.1 to 10.0.0.254"},
		{"raw", card, "10.0.0.1", "fd00::1", "10.1.0.2", card + " from 10.0.0.1 to 10.1.0.2"},
		{"raw", card, "", "", "10.0.0.2", card + " is not a kernel interface, so it has no routes: set -source"},
		{"raw", card, "fd00::1", "", "10.0.0.2", "no source address has the family of 10.0.0.2"},
		{"socket", "", "", "", "127.0.0.2", "lo from 127.0.0.1 to 127.0.0.2"},
		{"raw", "", "", "", "127.0.0.2", "127.0.0.2 is reached through the loopback interface lo, which carries no frames"},
		{"socket", "lo", "10.99.0.1", "", "10.99.0.2", "source 10.99.0.1 is not an address of this host: a socket needs one"},
		{"socket", "", "", "", "a..b", "the name cannot be looked up"},
		{"socket", "", "127.0.0.1", "", "localhost", "lo from 127.0.0.1 to 127.0.0.1"},
		{"socket", "", "127.0.0.1", "", "127.0.0.2", "lo from 127.0.0.1 to 127.0.0.2"},
	} {
		o := Options{Transport: c.transport, Source: a(c.source), Gateway: a(c.gateway)}
		o.NIC.Device = c.device
		m := newManaged(t, o)
		x := targets.Target{Host: c.target}
		e := &entry{Target: x, state: m.archive.target(x, noon)}
		m.refresh(t.Context(), e, noon)
		got := e.state.why
		if e.addr.IsValid() {
			got = fmt.Sprintf("%s from %v to %v", e.path.Interface, e.path.Source, e.path.Next)
		}
		if x.Size = 1 << 17; e.addr.IsValid() && !cards.IsPCIDevice(c.device) {
			_, err := m.findRoute(e.addr, &entry{Target: x})
			check.Fails(t, "a frame of 128 KiB", err, nil, "131072 bytes; probes of icmp over IPv4 have 60 to")
		}
		if !strings.HasPrefix(got, c.want) || e.looked != noon ||
			e.addr.IsValid() && strings.Contains(m.log.String(), "WARN") {
			t.Errorf("%+v: %s, want %s\n%s", c, got, c.want, m.log)
		}
	}
}

// Targets share a device, or a socket if protocol, family and marks allow that.
func TestWireKeys(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	p := func(ports int, dscp uint8) targets.Probes { return targets.Probes{SourcePorts: ports, DSCP: dscp} }
	for _, c := range []struct {
		transport, device string
		e                 entry
		want              string
	}{
		{"raw", "", entry{addr: four, path: route.Path{Interface: "e0"}}, "e0"},
		{"socket", "", entry{addr: four}, "icmp4"},
		{"socket", "", entry{addr: six}, "icmp6"},
		{"socket", "e0", entry{addr: four, Target: targets.Target{Proto: probe.UDP, Probes: p(1, 0)}}, "udp4 e0"},
		{"socket", "e0", entry{addr: six, Target: targets.Target{Proto: probe.STAMP, Probes: p(2, 46)}}, "udp6 e0 2 ports dscp 46"},
	} {
		m := newManaged(t, Options{Transport: c.transport, ECN: 1})
		m.options.NIC.Device = c.device
		check.Equal(t, m.wireKey(&c.e), c.want, "%q")
		check.Equal(t, m.tos(&c.e), c.e.DSCP<<2|1, "TOS %#x")
	}
}

// A device is used for further entries only if it receives the replies to them.
func TestWireServes(t *testing.T) {
	src, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.9")
	of := func(proto probe.Proto, from netip.Addr, ports int) *entry {
		return &entry{Target: targets.Target{Proto: proto, Probes: targets.Probes{SourcePorts: ports}},
			path: route.Path{Source: from}}
	}
	w := &wire{locals: map[netip.Addr]*local{src: {ports: []uint16{1, 2}}}}
	for i, c := range []struct {
		echo, want bool
		of         []*entry
	}{
		{false, true, []*entry{of(probe.UDP, src, 0), of(probe.UDP, src, 2)}},
		{false, false, []*entry{of(probe.UDP, src, 0), of(probe.UDP, src, 3)}},
		{false, false, []*entry{of(probe.UDP, other, 0)}},
		{false, false, []*entry{of(probe.ICMP, src, 0)}},
		{true, true, []*entry{of(probe.ICMP, src, 0)}},
	} {
		w.echo = c.echo
		check.Equal(t, w.serves(c.of), c.want, fmt.Sprintf("row %d: %%t", i))
	}
	three := []*entry{of(probe.UDP, src, 2), of(probe.UDP, src, 5), of(probe.UDP, other, 9)}
	check.Equal(t, mostPorts(three, src), 5, "%d ports")
	check.Equal(t, mostPorts([]*entry{of(probe.UDP, src, 1)}, src), 0, "%d ports")
}

// A probe asks for the times of the reflector's loop if the TLV fits, and what is left over has room for padding.
func TestWithTiming(t *testing.T) {
	for size, want := range map[int]int{0: 1, 86: 1, 106: 1, 107: 0, 109: 0, 110: 1, 1514: 1} {
		e := &entry{addr: netip.MustParseAddr("10.0.0.2"), Target: targets.Target{Proto: probe.STAMP,
			Probes: targets.Probes{Size: size}}}
		check.Equal(t, len(withTiming(probe.TestPacket{}, e).Ask), want, fmt.Sprintf("%d bytes: %%d TLVs", size))
	}
}

// The next hop's MAC comes from the kernel's table, whose changes are followed; without an entry, the kernel or the
// loop asks.
func TestNextHop(t *testing.T) {
	next, from := netip.MustParseAddr("10.0.0.254"), netip.MustParseAddr("10.0.0.1")
	w := &wire{mac: [6]byte{2, 1}, hops: map[netip.Addr]*hop{}}
	e := &entry{path: route.Path{Index: 1 << 30, Source: from, Next: next}, flow: &flow{}}
	e.flow.hop = w.hopOf(e)
	check.Equal(t, w.hopOf(e), e.flow.hop, "two hops for one address, the second %p")
	h := e.flow.hop
	table := neighbourTables{{1 << 30, false}: {next: {MAC: [6]byte{2, 7}, Permanent: true}}}
	step := func(what string, tables neighbourTables, is, ask bool, mac uint64, static bool) {
		t.Helper()
		if gotIs, gotAsk := e.resolve(tables); gotIs != is || gotAsk != ask || h.mac.Load() != mac ||
			h.static.Load() != static {
			t.Errorf("%s: known %t, ask %t, MAC %#x, permanent %t; want %t, %t, %#x, %t", what, gotIs, gotAsk,
				h.mac.Load(), h.static.Load(), is, ask, mac, static)
		}
	}
	step("an address that the kernel does not have", table, false, true, 0, false)
	h.set([6]byte{2, 9})
	step("the loop learnt it", table, true, false, known|9<<8|2, false)
	e.path.Owned = true
	step("the kernel's", table, true, false, known|7<<8|2, true)
	h.set([6]byte{2, 8})
	step("the loop learnt another since", table, true, false, known|8<<8|2, true)
	table[neighbourTable{1 << 30, false}][next] = route.Entry{MAC: [6]byte{2, 6}}
	step("the kernel learnt another", table, true, false, known|6<<8|2, false)
	none := neighbourTables{{1 << 30, false}: {}}
	step("the kernel forgot it", none, true, false, known|6<<8|2, false)
	h.suspect.Store(true)
	step("and it does not answer, nor can the kernel be asked", none, true, false, known|6<<8|2, false)
	h.mac.Store(0)
	step("it is not known", none, false, true, 0, false)
	now := noon
	for i, want := range []bool{true, true, false} {
		check.Equal(t, h.unsettled(now), want, fmt.Sprintf("look %d: %%t"+" unsettled", i))
		now = now.Add(routeEvery - time.Second/2)
	}
	h.suspect.Store(false)
	if h.unsettled(now) || !h.since.IsZero() {
		t.Error("a hop that answers is unsettled")
	}
}

// A device of the kernel carries probes of all kinds, from the kernel's address and from one that it does not have. A
// datagram to a port where nothing listens is refused; everything else is answered.
func TestKernelInterface(t *testing.T) {
	pair := veth.New(t)
	for _, source := range []string{"", "192.0.2.77"} {
		o := Options{Transport: "raw", TTL: 64, NIC: cards.Config{Driver: "afpacket"}}
		names := []string{"icmp:192.0.2.2", "udp:192.0.2.2:9 __param_source_ports=3", "stamp:192.0.2.2"}
		if source != "" {
			o.Source = []netip.Addr{netip.MustParseAddr(source)}
			o.NIC.Device = pair.Host.Name
		} else {
			names = append(names, "icmp:[2001:db8::2]")
		}
		m := newManaged(t, o, names...)
		pair.Host.Do(func() {
			l, got := m.loop, map[string]kind{}
			if !await.Holds(func() bool {
				m.adopt(func() { m.update(t.Context(), true) })
				l.plan.asks = slices.Clone(l.plan.asks)
				for _, a := range l.plan.asks {
					a.wire.solicit([]ask{a})
				}
				for range l.plan.flows {
					l.send(1)
				}
				l.receive(false)
				l.events.drain(func(e *event) {
					if e.kind != sent && e.kind != missed { // more are on their way than a flow remembers
						got[m.archive.byID[e.flow].Name()] = e.kind
					}
				})
				return len(got) == len(names)
			}) {
				t.Errorf("from %q: %v\n%s\n%s", source, got, m.probed(), m.log)
			}
			for name, k := range got {
				if want := map[bool]kind{true: answered, false: refused}[strings.HasPrefix(name, "icmp")]; k != want {
					t.Errorf("from %q: %s has event %d, want %d", source, name, k, want)
				}
			}
			w := m.wires[pair.Host.Name]
			if w == nil {
				return
			}
			for name, want := range map[string]string{"icmp:192.0.2.2": "icmp from the wire's port, layer 0, 60 bytes, TTL 64, 8 slots, 0 ports (by frame false, 0 counted), 0 tracers, estimate false", "udp:192.0.2.2:9": "udp from its first port, layer 0, 60 bytes, TTL 64, 8 slots, 3 ports (by frame true, 3 counted), " +
				map[bool]string{true: "3", false: "0"}[source == ""] + " tracers, estimate false",
				"stamp:192.0.2.2:862": "stamp from the wire's port, layer 0, 86 bytes, TTL 64, 8 slots, 0 ports (by frame false, 0 counted), 0 tracers, estimate true"} {
				if f := m.entries[name].flow; sends(f) != want {
					t.Errorf("from %q: %s: %s, want %s", source, name, sends(f), want)
				}
			}
			for src, l := range w.locals {
				if len(l.ports) != map[bool]int{true: 3}[src.Is4()] || (l.held == nil) != (source != "" || src.Is6()) {
					t.Errorf("from %v: ports %v, %d of them held", src, l.ports, len(l.held))
				}
			}
			if n, claims := len(w.neighbours), len(w.claims); (n > 0) != (source != "") || claims != n ||
				len(w.holds) != 2-2*n ||
				string(w.mac[:]) != string(pair.Host.MAC) || !w.echo {
				t.Errorf("from %q: answers for %d addresses, %d claimed, %d ports held, MAC %x", source, n, claims,
					len(w.holds), w.mac)
			}
			m.adopt(func() { check.OK(t, m.close()) })
		})
	}
}
