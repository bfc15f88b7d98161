package watch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/bench/socket"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// retire closes wires when the loop no longer uses them.
func (m *manager) retire(gone []*wire) {
	if len(gone) == 0 {
		return
	}
	if m.current != nil {
		less := &plan{slot: m.current.slot, adopted: make(chan struct{})}
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
				m.options.Log.Error("the measuring loop does not switch to its new plan")
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

// serves reports whether an open wire has the addresses and ports that the entries send from, and receives their
// replies.
func (w *wire) serves(of []*entry) bool {
	return w.socket != nil || !slices.ContainsFunc(of, func(e *entry) bool {
		l := w.locals[e.path.Source]
		return l == nil || e.Proto == probe.ICMP && !w.echo || e.SourcePorts > 1 && e.SourcePorts > len(l.ports)
	})
}

// open opens the device or the socket that entries go through.
func (m *manager) open(key string, of []*entry) (*wire, error) {
	o := &m.options
	w := &wire{key: key, iface: of[0].path.Interface, qdisc: m.options.NIC.Qdisc, locals: map[netip.Addr]*local{},
		hops: map[netip.Addr]*hop{}, ending: make(chan struct{})}
	if o.Transport == "socket" {
		source := m.source(of[0].addr)
		if !source.IsValid() {
			if source = netip.IPv4Unspecified(); of[0].addr.Is6() {
				source = netip.IPv6Unspecified()
			}
		}
		if err := w.openSockets(of[0], source, m.tos(of[0]), o); err != nil {
			return nil, err
		}
		return w, nil
	}
	fail := func(err error) (*wire, error) {
		w.device = nil
		w.release()
		return nil, err
	}
	do := o.NIC
	do.Device = key
	steer := &nic.Steer{}
	id := uint16(1 + rand.IntN(0xffff))
	// Beside the kernel's driver only if needed, because not every card can select echo replies.
	if w.echo = !do.Beside() || slices.ContainsFunc(of, func(e *entry) bool { return e.Proto == probe.ICMP }); w.echo {
		steer.EchoIDs = []uint16{id}
	}
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
		if !e.path.Owned && e.path.Index != 0 {
			if err := w.claim(src); err != nil && o.NIC.Driver != "afpacket" {
				return fail(err)
			} else if err != nil {
				o.Log.Warn("another process uses the source address", "reason", err)
			}
		}
		owned = owned || e.path.Owned
		steer.Neighbours = steer.Neighbours || !e.path.Owned
		w.locals[src] = l
		if err := l.holdPorts(e, mostPorts(of, src), o.NIC.Device); err != nil {
			return fail(err)
		}
		for _, port := range append([]uint16{l.port}, l.ports...) { // the same ones for each address, as a rule
			if !slices.Contains(steer.UDPPorts, port) {
				steer.UDPPorts = append(steer.UDPPorts, port)
			}
		}
		if a := src.WithZone(""); !steer.Local.IsValid() {
			steer.Local = a
		} else {
			steer.Also = append(steer.Also, a)
		}
	}
	do.Log, do.Steer, do.Shared = o.Log, steer, owned
	if do.Driver == "afxdp" && do.RingSize == 0 && perSecond(of) <= fewReplies {
		do.RingSize = smallRing
	}
	d, err := do.Open()
	if err != nil {
		return fail(err)
	}
	w.device = d
	info := d.Info()
	mac, err := net.ParseMAC(info.MAC)
	if err != nil || len(mac) != 6 {
		return nil, errors.Join(fmt.Errorf("%s has no Ethernet address (%q)", info.Device, info.MAC), w.close())
	}
	w.mac = [6]byte(mac)
	for src := range w.locals {
		if i := slices.IndexFunc(of, func(e *entry) bool { return e.path.Source == src }); !of[i].path.Owned {
			w.neighbours = append(w.neighbours, route.NewNeighbour(src, w.mac))
		}
	}
	for _, warning := range of[0].path.Bypassed(w.qdisc) {
		o.Log.Warn(warning)
	}
	o.Log.Info("device open", "driver", info.Driver, "device", info.Device, "backend", info.Backend, "push", info.Push)
	return w, nil
}

// claim reserves a source address that the kernel does not have.
func (w *wire) claim(source netip.Addr) error {
	i, err := netif.Lookup(w.iface)
	if err != nil {
		return err
	}
	defer i.Close()
	held, err := i.Claim([]netip.Prefix{netip.PrefixFrom(source.WithZone(""), source.BitLen())}, nil)
	w.claims = append(w.claims, held...)
	return err
}

// openSockets opens the socket for targets like e, or one for each source port.
func (w *wire) openSockets(e *entry, source netip.Addr, tos uint8, o *Options) (err error) {
	w.echo = e.Proto == probe.ICMP
	if e.SourcePorts > 1 {
		if w.ports, err = socket.OpenPorts(source, e.SourcePorts, o.NIC.Device); err != nil {
			return err
		}
		w.socket = w.ports.All[0]
		for _, s := range w.ports.All {
			if err := s.Mark(tos, o.TTL); err != nil {
				return errors.Join(err, w.ports.Close())
			}
		}
		return nil
	}
	if w.socket, err = socket.OpenShared(source, w.echo, o.NIC.Device); err != nil {
		return err
	}
	if err := w.socket.Mark(tos, o.TTL); err != nil {
		return errors.Join(err, w.socket.Close())
	}
	return nil
}

// mostPorts returns the largest number of source ports of the entries that send from an address, 0 if none has several.
func mostPorts(of []*entry, source netip.Addr) (most int) {
	for _, e := range of {
		if e.path.Source == source && e.SourcePorts > 1 {
			most = max(most, e.SourcePorts)
		}
	}
	return most
}

// holdPorts chooses further ports of the address that e sends from, the same ones after a restart if they are free.
func (l *local) holdPorts(e *entry, count int, device string) (err error) {
	if count > 0 && e.path.Owned {
		if l.held, err = socket.HoldPorts(e.path.Source, e.path.Index, count, device); err != nil {
			return err
		}
	}
	for i := range count {
		port := uint16(socket.FirstPort + i)
		if l.held != nil {
			port = l.held[i].Local().Port()
		}
		l.ports = append(l.ports, port)
	}
	return nil
}

// perSecond returns the number of probes that the entries send in a second.
func perSecond(of []*entry) (n float64) {
	for _, e := range of {
		n += 1 / e.Interval.Seconds()
	}
	return n
}

// prepare creates the flow of an entry, if it has none, and determines its neighbour's MAC.
func (m *manager) prepare(e *entry, w *wire, tables neighbourTables) error {
	o := &m.options
	test := probe.TestPacket{SSID: e.SSID, Key: e.Key.Bytes(), Authenticated: e.Key.Bytes() != nil}
	more := 0
	if e.Proto == probe.STAMP {
		if o.Timing {
			test = withTiming(test, e)
		}
		more = test.Extra()
	}
	size := max(e.Size, probe.MinSize(e.Proto, e.addr.Is6())+more)
	if o.Timeout/e.Interval > MostUnderWay {
		return fmt.Errorf("an interval of %v with a timeout of %v: too many probes would be in flight to one target",
			e.Interval, o.Timeout)
	}
	if e.flow == nil {
		f := probe.Flow{Proto: e.Proto, Src: e.path.Source.WithZone(""), Dst: e.addr.WithZone(""), DstPort: e.Port,
			Run: rand.Uint32(), Size: size,
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
			if e.SourcePorts > 1 {
				f.SrcPorts = slices.Clone(l.ports[:e.SourcePorts])
				f.SrcPort = f.SrcPorts[0]
			}
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
		if w.device != nil {
			e.flow.hop = w.hopOf(e)
		}
		e.flow.peer = socket.NewPeer(netip.AddrPortFrom(e.addr, e.Port), uint32(e.path.Index))
		if e.flow.ports = f.SrcPorts; f.SrcPorts != nil {
			e.flow.frames = true
			// the kernel sends a trace by its own routes
			if held := w.locals[e.path.Source].held; held != nil && !m.gateway(e.addr).IsValid() {
				e.flow.tracers = held[:len(f.SrcPorts)]
			}
		}
		if w.ports != nil {
			e.flow.tracers = w.ports.All
			for _, s := range w.ports.All {
				e.flow.ports = append(e.flow.ports, s.Local().Port())
			}
		}
		if n := len(e.flow.ports); n > 0 {
			e.flow.paths, e.flow.missed = make([]uint32, n), make([]int, n)
		}
		m.archive.follow(e)
	}
	if e.known = true; w.device != nil {
		e.known, e.ask = e.resolve(tables)
	}
	return nil
}

// withTiming adds the Host Timing TLV, unless the rest of a probe of this size would be too short for a padding TLV.
func withTiming(test probe.TestPacket, e *entry) probe.TestPacket {
	asking := test
	asking.Ask = []probe.Ask{probe.AskTiming()}
	const header = 4
	if room := e.Size - probe.MinSize(e.Proto, e.addr.Is6()) - asking.Extra(); room > 0 && room < header {
		return test
	}
	return asking
}

// hopOf returns the next hop of an entry.
func (w *wire) hopOf(e *entry) *hop {
	next := e.path.Next.WithZone("")
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hops[next]
	if h == nil {
		by := e.path.Asker(w.mac)
		h = &hop{next: next, by: by, reach: route.NewReachability(by, next)}
		w.hops[next] = h
	}
	return h
}

// resolve reports whether the MAC of an entry's next hop is known, and whether the loop has to ask for it.
func (e *entry) resolve(tables neighbourTables) (is, ask bool) {
	h := e.flow.hop
	is = h.mac.Load()&known != 0
	if !e.path.KernelResolves() {
		return is, !is
	}
	got, ok := tables.read(e.path)[h.next]
	if !ok {
		if !is || h.suspect.Load() {
			ask = e.path.AskKernel() != nil // it lacks that privilege
		}
		return is, ask && !is
	}
	if got.MAC != h.kernel || !is {
		h.kernel = got.MAC
		h.set(got.MAC)
	}
	h.static.Store(got.Permanent)
	return true, false
}

// neighbourTables are the kernel's, each read once.
type neighbourTables map[neighbourTable]map[netip.Addr]route.Entry

type neighbourTable struct {
	index int
	v6    bool
}

func (n neighbourTables) read(p route.Path) map[netip.Addr]route.Entry {
	k := neighbourTable{p.Index, p.Next.Is6()}
	t, ok := n[k]
	if !ok {
		t = route.Neighbours(k.index, k.v6)
		n[k] = t
	}
	return t
}
