package mlx4sim

import (
	"bytes"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// RoCE version 1 is InfiniBand's transport on an Ethernet port (IBTA annex A16): the Ethernet header replaces the local
// route header, and there is always a global route header. Priorities and VLANs are not supported.

const (
	etherRoCE = 0x8915
	etherSize = 14
)

// isRoCE reports whether a frame is for the transport, which has priority over steering.
func isRoCE(b []byte) bool { return len(b) >= etherSize && be.Uint16(b[12:]) == etherRoCE }

// sendRoCE prepends the Ethernet header to a packet that starts with its global route header, and sends it.
func (m *Model) sendRoCE(q *qp, to *path, p []byte) {
	f := append(append([]byte(nil), to.dmac[:]...), to.smac[:]...)
	f = append(be.AppendUint16(f, etherRoCE), p...)
	m.emitRoCE(q, append(f, rdma.ICRC(f[etherSize:], false)...))
}

// sendRawRoCE sends a packet that QP1 built, including the Ethernet header and room for the ICRC at its end.
func (m *Model) sendRawRoCE(q *qp, flags uint32, b []byte) *wqeError {
	if len(b) < etherSize+rdma.GRHSize+rdma.BTHSize+rdma.ICRCSize || !isRoCE(b) {
		return badWQE(syndLocalLength,
			"a frame of %d bytes: expected the headers of RoCE (EtherType %04xh), and room for the ICRC", len(b),
			etherRoCE)
	}
	if flags&mlxICRC == 0 {
		b = b[:len(b)-rdma.ICRCSize]
		b = append(b, rdma.ICRC(b[etherSize:], false)...)
	}
	m.emitRoCE(q, b)
	return nil
}

// emitRoCE puts a frame on the wire, or loops it back if it is for this port.
func (m *Model) emitRoCE(q *qp, f []byte) {
	q.sent++
	for len(f) < 60 {
		f = append(f, 0)
	}
	if [6]byte(f) == m.opt.MAC {
		m.port.turned = append(m.port.turned, f)
		return
	}
	if !m.port.up {
		m.count.packetsOff++
		return
	}
	m.count.tx.wire(f)
	m.transmitPacket(f)
}

// takeRoCE handles a frame from the wire, or a looped one.
func (m *Model) takeRoCE(f []byte) bool {
	p, ok := parseRoCE(f)
	if !ok {
		m.count.packetsBad++
		return false
	}
	m.count.packetsIn++
	if f[0]&1 == 0 && !m.ownGID(p.grh[24:]) {
		m.count.rxFiltered++
		return false
	}
	return m.takePacket(&p)
}

// parseRoCE reads a frame. It may be longer than the packet: short ones are padded.
func parseRoCE(f []byte) (p packet, ok bool) {
	b := f[etherSize:]
	if len(b) < rdma.GRHSize || b[6] != nextIBA {
		return p, false
	}
	n := rdma.GRHSize + int(be.Uint16(b[4:]))
	if n > len(b) || n < rdma.GRHSize+rdma.BTHSize+rdma.ICRCSize {
		return p, false
	}
	end := n - rdma.ICRCSize
	p.grh, p.smac = b[:rdma.GRHSize], f[6:12]
	return p, p.parseTransport(b[rdma.GRHSize:end]) && bytes.Equal(rdma.ICRC(b[:end], false), b[end:n])
}

func (m *Model) ownGID(g []byte) bool {
	for _, own := range m.port.gids {
		if own != [16]byte{} && bytes.Equal(own[:], g) {
			return true
		}
	}
	return false
}

// setGIDs sets the port's addresses: SET_PORT's table of GIDs.
func (m *Model) setGIDs(b []byte) {
	for i := range m.port.gids {
		copy(m.port.gids[i][:], b[16*i:])
	}
}
