// Package fabric simulates an InfiniBand subnet for card models: cables, a switch, a subnet manager and subnet
// administration at LID 1, and an IPoIB host at the same LID that the test plays. It is written from the InfiniBand
// Architecture Specification (volume 1), RFC 4391 and RFC 4392, and shares no code with the drivers and models that it
// tests.
package fabric

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/sim"
)

var be = binary.BigEndian

// Fabric is the subnet. Change its fields only within Change. Packets on a cable start with the LRH and end with the
// invariant checksum.
type Fabric struct {
	complain func(format string, args ...any)
	mu       sync.Mutex

	Ports   []*Port
	Groups  map[[16]byte]*Group
	QKey    uint32 // Q_Key of the groups that members create
	Manager uint16 // LID of the subnet manager, subnet administration and the host
	Prefix  uint64
	// Sweep is how often the manager polls active ports, because a card that was reset loses its state and the cable
	// does not report that. 0 disables polling.
	Sweep time.Duration
	last  uint16   // LID of the last group created
	host  []Packet // packets received for the host's queue pairs and groups
	tid   uint64

	// Injected faults.
	DropReceives bool                    // subnet administration does not answer
	Absent       bool                    // there is no manager, so no port is configured
	Refuse       func(mad []byte) uint16 // a status instead of an answer

	Joins  map[[16]byte]int // per group
	Leaves int
	Paths  int // queries for path records
}

// Port is a port of the switch and the card at the other end of its cable.
type Port struct {
	LID   uint16
	cable *sim.Cable
	guid  uint64
	info  []byte // PortInfo of the last answer
	asked bool
	since time.Time
	state byte
	downs int // of the cable, as last seen
}

// Forget makes the manager treat the card as new.
func (p *Port) Forget() { *p = Port{LID: p.LID, cable: p.cable} }

// Group is a multicast group.
type Group struct {
	MLID    uint16
	QKey    uint32
	Members map[[16]byte]bool // by port GID
}

// Packet is a packet, split into its headers and payload.
type Packet struct {
	VL, SL     byte
	DLID, SLID uint16
	GRH        []byte // 40 bytes or nil
	PKey       uint16
	DQP, SQP   uint32
	QKey       uint32
	Payload    []byte
}

// New returns a subnet at the other ends of the cards' cables, with IPoIB's broadcast group. It calls complain for
// packets that no card may send.
func New(complain func(format string, args ...any), cables ...*sim.Cable) *Fabric {
	f := &Fabric{complain: complain, Groups: map[[16]byte]*Group{}, last: 0xC000, QKey: 0x0B1B, Manager: 1,
		Prefix: 0xFE80 << 48, Joins: map[[16]byte]int{}}
	for i, c := range cables {
		f.Ports = append(f.Ports, &Port{cable: c, LID: uint16(2 + i)})
	}
	f.Groups[Broadcast] = &Group{MLID: f.last, QKey: f.QKey, Members: map[[16]byte]bool{}}
	return f
}

// Broadcast is the GID of IPoIB's broadcast group (RFC 4391 §4).
var Broadcast = [16]byte{0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 12: 0xFF, 13: 0xFF, 14: 0xFF, 15: 0xFF}

func (p Packet) bytes() []byte {
	b := make([]byte, 8, 64+len(p.Payload))
	b[0], b[1] = p.VL<<4, p.SL<<4|2
	be.PutUint16(b[2:], p.DLID)
	be.PutUint16(b[6:], p.SLID)
	pad := -len(p.Payload) & 3
	if p.GRH != nil {
		b[1] |= 3
		g := bytes.Clone(p.GRH)
		be.PutUint16(g[4:], uint16(12+8+len(p.Payload)+pad+4))
		b = append(b, g...)
	}
	b = append(b, 0x64, 1<<6|byte(pad)<<4)
	b = be.AppendUint16(b, p.PKey)
	b = be.AppendUint32(b, p.DQP)
	b = be.AppendUint32(b, 7) // PSN
	b = be.AppendUint32(b, p.QKey)
	b = be.AppendUint32(b, p.SQP)
	b = append(append(b, p.Payload...), make([]byte, pad)...)
	be.PutUint16(b[4:], uint16(len(b)+4)/4)
	return binary.LittleEndian.AppendUint32(b, icrc(b))
}

// icrc returns the invariant checksum (IBA vol. 1 §7.8.1): fields that switches and routers may change count as ones.
func icrc(b []byte) uint32 {
	m := bytes.Clone(b)
	m[0] |= 0xF0
	bth := 8
	if m[1]&3 == 3 {
		m[8] |= 0x0F
		m[9], m[10], m[11], m[15] = 0xFF, 0xFF, 0xFF, 0xFF
		bth += 40
	}
	m[bth+4] = 0xFF
	return crc32.ChecksumIEEE(m)
}

func (f *Fabric) parse(b []byte) (p Packet, ok bool) {
	at := 8
	if len(b) < 32 || len(b) != 4*int(be.Uint16(b[4:])&0x7FF) || b[1]&3 == 3 && len(b) < 72 {
		f.complain("a packet of %d bytes: % x", len(b), b)
		return p, false
	}
	p.VL, p.SL, p.DLID, p.SLID = b[0]>>4, b[1]>>4, be.Uint16(b[2:]), be.Uint16(b[6:])
	if b[1]&3 == 3 {
		p.GRH = b[8:48]
		at = 48
	}
	if got := binary.LittleEndian.Uint32(b[len(b)-4:]); got != icrc(b[:len(b)-4]) {
		f.complain("invariant checksum %08x, want %08x: % x", got, icrc(b[:len(b)-4]), b)
		return p, false
	}
	p.PKey, p.DQP = be.Uint16(b[at+2:]), be.Uint32(b[at+4:])&0xFFFFFF
	p.QKey, p.SQP = be.Uint32(b[at+12:]), be.Uint32(b[at+16:])&0xFFFFFF
	end := len(b) - 4 - int(b[at+1]>>4&3)
	if end < at+20 {
		f.complain("a packet that ends within its headers: % x", b)
		return p, false
	}
	p.Payload = b[at+20 : end]
	return p, true
}

// Step moves packets and runs the manager.
func (f *Fabric) Step() (moved bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.Ports {
		f.manage(p)
		for b := p.cable.Recv(0); b != nil; b = p.cable.Recv(0) {
			moved = true
			if k, ok := f.parse(b); ok {
				f.route(p, k, b)
			}
		}
	}
	return moved
}

func (f *Fabric) route(from *Port, p Packet, b []byte) {
	switch {
	case p.VL == 15:
		f.managed(from, p)
	case p.DLID >= 0xC000:
		for _, g := range f.Groups {
			if g.MLID != p.DLID {
				continue
			}
			for _, to := range f.Ports {
				if g.Members[to.GID(f)] && to != from {
					to.cable.Send(0, b)
				}
			}
		}
		f.host = append(f.host, p)
	case p.DLID == f.Manager && p.DQP == 1:
		f.administer(from, p)
	case p.DLID == f.Manager:
		f.host = append(f.host, p)
	default:
		for _, to := range f.Ports {
			if to.LID == p.DLID {
				to.cable.Send(0, b)
			}
		}
	}
}

// GID returns the first GID of the port, once the manager has requested its GUID.
func (p *Port) GID(f *Fabric) (g [16]byte) {
	be.PutUint64(g[:], f.Prefix)
	be.PutUint64(g[8:], p.guid)
	return g
}

// smp sends a directed-route datagram to the port at the other end of a cable.
func (f *Fabric) smp(p *Port, method byte, attr uint16, mod uint32, data []byte) {
	b := make([]byte, 256)
	b[0], b[1], b[2], b[3], b[6], b[7] = 1, 0x81, 1, method, 1, 1
	f.tid++
	be.PutUint64(b[8:], f.tid)
	be.PutUint16(b[16:], attr)
	be.PutUint32(b[20:], mod)
	be.PutUint16(b[32:], 0xFFFF)
	be.PutUint16(b[34:], 0xFFFF)
	copy(b[64:], data)
	b[129] = 1
	p.cable.Send(0, Packet{VL: 15, DLID: 0xFFFF, SLID: 0xFFFF, PKey: 0xFFFF, Payload: b}.bytes())
}

// manage configures a port as a subnet manager does: GUID, then LID and MTU, then armed, then active.
func (f *Fabric) manage(p *Port) {
	if n := p.cable.Downs(); n != p.downs || !p.cable.Up() { // it may be up again
		p.state, p.asked, p.guid, p.downs = 0, false, 0, n
	}
	if p.asked && time.Since(p.since) > time.Second { // lost
		p.asked = false
	}
	sweep := p.state == 4 && f.Sweep > 0 && time.Since(p.since) > f.Sweep
	if f.Absent || p.asked || p.state == 4 && !sweep || !p.cable.Up() {
		return
	}
	p.asked, p.since = true, time.Now()
	switch {
	case p.guid == 0:
		f.smp(p, 1, 0x11, 0, nil)
	case p.state == 0 || sweep:
		f.smp(p, 1, 0x15, 1, nil)
	default:
		f.Configure(p, p.state+1, 0)
	}
}

// Configure sets a port's PortInfo. flags go into the byte with client reregister.
func (f *Fabric) Configure(p *Port, state, flags byte) {
	d := bytes.Clone(p.info)
	be.PutUint64(d[8:], f.Prefix)
	be.PutUint16(d[16:], p.LID)
	be.PutUint16(d[18:], f.Manager)
	d[32] = d[32]&0xF0 | state
	d[36] = 4<<4 | 0 // 2048, SL 0
	d[51] |= flags
	f.smp(p, 2, 0x15, 1, d)
}

// managed handles a response of a port's agent.
func (f *Fabric) managed(p *Port, k Packet) {
	m := k.Payload
	if len(m) != 256 || m[3] != 0x81 {
		return // a trap
	}
	p.asked = false
	if status := be.Uint16(m[4:]) &^ 0x8000; status != 0 {
		f.complain("the agent answers attribute %#x with status %#x", be.Uint16(m[16:]), status)
		return
	}
	switch be.Uint16(m[16:]) {
	case 0x11:
		p.guid = be.Uint64(m[64+20:]) // PortGUID
	case 0x15:
		p.info = bytes.Clone(m[64:128])
		p.state = p.info[32] & 15
		if p.state < 2 {
			p.state = 0
		}
	}
}

// administer answers a request to subnet administration.
func (f *Fabric) administer(from *Port, k Packet) {
	m := k.Payload
	if k.QKey != 0x80010000 || k.SQP != 1 || k.PKey&0x7FFF != 0x7FFF || len(m) != 256 || m[0] != 1 || m[1] != 3 ||
		m[2] != 2 || k.SLID != from.LID {
		f.complain("to queue pair 1: %+v", k)
		return
	}
	if f.DropReceives {
		return
	}
	a := bytes.Clone(m)
	a[3] = 0x81
	if m[3] == 0x15 {
		a[3] = 0x95
	}
	d := a[56:]
	var status uint16
	if f.Refuse != nil {
		status = f.Refuse(m)
	}
	mgid := [16]byte(d)
	mask := be.Uint64(a[48:])
	switch attr := be.Uint16(m[16:]); {
	case status != 0:
	case attr == 0x38 && m[3] == 2:
		if [16]byte(d[16:]) != from.GID(f) {
			f.complain("a join for port % x, expected % x", d[16:32], from.GID(f))
		}
		g := f.Groups[mgid]
		if g == nil && mask&(1<<2) != 0 { // created with the given parameters
			f.last++
			g = &Group{MLID: f.last, QKey: be.Uint32(d[32:]), Members: map[[16]byte]bool{}}
			f.Groups[mgid] = g
		}
		if g == nil {
			status = 2 << 8
			break
		}
		if d[48]&1 != 0 {
			g.Members[from.GID(f)] = true
		}
		f.Joins[mgid]++
		be.PutUint32(d[32:], g.QKey)
		be.PutUint16(d[36:], g.MLID)
		d[38], d[40], d[41], d[42] = 0x84, 0xFF, 0xFF, 0x83
		d[48] = 2<<4 | d[48]&15
	case attr == 0x38 && m[3] == 0x15:
		f.Leaves++
		if g := f.Groups[mgid]; g != nil {
			delete(g.Members, from.GID(f))
		}
	case attr == 0x35:
		f.Paths++
		status = 3 << 8
		for _, p := range f.Ports {
			if p.GID(f) == [16]byte(d[8:]) && p.state == 4 {
				status = 0
				be.PutUint16(d[40:], p.LID)
			}
		}
		if f.HostGID() == [16]byte(d[8:]) {
			status = 0
			be.PutUint16(d[40:], f.Manager)
		}
		be.PutUint16(d[42:], from.LID)
		be.PutUint16(d[50:], 0xFFFF)
		d[53], d[54], d[55] = 0, 0x84, 0x83
	default:
		status = 3 << 2
	}
	be.PutUint16(a[4:], status)
	from.cable.Send(0, Packet{DLID: from.LID, SLID: f.Manager, PKey: 0xFFFF, DQP: k.SQP, SQP: 1, QKey: 0x80010000,
		Payload: a}.bytes())
}

// HostGID returns the GID of the host.
func (f *Fabric) HostGID() (g [16]byte) {
	be.PutUint64(g[:], f.Prefix)
	be.PutUint64(g[8:], 0x0002C90300AAAA01)
	return g
}

// HostQP is the host's queue pair.
const HostQP = 0x48

// Send sends a payload from the host to a queue pair at a LID.
func (f *Fabric) Send(port int, qpn uint32, payload []byte, grh []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.Ports[port]
	f.Ports[port].cable.Send(0, Packet{DLID: p.LID, SLID: f.Manager, SL: 3, GRH: grh, PKey: 0xFFFF, DQP: qpn,
		SQP: HostQP, QKey: f.QKey, Payload: payload}.bytes())
}

// Multicast sends a payload from the host to a group, to every member.
func (f *Fabric) Multicast(mgid [16]byte, payload []byte) (members int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.Groups[mgid]
	if g == nil {
		return 0
	}
	for _, p := range f.Ports {
		if g.Members[p.GID(f)] {
			members++
			p.cable.Send(0, Packet{DLID: g.MLID, SLID: f.Manager, GRH: GRH(f.HostGID(), mgid), PKey: 0xFFFF,
				DQP: 0xFFFFFF, SQP: HostQP, QKey: g.QKey, Payload: payload}.bytes())
		}
	}
	return members
}

// GRH returns a global route header.
func GRH(from, to [16]byte) []byte {
	g := make([]byte, 40)
	g[0], g[6], g[7] = 6<<4, 0x1B, 1
	copy(g[8:], from[:])
	copy(g[24:], to[:])
	return g
}

// Received returns the packets that the host received, and clears the list.
func (f *Fabric) Received() []Packet {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.host
	f.host = nil
	return h
}

// Inject puts a packet on a port's cable as it is.
func (f *Fabric) Inject(port int, p Packet) { f.Ports[port].cable.Send(0, p.bytes()) }

// Change calls work while no packet moves.
func (f *Fabric) Change(work func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	work()
}
