package mlx4

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Interval for polling the port's state. Changes by the subnet manager are reported by events, where firmware has
// them.
var (
	subnetLook  = 10 * time.Second // with them
	subnetTick  = time.Second      // without them, and while the driver waits for something
	saTimeout   = time.Second      // for an answer of subnet administration
	saTries     = 4
	leaveWithin = 200 * time.Millisecond // timeout of the answer when leaving a group
)

// subnet is the subnet of an InfiniBand port: its manager assigns the port's address, and its administration makes the
// port a member of groups and knows paths to others. It has the lifetime of the Device. A goroutine, run, serves it
// from the start of the port until the next; other goroutines call the methods.
type subnet struct {
	d *Device

	state atomic.Pointer[subnetState]

	kick   chan struct{}
	rejoin atomic.Bool
	halt   chan struct{} // closed for run to end
	ended  sync.WaitGroup

	smi, gsi *specialQP // queue pairs 0 and 1
	client   ib.Client
	last     subnetState            // the state that run saw last
	said     string                 // what the last log line said about waiting
	waits    atomic.Pointer[string] // the same, for others
	qpUp     bool
	attached map[ib.GID]bool

	stations stations

	joins, failures, lids, managers, asked, unanswered atomic.Uint64
}

// subnetState is the state of the port.
type subnetState struct {
	info   ib.PortInfo
	gid    ib.GID
	pkey   uint16
	member bool // of the broadcast group
	group  ib.Group
}

func newSubnet(d *Device) *subnet {
	s := &subnet{d: d}
	s.stations.reset()
	return s
}

// startSubnet creates queue pairs 0 and 1 and starts the goroutines that manage the port.
func (d *Device) startSubnet() (err error) {
	s := d.subnet
	if s == nil {
		return nil
	}
	s.halt, s.kick = make(chan struct{}), make(chan struct{}, 1)
	s.last, s.qpUp, s.attached = subnetState{}, false, map[ib.GID]bool{}
	s.say("")
	s.state.Store(&subnetState{})
	if s.smi, err = d.createSpecial(0); err == nil {
		s.gsi, err = d.createSpecial(1)
	}
	if err != nil {
		s.halt = nil
		return err
	}
	s.ended.Go(s.run)
	s.ended.Go(s.answer)
	return nil
}

// stop ends run. If leave is set, the port is closed permanently, and leaves its groups. A nil or unstarted subnet is
// allowed.
func (s *subnet) stop(leave bool) {
	if s == nil || s.halt == nil {
		return
	}
	close(s.halt)
	s.ended.Wait()
	s.halt = nil
	if leave && s.last.member && s.d.commands.dead.Load() == nil {
		s.leave()
	}
	s.state.Store(&subnetState{})
}

func (s *subnet) stopped() bool {
	select {
	case <-s.halt:
		return true
	default:
		return false
	}
}

// changed makes run check the port now, and renew its memberships if rejoin is set.
func (s *subnet) changed(rejoin bool) {
	if s == nil {
		return
	}
	if rejoin {
		s.rejoin.Store(true)
	}
	select {
	case s.kick <- struct{}{}:
	default: // it will be looked at anyhow
	}
}

func (s *subnet) run() {
	for {
		again := s.check()
		select {
		case <-s.halt:
			return
		case <-s.kick:
		case <-time.After(again):
		}
	}
}

func (s *subnet) say(what string) {
	s.said = what
	s.waits.Store(&what)
}

// wait logs, once, what the port waits for, and returns the time until the next check.
func (s *subnet) wait(what string, args ...any) time.Duration {
	if s.said != what {
		s.say(what)
		s.d.card.Log.Warn(what, args...)
	}
	return subnetTick
}

// check checks the port and does what is due. It returns the time until the next check.
func (s *subnet) check() time.Duration {
	now, err := s.read()
	if err != nil {
		return s.wait("the port does not tell its state", "err", err)
	}
	was := s.last
	now.member, now.group = was.member, was.group
	log := s.d.card.Log
	if now.info.State != was.info.State && was.info.State != 0 {
		log.Info("port", "port", s.d.port, "state", now.info.State)
	}
	moved := false
	if was.info.LID != 0 && now.info.LID != was.info.LID {
		s.lids.Add(1)
		moved = true
		log.Info("the port has another LID", "was", was.info.LID, "is", now.info.LID)
	}
	if was.info.SMLID != 0 && now.info.SMLID != was.info.SMLID {
		s.managers.Add(1)
		moved = true
		log.Info("the subnet has another manager", "was", was.info.SMLID, "is", now.info.SMLID)
	}
	moved = moved || was.gid != (ib.GID{}) && now.gid != was.gid || was.member && now.pkey != was.pkey
	again := s.rejoin.Swap(false) || moved
	if now.info.State != ib.PortActive {
		now.member = false
	}
	s.publish(now)
	switch {
	case now.info.State == ib.PortInit:
		return s.wait("no subnet manager has configured the port: waiting for one")
	case now.info.State != ib.PortActive:
		s.say("")
		return subnetTick
	}
	if !now.member || again {
		if err := s.join(&now); err != nil {
			if errors.Is(err, errStopped) {
				return subnetTick
			}
			s.failures.Add(1)
			now.member = false
			s.publish(now)
			s.rejoin.Store(again)
			return s.wait(explain(err), "err", err)
		}
		s.publish(now)
		again = true
	}
	s.resolve(again)
	if s.d.caps.portChanges {
		return subnetLook
	}
	return subnetTick
}

// explain describes the cause of a failed join.
func explain(err error) string {
	var refused *ib.StatusError
	switch {
	case errors.Is(err, ib.ErrNoSM):
		return "the port is active, and subnet administration does not answer: retrying"
	case errors.As(err, &refused):
		return "subnet administration refuses the groups of IPoIB: trying on"
	}
	return "the groups of IPoIB were not joined: trying on"
}

// publish makes known what is known.
func (s *subnet) publish(now subnetState) {
	s.last = now
	s.state.Store(&now)
	if q := s.d.datagrams; q != nil {
		a := ib.NewAddress(q.rxQPN, now.gid)
		q.address.Store(&a)
		atomic.StoreUint64(&q.self, uint64(newStation(ib.Station(now.info.LID, q.rxQPN))))
	}
}

// read reads the state of the port.
func (s *subnet) read() (now subnetState, err error) {
	d := s.d
	if now.info, err = d.portInfo(); err != nil {
		return now, err
	}
	b, err := d.mad(ib.Query(ib.AttrGUIDInfo, 0, 1))
	if err != nil {
		return now, err
	}
	guids, err := ib.ParseGUIDs(b, 0, 1)
	if err != nil {
		return now, err
	}
	if b, err = d.mad(ib.Query(ib.AttrPKeyTable, 0, 1)); err != nil {
		return now, err
	}
	keys, err := ib.ParsePKeys(b, 0, 1)
	now.gid, now.pkey = ib.NewGID(now.info.GIDPrefix, guids[0]), keys[0]
	return now, err
}

// newClient returns a client of subnet administration for the current state of the port.
func (s *subnet) newClient(now *subnetState, timeout time.Duration, tries int) *ib.Client {
	c := &s.client
	c.Port, c.PKey, c.Timeout, c.Tries = now.gid, now.pkey, timeout, tries
	to := ib.Datagram{SLID: now.info.LID, DLID: now.info.SMLID, SL: now.info.SMSL, PKey: now.pkey, SrcQP: ib.GSIQP,
		DstQ: ib.GSIQP, QKey: ib.GSIQKey}
	c.Send = func(mad []byte) error { return s.gsi.send(mad, to) }
	c.Recv = s.gsi.recv
	return c
}

// join makes the port a member of IPoIB's groups, starts the queue pair with the Q_Key that it learns, and attaches it
// to the groups.
func (s *subnet) join(now *subnetState) error {
	d, q := s.d, s.d.datagrams
	c := s.newClient(now, saTimeout, saTries)
	mgid := ib.BroadcastGroup(ib.ScopeLink, now.pkey)
	g, err := c.Join(mgid)
	if err != nil {
		return err
	}
	if s.qpUp && (swap(g.QKey) != atomic.LoadUint32(&q.qkey)) {
		d.want("group_changed", fmt.Sprintf("IPoIB's broadcast group has Q_Key %#x, had %#x", g.QKey,
			swap(atomic.LoadUint32(&q.qkey))))
		return errStopped
	}
	if !s.qpUp {
		atomic.StoreUint32(&q.qkey, swap(g.QKey))
		q.sendContext.set32(qpcQKey, g.QKey)
		if err := d.createQP(q.rxQPN, q.sendContext); err != nil {
			return err
		}
		s.qpUp = true
	}
	if err := s.deliver(mgid); err != nil {
		return err
	}
	for _, a := range s.listening() {
		mgid, err := ib.MulticastGroup(ib.ScopeLink, now.pkey, a)
		if err != nil {
			return err
		}
		joined, err := c.JoinOrCreate(mgid, g)
		if err != nil {
			return err
		}
		if a == allNodes {
			to := q.toGroup(joined)
			q.group.Store(&to)
		}
		if err := s.deliver(mgid); err != nil {
			return err
		}
	}
	s.joins.Add(1)
	now.member, now.group = true, g
	s.say("")
	d.card.Log.Info("IPoIB is up", "lid", now.info.LID, "manager", now.info.SMLID, "group", fmt.Sprintf("%x", mgid),
		"q_key", fmt.Sprintf("%#x", g.QKey),
		"mtu", ib.MTUOf(g.MTU))
	if ib.MTUOf(g.MTU) < d.card.MTU {
		d.card.Log.Warn("the group's MTU is less than ours: longer packets will not arrive", "group", ib.MTUOf(g.MTU),
			"ours", d.card.MTU)
	}
	return nil
}

// deliver attaches the queue pair to a group, once.
func (s *subnet) deliver(mgid ib.GID) error {
	if s.attached[mgid] {
		return nil
	}
	s.attached[mgid] = true
	return s.d.attach(mgid, s.d.datagrams.rxQPN)
}

var allNodes = netip.MustParseAddr("ff02::1")

// listening returns the IP groups, besides broadcast, of the addresses that are answered for (netif.Groups).
func (s *subnet) listening() (groups []netip.Addr) {
	macs, _ := netif.Groups(s.d.card.Options)
	for _, m := range macs { // all of solicited nodes (RFC 4291 §2.7.1)
		groups = append(groups, netip.AddrFrom16([16]byte{0xFF, 2, 11: 1, 12: 0xFF, 13: m[3], 14: m[4], 15: m[5]}))
	}
	if len(groups) > 0 {
		groups = append(groups, allNodes)
	}
	return groups
}

// leave ends the memberships, if subnet administration responds.
func (s *subnet) leave() {
	s.halt = make(chan struct{})
	defer func() { s.halt = nil }()
	c := s.newClient(&s.last, leaveWithin, 1)
	for mgid := range s.attached {
		if err := c.Leave(mgid); err != nil {
			s.d.card.Log.Debug("a group was not left", "err", err)
			return
		}
	}
}

// link returns the port's state: up once it is a member of IPoIB's broadcast group.
func (s *subnet) link() (nic.Link, error) {
	info, err := s.d.portInfo()
	if err != nil || info.State != ib.PortActive || !s.state.Load().member {
		return nic.Link{Waits: *s.waits.Load()}, err
	}
	return nic.Link{Up: true, Speed: info.Width * info.LaneSpeed}, nil
}

// note describes the port.
func (s *subnet) note() string {
	n := s.state.Load()
	if n == nil || n.info.State == 0 {
		return "link layer InfiniBand"
	}
	text := fmt.Sprintf("link layer InfiniBand, state %v, GUID %x, LID %#x, subnet manager at LID %#x", n.info.State,
		n.gid[8:], n.info.LID, n.info.SMLID)
	if n.member {
		text += fmt.Sprintf(", IPoIB in group %x with MTU %d, hardware address %x", n.group.MGID, ib.MTUOf(n.group.MTU),
			*s.d.datagrams.address.Load())
	}
	return text
}

// readStats adds the subnet's counters to out.
func (s *subnet) readStats(out *nic.Stats) {
	if s == nil {
		return
	}
	for name, n := range map[string]uint64{
		"subnet_changes": s.d.events.subnetChanges.Load(), "group_joins": s.joins.Load(),
		"group_join_failures": s.failures.Load(),
		"subnet_requests":     s.asked.Load(), "subnet_requests_unanswered": s.unanswered.Load(),
		"lid_changes": s.lids.Load(), "subnet_manager_changes": s.managers.Load(),
	} {
		out.Extra[name] = n
	}
}
