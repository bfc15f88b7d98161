package mlx4_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"rebound/nic/sim"
)

var be = binary.BigEndian

// fabric is a subnet of InfiniBand made of cables: a switch, a subnet manager with its administration at LID 1, and an IPoIB host
// at the same LID, which the test plays. It is written from the InfiniBand specification and shares nothing with what it tests.
// Packets on a cable are from the LRH to the invariant checksum.
type fabric struct {
	t  testing.TB
	mu sync.Mutex

	ports  []*fabricPort
	groups map[[16]byte]*fabricGroup
	mlid   uint16
	qkey   uint32
	smLID  uint16
	prefix uint64
	host   []ibPacket // what came for LID 1 and its queue pairs, and for its groups
	tid    uint64

	// Faults.
	deaf    bool                    // administration does not answer
	absent  bool                    // there is no manager: nobody configures ports
	refuse  func(mad []byte) uint16 // a status in place of an answer
	joins   map[[16]byte]int
	leaves  int
	paths   int
	queries int // of any kind, by administration
}

type fabricPort struct {
	cable *sim.Cable
	lid   uint16
	guid  uint64
	info  []byte // PortInfo as it answered last
	asked bool
	since time.Time
	state byte
}

type fabricGroup struct {
	mlid    uint16
	qkey    uint32
	members map[[16]byte]bool
}

// ibPacket is a packet in parts.
type ibPacket struct {
	vl, sl     byte
	dlid, slid uint16
	grh        []byte // 40 bytes or nil
	pkey       uint16
	dqp, sqp   uint32
	qkey       uint32
	payload    []byte
}

func newFabric(t testing.TB, cables ...*sim.Cable) *fabric {
	f := &fabric{t: t, groups: map[[16]byte]*fabricGroup{}, mlid: 0xC000, qkey: 0x0B1B, smLID: 1, prefix: 0xFE80 << 48, joins: map[[16]byte]int{}}
	for i, c := range cables {
		f.ports = append(f.ports, &fabricPort{cable: c, lid: uint16(2 + i)})
	}
	f.groups[broadcastGroup] = &fabricGroup{mlid: f.mlid, qkey: f.qkey, members: map[[16]byte]bool{}}
	return f
}

var broadcastGroup = [16]byte{0xFF, 0x12, 0x40, 0x1B, 0xFF, 0xFF, 12: 0xFF, 13: 0xFF, 14: 0xFF, 15: 0xFF}

func (p ibPacket) bytes() []byte {
	b := make([]byte, 8, 64+len(p.payload))
	b[0], b[1] = p.vl<<4, p.sl<<4|2
	be.PutUint16(b[2:], p.dlid)
	be.PutUint16(b[6:], p.slid)
	pad := -len(p.payload) & 3
	if p.grh != nil {
		b[1] |= 3
		g := bytes.Clone(p.grh)
		be.PutUint16(g[4:], uint16(12+8+len(p.payload)+pad+4))
		b = append(b, g...)
	}
	b = append(b, 0x64, 1<<6|byte(pad)<<4)
	b = be.AppendUint16(b, p.pkey)
	b = be.AppendUint32(b, p.dqp)
	b = be.AppendUint32(b, 7) // PSN
	b = be.AppendUint32(b, p.qkey)
	b = be.AppendUint32(b, p.sqp)
	b = append(append(b, p.payload...), make([]byte, pad)...)
	be.PutUint16(b[4:], uint16(len(b)+4)/4)
	return binary.LittleEndian.AppendUint32(b, icrc(b))
}

// icrc is the invariant checksum (IBA vol. 1 §7.8.1): what switches and routers may change counts as ones.
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

func parsePacket(t testing.TB, b []byte) (p ibPacket) {
	t.Helper()
	at := 8
	if len(b) < 32 || len(b) != 4*int(be.Uint16(b[4:])&0x7FF) {
		t.Fatalf("a packet of %d bytes: % x", len(b), b)
	}
	p.vl, p.sl, p.dlid, p.slid = b[0]>>4, b[1]>>4, be.Uint16(b[2:]), be.Uint16(b[6:])
	if b[1]&3 == 3 {
		p.grh = b[8:48]
		at = 48
	}
	if got := binary.LittleEndian.Uint32(b[len(b)-4:]); got != icrc(b[:len(b)-4]) {
		t.Fatalf("invariant checksum %08x, want %08x: % x", got, icrc(b[:len(b)-4]), b)
	}
	p.pkey, p.dqp = be.Uint16(b[at+2:]), be.Uint32(b[at+4:])&0xFFFFFF
	p.qkey, p.sqp = be.Uint32(b[at+12:]), be.Uint32(b[at+16:])&0xFFFFFF
	p.payload = b[at+20 : len(b)-4-int(b[at+1]>>4&3)]
	return p
}

// step moves packets, and has the manager do what is due.
func (f *fabric) step() (moved bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.ports {
		f.manage(p)
		for b := p.cable.Recv(0); b != nil; b = p.cable.Recv(0) {
			moved = true
			f.route(p, parsePacket(f.t, b), b)
		}
	}
	return moved
}

func (f *fabric) route(from *fabricPort, p ibPacket, b []byte) {
	switch {
	case p.vl == 15:
		f.managed(from, p)
	case p.dlid >= 0xC000:
		for _, g := range f.groups {
			if g.mlid != p.dlid {
				continue
			}
			for _, to := range f.ports {
				if g.members[to.gid(f)] && to != from {
					to.cable.Send(0, b)
				}
			}
		}
		f.host = append(f.host, p)
	case p.dlid == f.smLID && p.dqp == 1:
		f.administer(from, p)
	case p.dlid == f.smLID:
		f.host = append(f.host, p)
	default:
		for _, to := range f.ports {
			if to.lid == p.dlid {
				to.cable.Send(0, b)
			}
		}
	}
}

func (p *fabricPort) gid(f *fabric) (g [16]byte) {
	be.PutUint64(g[:], f.prefix)
	be.PutUint64(g[8:], p.guid)
	return g
}

// smp sends a directed-route datagram to the port at the other end of a cable.
func (f *fabric) smp(p *fabricPort, method byte, attr uint16, mod uint32, data []byte) {
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
	p.cable.Send(0, ibPacket{vl: 15, dlid: 0xFFFF, slid: 0xFFFF, pkey: 0xFFFF, payload: b}.bytes())
}

// manage configures a port as a subnet manager does: GUID, then LID and MTU, then armed, then active.
func (f *fabric) manage(p *fabricPort) {
	if !p.cable.Up() {
		p.state, p.asked, p.guid = 0, false, 0
	}
	if p.asked && time.Since(p.since) > time.Second { // it was lost
		p.asked = false
	}
	if f.absent || p.asked || p.state == 4 || !p.cable.Up() {
		return
	}
	p.asked, p.since = true, time.Now()
	switch {
	case p.guid == 0:
		f.smp(p, 1, 0x11, 0, nil)
	case p.state == 0:
		f.smp(p, 1, 0x15, 1, nil)
	default:
		f.configure(p, p.state+1, 0)
	}
}

// configure sets a port's PortInfo. flags go into the byte with client reregister.
func (f *fabric) configure(p *fabricPort, state, flags byte) {
	d := bytes.Clone(p.info)
	be.PutUint64(d[8:], f.prefix)
	be.PutUint16(d[16:], p.lid)
	be.PutUint16(d[18:], f.smLID)
	d[32] = d[32]&0xF0 | state
	d[36] = 4<<4 | 0 // 2048, SL 0
	d[51] |= flags
	f.smp(p, 2, 0x15, 1, d)
}

// managed takes an answer of a port's agent.
func (f *fabric) managed(p *fabricPort, k ibPacket) {
	m := k.payload
	if len(m) != 256 || m[3] != 0x81 {
		return // a trap
	}
	p.asked = false
	if status := be.Uint16(m[4:]) &^ 0x8000; status != 0 {
		f.t.Errorf("the agent answers attribute %#x with status %#x", be.Uint16(m[16:]), status)
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
func (f *fabric) administer(from *fabricPort, k ibPacket) {
	m := k.payload
	if k.qkey != 0x80010000 || k.sqp != 1 || k.pkey&0x7FFF != 0x7FFF || len(m) != 256 || m[0] != 1 || m[1] != 3 || m[2] != 2 || k.slid != from.lid {
		f.t.Errorf("to queue pair 1: %+v", k)
		return
	}
	f.queries++
	if f.deaf {
		return
	}
	a := bytes.Clone(m)
	a[3] = 0x81
	if m[3] == 0x15 {
		a[3] = 0x95
	}
	d := a[56:]
	var status uint16
	if f.refuse != nil {
		status = f.refuse(m)
	}
	mgid := [16]byte(d)
	mask := be.Uint64(a[48:])
	switch attr := be.Uint16(m[16:]); {
	case status != 0:
	case attr == 0x38 && m[3] == 2:
		if [16]byte(d[16:]) != from.gid(f) {
			f.t.Errorf("a join for port % x, expected % x", d[16:32], from.gid(f))
		}
		g := f.groups[mgid]
		if g == nil && mask&(1<<2) != 0 { // made with what is given
			f.mlid++
			g = &fabricGroup{mlid: f.mlid, qkey: be.Uint32(d[32:]), members: map[[16]byte]bool{}}
			f.groups[mgid] = g
		}
		if g == nil {
			status = 2 << 8
			break
		}
		if d[48]&1 != 0 {
			g.members[from.gid(f)] = true
		}
		f.joins[mgid]++
		be.PutUint32(d[32:], g.qkey)
		be.PutUint16(d[36:], g.mlid)
		d[38], d[40], d[41], d[42] = 0x84, 0xFF, 0xFF, 0x83
		d[48] = 2<<4 | d[48]&15
	case attr == 0x38 && m[3] == 0x15:
		f.leaves++
		delete(f.groups[mgid].members, from.gid(f))
	case attr == 0x35:
		f.paths++
		status = 3 << 8
		for _, p := range f.ports {
			if p.gid(f) == [16]byte(d[8:]) && p.state == 4 {
				status = 0
				be.PutUint16(d[40:], p.lid)
			}
		}
		if f.hostGID() == [16]byte(d[8:]) {
			status = 0
			be.PutUint16(d[40:], f.smLID)
		}
		be.PutUint16(d[42:], from.lid)
		be.PutUint16(d[50:], 0xFFFF)
		d[53], d[54], d[55] = 0, 0x84, 0x83
	default:
		status = 3 << 2
	}
	be.PutUint16(a[4:], status)
	from.cable.Send(0, ibPacket{dlid: from.lid, slid: f.smLID, pkey: 0xFFFF, dqp: k.sqp, sqp: 1, qkey: 0x80010000, payload: a}.bytes())
}

// hostGID is the GID of the host that the test plays, hostQP its queue pair.
func (f *fabric) hostGID() (g [16]byte) {
	be.PutUint64(g[:], f.prefix)
	be.PutUint64(g[8:], 0x0002C90300AAAA01)
	return g
}

const hostQP = 0x48

// send sends a payload from the host to a queue pair at a LID.
func (f *fabric) send(port int, qpn uint32, payload []byte, grh []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.ports[port]
	f.ports[port].cable.Send(0, ibPacket{dlid: p.lid, slid: f.smLID, sl: 3, grh: grh, pkey: 0xFFFF, dqp: qpn, sqp: hostQP, qkey: f.qkey, payload: payload}.bytes())
}

// multicast sends a payload from the host to a group, to every member.
func (f *fabric) multicast(mgid [16]byte, payload []byte) (members int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.groups[mgid]
	if g == nil {
		return 0
	}
	for _, p := range f.ports {
		if g.members[p.gid(f)] {
			members++
			p.cable.Send(0, ibPacket{dlid: g.mlid, slid: f.smLID, grh: grhTo(f.hostGID(), mgid), pkey: 0xFFFF, dqp: 0xFFFFFF, sqp: hostQP, qkey: g.qkey, payload: payload}.bytes())
		}
	}
	return members
}

func grhTo(from, to [16]byte) []byte {
	g := make([]byte, 40)
	g[0], g[6], g[7] = 6<<4, 0x1B, 1
	copy(g[8:], from[:])
	copy(g[24:], to[:])
	return g
}

// received returns what came for the host, and forgets it.
func (f *fabric) received() []ibPacket {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.host
	f.host = nil
	return h
}
