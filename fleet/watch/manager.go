package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
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
	updated bool                 // at least once
	denied  error                // why the first update could open nothing: this process has no rights
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
	ask    bool      // the loop asks for the next hop's MAC, until it is known
	known  bool      // the next hop's MAC is known, or not needed
	asked  time.Time // since when it has been requested; zero if known
}

func newManager(w *watch, first []targets.Target) *manager {
	return &manager{watch: w, targets: first, entries: map[string]*entry{}, wires: map[string]*wire{},
		retry: map[string]time.Time{}, reasons: map[string]error{}}
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
		for _, h := range w.hops {
			if h.unsettled(now) {
				return true
			}
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
			m.options.Log.Error("a source of targets cannot be read: its previous targets are kept", "source", f.Source,
				"error", f.Err)
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
			m.refresh(ctx, e, now)
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

// refresh determines the target's address and the path to it.
func (m *manager) refresh(ctx context.Context, e *entry, now time.Time) {
	e.looked = now
	addr, err := m.resolve(ctx, e.Host)
	if err == nil {
		var p route.Path
		if p, err = m.findRoute(addr, e); err == nil {
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
	m.say(e, fmt.Sprintf("no MAC address of %v on %s: it does not answer ARP or neighbour discovery", e.path.Next,
		e.path.Interface))
}

// resolve returns the address of a host: of the source's family if there is a source, otherwise the first.
func (m *manager) resolve(ctx context.Context, host string) (netip.Addr, error) {
	fits := func(a netip.Addr) bool { return len(m.options.Source) == 0 || m.source(a).IsValid() }
	if a, err := netip.ParseAddr(host); err == nil {
		if !fits(a) {
			return a, fmt.Errorf("no source address has the family of %v", a)
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
	return netip.Addr{}, fmt.Errorf("%s has no address of the same family as the source: %v", host, all)
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

// findRoute determines how a is reached with the probes of e.
func (m *manager) findRoute(a netip.Addr, e *entry) (p route.Path, err error) {
	iface := m.options.NIC.Device
	if cards.IsPCIDevice(iface) {
		p = route.Path{Interface: iface, Source: m.source(a), Next: a}
		if g := m.gateway(a); g.IsValid() {
			p.Next = g
		}
		if !p.Source.IsValid() {
			return p, fmt.Errorf("%s is not a kernel interface, so it has no routes: set -source", iface)
		}
		return p, nil
	}
	p, err = route.Find(a, route.Constraints{Interface: iface, Source: m.source(a), Gateway: m.gateway(a),
		TOS: m.tos(e), Protocol: e.Proto.IP(a.Is6()),
		Port: e.Port})
	switch {
	case err != nil:
		return p, err
	case m.options.Transport == "raw" && p.NoFrames(a) != nil:
		return p, p.NoFrames(a)
	case !p.Owned && m.options.Transport == "socket":
		return p, fmt.Errorf("source %v is not an address of this host: a socket needs one", p.Source)
	}
	return p, probe.CheckSize(probe.ICMP, a.Is6(), max(e.Size, probe.MinSize(probe.ICMP, a.Is6())), 0, p.MTU)
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
	if e.SourcePorts > 1 {
		key += fmt.Sprintf(" %d ports", e.SourcePorts)
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
	next := &plan{adopted: make(chan struct{})}
	tables := neighbourTables{}
	var retired []*wire
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		w := m.wires[key]
		if w != nil && w.failure.Load() != nil {
			m.options.Log.Error("a device or socket failed: reopening it", "wire", key, "error", *w.failure.Load())
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
	var failed []string // to open now
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
				failed = append(failed, key)
				continue
			}
			m.wires[key] = w
			w.countDrops(m.archive)
		}
		p := planned{w, map[flowKey]*flow{}, map[uint32]*flow{}, probe.Reply{}}
		asked := map[*hop]bool{}
		for _, e := range groups[key] {
			if err := m.prepare(e, w, tables); err != nil {
				m.say(e, err.Error())
				continue
			}
			if h := e.flow.hop; e.ask && !asked[h] {
				asked[h] = true
				next.asks = append(next.asks, ask{w, h})
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
			if !e.flow.stamp {
				p.runs[e.flow.codec.Flow().Run] = e.flow
			}
			next.flows = append(next.flows, e.flow)
			m.say(e, "")
		}
		next.wires = append(next.wires, p)
	}
	if !m.updated && len(failed) > 0 && len(m.wires) == 0 &&
		!slices.ContainsFunc(failed, func(key string) bool { return !errors.Is(m.reasons[key], nic.ErrRights) }) {
		m.denied = m.reasons[failed[0]]
		return
	}
	m.updated = true
	for _, key := range failed {
		m.explain(groups[key], m.reasons[key])
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
	return q != nil && slices.Equal(p.flows, q.flows) &&
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
