package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/bench/socket"
	"github.com/rebound-nic/rebound/internal/bench/targets"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/nic"
)

// manager follows the sources of targets, and the paths to them, and offers the loop a plan whenever something changes.
// One goroutine uses it at a time.
type manager struct {
	*watch
	targets []targets.Target
	entries map[string]*entry // by target name
	wires   map[string]*wire
	current *plan
	retry   map[string]time.Time // wires that could not be opened: when to try again
	reasons map[string]error     // why they could not be opened
}

// entry is a target with the path to it.
type entry struct {
	targets.Target
	state *state

	addr   netip.Addr
	path   route.Path
	looked time.Time // when addr and path were determined
	flow   *flow
	mac    [6]byte
	known  bool      // mac is valid
	asked  time.Time // since when mac has been requested; zero if known
}

func newManager(w *watch, first []targets.Target) *manager {
	return &manager{watch: w, targets: first, entries: map[string]*entry{}, wires: map[string]*wire{}, retry: map[string]time.Time{}, reasons: map[string]error{}}
}

// follow keeps the plan up to date until ctx is done. A value from force means that all sources must be read again.
func (m *manager) follow(ctx context.Context, force <-chan bool) {
	look := time.NewTicker(soonEvery)
	defer look.Stop()
	var last time.Time
	for {
		all := false
		select {
		case <-ctx.Done():
			return
		case all = <-force:
		case now := <-look.C:
			if now.Sub(last) < lookEvery && !m.unsettled(now) {
				continue
			}
		}
		if now := time.Now(); all || now.Sub(last) >= lookEvery {
			last = now
			m.read(ctx, all, now)
		}
		m.update(ctx, all)
	}
}

// unsettled reports whether a change is expected soon: a neighbour's reply, or another attempt to open a wire.
func (m *manager) unsettled(now time.Time) bool {
	for _, w := range m.wires {
		if w.failure.Load() != nil {
			return true
		}
	}
	for _, e := range m.entries {
		if e.addr.IsValid() && e.flow != nil && !e.known && now.Sub(e.looked) < routeEvery {
			return true
		}
	}
	return false
}

func (m *manager) read(ctx context.Context, force bool, now time.Time) {
	found, failures := m.options.Sources.Read(ctx, force, now)
	for _, f := range failures {
		if f.New {
			m.sourceFailures.Add(1)
			m.options.Log.Error("a source of targets cannot be read: what it gave before is kept", "source", f.Source, "error", f.Err)
		}
	}
	if ctx.Err() == nil {
		m.targets = m.fleet.pick(found)
	}
}

// update looks up everything that is due, and offers a new plan if it has changed.
func (m *manager) update(ctx context.Context, all bool) {
	now := time.Now()
	wanted := map[string]bool{}
	for _, t := range m.targets {
		name := t.Name()
		wanted[name] = true
		e := m.entries[name]
		if e == nil {
			e = &entry{Target: t, state: m.archive.target(t, now)}
			m.entries[name] = e
			m.options.Log.Debug("watching", "target", name)
		} else if !e.Target.Equal(t) {
			if !e.Target.SameProbes(t) {
				e.flow, e.looked = nil, time.Time{}
			}
			e.Target = t
			m.archive.target(t, now)
		}
		if all || now.Sub(e.looked) >= routeEvery || now.Before(e.looked) {
			m.look(ctx, e, now)
		}
	}
	for name, e := range m.entries {
		if !wanted[name] {
			delete(m.entries, name)
			m.archive.leave(e.state)
			m.options.Log.Info("target is no longer watched", "target", name)
		}
	}
	m.build(now)
}

// look determines the target's address and the path to it.
func (m *manager) look(ctx context.Context, e *entry, now time.Time) {
	e.looked = now
	addr, err := m.resolve(ctx, e.Host)
	if err == nil {
		var p route.Path
		if p, err = m.way(addr, e.Size); err == nil {
			if p != e.path || addr != e.addr {
				e.path, e.addr, e.flow, e.known = p, addr, nil, false
			}
			return
		}
	}
	m.lost(e, err)
}

// lost records why a target cannot be probed.
func (m *manager) lost(e *entry, why error) {
	e.addr, e.path, e.flow, e.known = netip.Addr{}, route.Path{}, nil, false
	m.say(e, why.Error())
}

func (m *manager) say(e *entry, why string) {
	if !m.archive.found(e.state, why) {
		return
	}
	if why == "" {
		m.options.Log.Debug("target is probed", "target", e.Name(), "address", e.addr)
	} else {
		m.options.Log.Warn("target cannot be probed", "target", e.Name(), "reason", why)
	}
}

// await records that a target's neighbour is not known yet. Every start begins with that, so it is a warning only if it
// persists.
func (m *manager) await(e *entry, now time.Time) {
	if e.asked.IsZero() {
		e.asked = now
	}
	if now.Sub(e.asked) < neighbourPatience {
		m.archive.found(e.state, "its neighbour's MAC address is being looked up")
		return
	}
	m.say(e, fmt.Sprintf("no MAC address of %v on %s: it does not answer ARP or neighbour discovery", e.path.Next, e.path.Interface))
}

// resolve returns the address of a host: of the source's family if there is a source, otherwise the first.
func (m *manager) resolve(ctx context.Context, host string) (netip.Addr, error) {
	fits := func(a netip.Addr) bool { return len(m.options.Source) == 0 || m.source(a).IsValid() }
	if a, err := netip.ParseAddr(host); err == nil {
		if !fits(a) {
			return a, fmt.Errorf("no source address is of the family of %v", a)
		}
		return a, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the name cannot be looked up: %w", err)
	}
	for _, a := range all {
		if a = a.Unmap(); fits(a) {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%s has no address of the family of the source: %v", host, all)
}

// source and gateway are the user's choice for the family of a; the zero Addr if there is none.
func (m *manager) source(a netip.Addr) netip.Addr  { return ofFamily(m.options.Source, a) }
func (m *manager) gateway(a netip.Addr) netip.Addr { return ofFamily(m.options.Gateway, a) }

func ofFamily(list []netip.Addr, a netip.Addr) netip.Addr {
	for _, s := range list {
		if s.Is4() == a.Is4() {
			return s
		}
	}
	return netip.Addr{}
}

// way determines how a is reached with frames of a size.
func (m *manager) way(a netip.Addr, size int) (p route.Path, err error) {
	iface := m.options.NIC.Device
	if cards.IsPCIDevice(iface) {
		p = route.Path{Interface: iface, Source: m.source(a), Next: a}
		if g := m.gateway(a); g.IsValid() {
			p.Next = g
		}
		if !p.Source.IsValid() {
			return p, fmt.Errorf("%s is not the kernel's, which knows no route through it: give -source", iface)
		}
		return p, nil
	}
	p, err = route.Find(a, route.Constraints{Interface: iface, Source: m.source(a), Gateway: m.gateway(a)})
	switch {
	case err != nil:
		return p, err
	case p.Loopback && m.options.Transport == "raw":
		return p, fmt.Errorf("it is reached through the loopback interface %s, which carries no frames to a peer: take -transport socket", p.Interface)
	case !p.Owned && m.options.Transport == "socket":
		return p, fmt.Errorf("source %v is not an address of this host: a socket needs one", p.Source)
	}
	return p, probe.CheckSize(probe.ICMP, a.Is6(), max(size, probe.MinSize(probe.ICMP, a.Is6())), 0, p.MTU)
}

// wireKey identifies the wire that an entry uses, in metrics too: an interface, or a socket such as udp4 or icmp6, with
// the interface that it is bound to, if any.
func (m *manager) wireKey(e *entry) string {
	if m.options.Transport == "raw" {
		return e.path.Interface
	}
	key := "udp"
	if e.Proto == probe.ICMP {
		key = "icmp"
	}
	if e.addr.Is6() {
		key += "6"
	} else {
		key += "4"
	}
	if d := m.options.NIC.Device; d != "" {
		key += " " + d
	}
	if e.DSCP != m.options.Sources.DSCP { // a socket sends with one DSCP
		key += fmt.Sprint(" dscp ", e.DSCP)
	}
	return key
}

// MostUnderWay bounds the probes to a target whose replies are awaited.
const MostUnderWay = 100_000

// tos returns the DSCP and ECN of the probes to e in the header's format.
func (m *manager) tos(e *entry) uint8 { return e.DSCP<<2 | m.options.ECN }

// build creates a plan from the entries with a path, and offers it if it has changed.
func (m *manager) build(now time.Time) {
	groups := map[string][]*entry{}
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		if e := m.entries[name]; e.addr.IsValid() {
			groups[m.wireKey(e)] = append(groups[m.wireKey(e)], e)
		}
	}
	next := &plan{macs: map[*flow][6]byte{}, adopted: make(chan struct{})}
	tables := neighbourTables{}
	var retired []*wire
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		w := m.wires[key]
		if w != nil && w.failure.Load() != nil {
			m.options.Log.Error("a device or socket failed: it is opened again", "wire", key, "error", *w.failure.Load())
			m.reopened.Add(1)
			m.retry[key], m.reasons[key] = now.Add(lookEvery), *w.failure.Load()
			retired = append(retired, w)
			delete(m.wires, key)
			w = nil
		}
		if w != nil && !w.serves(groups[key]) {
			retired = append(retired, w)
			delete(m.wires, key)
			w = nil
		}
		if w == nil {
			m.forget(groups[key])
		}
	}
	for key, w := range m.wires {
		if groups[key] == nil {
			retired = append(retired, w)
			delete(m.wires, key)
		}
	}
	m.retire(retired)
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		w := m.wires[key]
		if w == nil {
			if now.Before(m.retry[key]) {
				m.explain(groups[key], m.reasons[key])
				continue
			}
			var err error
			if w, err = m.open(key, groups[key]); err != nil {
				m.retry[key], m.reasons[key] = now.Add(5*time.Second), err
				m.explain(groups[key], err)
				continue
			}
			m.wires[key] = w
			w.countDrops(m.archive)
		}
		p := planned{w, map[flowKey]*flow{}}
		asked := map[netip.Addr]bool{}
		for _, e := range groups[key] {
			if err := m.prepare(e, w, tables); err != nil {
				m.say(e, err.Error())
				continue
			}
			if a, ok := w.asks(e); ok && !asked[a.next] {
				asked[a.next] = true
				next.asks = append(next.asks, a)
			}
			if !e.known {
				m.await(e, now)
				continue
			}
			e.asked = time.Time{}
			k := e.flow.key()
			if other := p.flows[k]; other != nil {
				m.say(e, fmt.Sprintf("another target has its address, %v", e.addr))
				continue
			}
			p.flows[k] = e.flow
			next.macs[e.flow] = e.mac
			next.flows = append(next.flows, e.flow)
			m.say(e, "")
		}
		next.wires = append(next.wires, p)
	}
	rate := 0.0 // probes per tick
	for _, f := range next.flows {
		rate += 1 / float64(f.interval)
	}
	if rate > 0 {
		next.slot = max(uint64(1/rate), 1)
	}
	if !next.same(m.current) {
		m.current = next
		m.loop.offer.Store(next)
	}
}

func (p *plan) same(q *plan) bool {
	return q != nil && slices.Equal(p.flows, q.flows) && maps.Equal(p.macs, q.macs) &&
		slices.EqualFunc(p.wires, q.wires, func(a, b planned) bool { return a.wire == b.wire }) &&
		slices.Equal(p.asks, q.asks)
}

// explain records for all entries of a wire why they cannot be probed.
func (m *manager) explain(of []*entry, err error) {
	for _, e := range of {
		m.say(e, err.Error())
	}
}

// forget removes the flows of entries whose wire was closed.
func (m *manager) forget(of []*entry) {
	for _, e := range of {
		e.flow, e.known = nil, false
	}
}

// retire closes wires when the loop no longer uses them.
func (m *manager) retire(gone []*wire) {
	if len(gone) == 0 {
		return
	}
	if m.current != nil {
		less := &plan{macs: map[*flow][6]byte{}, slot: m.current.slot, adopted: make(chan struct{})}
		kept := func(w *wire) bool { return !slices.Contains(gone, w) }
		for _, p := range m.current.wires {
			if kept(p.wire) {
				less.wires = append(less.wires, p)
			}
		}
		for _, f := range m.current.flows {
			if kept(f.wire) {
				less.flows = append(less.flows, f)
			}
		}
		m.current = less
		m.loop.offer.Store(less)
		select {
		case <-less.adopted:
		case <-time.After(stopPatience):
			if !m.loop.stop.Load() {
				m.options.Log.Error("the measuring loop does not take up its new plan")
			}
			return
		}
	}
	for _, w := range gone {
		if err := w.close(); err != nil {
			m.options.Log.Warn("closing", "wire", w.key, "error", err)
		}
	}
}

// close closes all wires. The loop must have ended.
func (m *manager) close() (err error) {
	for _, w := range m.wires {
		err = errors.Join(err, w.close())
	}
	m.wires = map[string]*wire{}
	return err
}

// serves reports whether an open wire has the addresses that the entries send from.
func (w *wire) serves(of []*entry) bool {
	return w.socket != nil || !slices.ContainsFunc(of, func(e *entry) bool { return w.locals[e.path.Source] == nil })
}

// open opens the device or the socket that entries go through.
func (m *manager) open(key string, of []*entry) (*wire, error) {
	o := &m.options
	w := &wire{key: key, iface: of[0].path.Interface, locals: map[netip.Addr]*local{}, learned: map[netip.Addr][6]byte{}}
	if o.Transport == "socket" {
		source := m.source(of[0].addr)
		if !source.IsValid() {
			if source = netip.IPv4Unspecified(); of[0].addr.Is6() {
				source = netip.IPv6Unspecified()
			}
		}
		var err error
		w.echo = of[0].Proto == probe.ICMP
		if w.socket, err = socket.OpenShared(source, w.echo, o.NIC.Device); err != nil {
			return nil, err
		}
		if err := w.socket.Mark(m.tos(of[0]), o.TTL); err != nil {
			return nil, errors.Join(err, w.socket.Close())
		}
		return w, nil
	}
	fail := func(err error) (*wire, error) {
		w.device = nil
		for _, fd := range w.holds {
			unix.Close(fd)
		}
		return nil, err
	}
	steer := &nic.Steer{}
	id := uint16(1 + rand.IntN(0xffff))
	steer.EchoIDs = []uint16{id}
	owned := false
	for _, e := range of {
		src := e.path.Source
		if w.locals[src] != nil {
			continue
		}
		l := &local{id: id, port: uint16(49152 + rand.IntN(16384))} // RFC 6335 §6
		if e.path.Owned {
			fd, port, err := socket.Hold(src, e.path.Index)
			if err != nil {
				return fail(err)
			}
			w.holds, l.port = append(w.holds, fd), port
		}
		owned = owned || e.path.Owned
		steer.Neighbours = steer.Neighbours || !e.path.Owned
		w.locals[src] = l
		steer.UDPPorts = append(steer.UDPPorts, l.port)
		if a := src.WithZone(""); !steer.Local.IsValid() {
			steer.Local = a
		} else {
			steer.Also = append(steer.Also, a)
		}
	}
	do := o.NIC
	do.Device, do.Log, do.Steer, do.Shared = key, o.Log, steer, owned
	d, err := do.Open()
	if err != nil {
		return fail(err)
	}
	w.device = d
	info := d.Info()
	mac, err := net.ParseMAC(info.MAC)
	if err != nil || len(mac) != 6 {
		return nil, errors.Join(fmt.Errorf("%s has no Ethernet address, but %q", info.Device, info.MAC), w.close())
	}
	w.mac = [6]byte(mac)
	for src := range w.locals {
		if i := slices.IndexFunc(of, func(e *entry) bool { return e.path.Source == src }); !of[i].path.Owned {
			w.neighbours = append(w.neighbours, route.NewNeighbour(src, w.mac))
		}
	}
	o.Log.Info("device open", "driver", info.Driver, "device", info.Device, "backend", info.Backend, "push", info.Push)
	return w, nil
}

// prepare creates the flow of an entry, if it has none, and determines its neighbour's MAC.
func (m *manager) prepare(e *entry, w *wire, tables neighbourTables) error {
	o := &m.options
	test := probe.TestPacket{SSID: e.SSID, Key: e.Key.Bytes(), Authenticated: e.Key.Bytes() != nil}
	more := 0
	if e.Proto == probe.STAMP {
		more = test.Extra()
	}
	size := max(e.Size, probe.MinSize(e.Proto, e.addr.Is6())+more)
	if o.Timeout/e.Interval > MostUnderWay {
		return fmt.Errorf("an interval of %v with a time-out of %v: too many probes would be under way to one target", e.Interval, o.Timeout)
	}
	if e.flow == nil {
		f := probe.Flow{Proto: e.Proto, Src: e.path.Source.WithZone(""), Dst: e.addr.WithZone(""), DstPort: e.Port, Run: rand.Uint32(), Size: size,
			TOS: m.tos(e), TTL: o.TTL, SrcMAC: w.mac, Routed: e.path.Routed(e.addr), Test: test}
		if w.socket != nil {
			own := w.socket.Local()
			f.Layer, f.SrcPort, f.ID = probe.Datagram, own.Port(), own.Port()
			if w.echo {
				f.Layer = probe.Message
			}
		} else {
			l := w.locals[e.path.Source]
			f.SrcPort, f.ID = l.port, l.id
			mtu := w.device.Info().MTU
			if err := probe.CheckSize(e.Proto, e.addr.Is6(), size, more, mtu); err != nil {
				return err
			}
		}
		c, err := probe.New(f)
		if err != nil {
			return err
		}
		if e.Proto == probe.STAMP {
			c.SetErrorEstimate(engine.OwnEstimate())
		}
		e.flow = newFlow(e.state.id, c, int(2*o.Timeout/e.Interval)+2)
		e.flow.interval = max(m.loop.clock.Ticks(e.Interval), 1)
		e.flow.wire = w
		e.flow.peer = socket.NewPeer(netip.AddrPortFrom(e.addr, e.Port), uint32(e.path.Index))
	}
	switch {
	case w.socket != nil:
		e.known = true
	case e.path.Owned:
		if mac, ok := tables.of(e.path)[e.path.Next.WithZone("")]; ok {
			e.mac, e.known = mac, true
		} else if !e.known {
			_ = e.path.AskKernel() // without that privilege, the kernel may learn it from other traffic
		}
	default:
		w.mu.Lock()
		mac := w.learned[e.path.Next]
		if mac == [6]byte{} {
			w.learned[e.path.Next] = mac // wanted
		}
		w.mu.Unlock()
		if mac != [6]byte{} {
			e.mac, e.known = mac, true
		}
	}
	return nil
}

// asks returns the request that resolves an entry's neighbour, if the kernel does not do this. It is repeated, because
// the reply may change.
func (w *wire) asks(e *entry) (ask, bool) {
	if w.device == nil || e.path.Owned {
		return ask{}, false
	}
	i := slices.IndexFunc(w.neighbours, func(n *route.Neighbour) bool { return n.Address() == e.path.Source.WithZone("") })
	return ask{w, w.neighbours[i], e.path.Next}, true
}

// neighbourTables are the kernel's, each read once.
type neighbourTables map[neighbourTable]map[netip.Addr][6]byte

type neighbourTable struct {
	index int
	v6    bool
}

func (n neighbourTables) of(p route.Path) map[netip.Addr][6]byte {
	k := neighbourTable{p.Index, p.Next.Is6()}
	t, ok := n[k]
	if !ok {
		t = route.Neighbours(k.index, k.v6)
		n[k] = t
	}
	return t
}
