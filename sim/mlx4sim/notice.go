package mlx4sim

import (
	"time"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// Notices, IBTA §13.4.8, §13.4.9 and §14.2.5.1.
const (
	methodTrap = 0x05
	attrNotice = 0x02

	noticeGeneric = 1 << 7
	noticeInform  = 4
	producerCA    = 1

	trapChange     = 144    // capabilities or the node's description changed
	changeOfDesc   = 1 << 0 // of the change flags
	noticeAttempts = 8
)

// notice is a trap that the subnet manager has not repressed yet.
type notice struct {
	mad   [madSize]byte
	tid   uint64
	again time.Duration
	left  int
}

// changed reports changed capabilities or a changed node description to the subnet manager. The agent delivers the trap
// to QP0 as if it had come from LID 0, and software forwards it, because only software has a queue for that.
func (m *Model) changed(flags uint16) {
	ib := &m.port.ib
	if ib.smID == 0 || ib.state != stateActive {
		return // a subnet manager requests everything when it takes the port
	}
	ib.notices++
	n := &notice{tid: uint64(ib.notices), left: noticeAttempts}
	b := n.mad[:]
	copy(b, []byte{1, classSMLID, 1, methodTrap})
	be.PutUint64(b[8:], n.tid)
	be.PutUint16(b[16:], attrNotice)
	be.PutUint64(b[24:], ib.mkey)
	d := b[64:]
	d[0], d[3] = noticeGeneric|noticeInform, producerCA
	be.PutUint16(d[4:], trapChange)
	be.PutUint16(d[6:], ib.lid)
	be.PutUint16(d[12:], ib.lid)
	be.PutUint32(d[16:], ib.caps)
	be.PutUint16(d[20:], flags)
	ib.notice = n
}

// stepNotice sends a trap repeatedly until it is repressed, a limited number of times.
func (m *Model) stepNotice() {
	ib := &m.port.ib
	n := ib.notice
	if n == nil || m.host.Now() < n.again {
		return
	}
	if n.left--; n.left < 0 || ib.state != stateActive {
		ib.notice = nil
		return
	}
	n.again = m.host.Now() + 4096*time.Nanosecond<<ib.timeout
	if q := m.findQP(m.obj.sqp); m.obj.sqp != 0 && q != nil {
		m.datagram(q, &packet{Packet: rdma.Packet{Op: rdma.UDSend, PKey: 0xffff}, vl: managementVL, payload: n.mad[:]},
			0)
	}
}

// repress removes a trap that the subnet manager has seen.
func (m *Model) repress(in []byte) {
	if n := m.port.ib.notice; n != nil && be.Uint64(in[8:]) == n.tid {
		m.port.ib.notice = nil
	}
}
