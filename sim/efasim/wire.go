package efasim

import (
	"encoding/binary"
	"fmt"
)

// The wire format is the model's own, because EFA's is not public. wire.md describes it, and efa-wire.lua
// decodes it in Wireshark.
const (
	etherType   = 0x88b5 // local experimental, IEEE 802
	wireVersion = 1
	etherSize   = 14
	headSize    = 84
)

// Types of frames.
const (
	typeUDSend   = 1
	typeSRDSend  = 2
	typeWrite    = 3 // a part of an RDMA write
	typeWriteImm = 4 // its immediate, after all parts are acknowledged
	typeRead     = 5 // requests a part of an RDMA read
	typeAck      = 6 // of types 2 to 5: sequence number and result
	typeReadData = 7 // of type 5, with the bytes
)

const flagImm = 1 << 0

// frame is a frame on the wire.
type frame struct {
	typ, flags, status uint8
	src, dst           [16]byte
	srcQP, dstQP       uint16
	qkey, imm          uint32 // imm as in the WQE
	epoch, seq         uint32 // of the requester, repeated in acknowledgements
	raddr              uint64
	rkey, length       uint32 // of RDMA: the part's length
	payload            []byte
}

var le, be = binary.LittleEndian, binary.BigEndian

// macOf returns the MAC address from which a GID was derived (RFC 4291, appendix A), or the broadcast address.
func macOf(gid [16]byte) [6]byte {
	if gid[11] != 0xff || gid[12] != 0xfe {
		return [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	return [6]byte{gid[8] ^ 2, gid[9], gid[10], gid[13], gid[14], gid[15]}
}

// gidOf returns the link-local address derived from a MAC address.
func gidOf(mac [6]byte) (g [16]byte) {
	g = [16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4],
		15: mac[5]}
	return g
}

func (f *frame) marshal() []byte {
	b := make([]byte, etherSize+headSize, etherSize+headSize+len(f.payload))
	to, from := macOf(f.dst), macOf(f.src)
	copy(b[0:], to[:])
	copy(b[6:], from[:])
	be.PutUint16(b[12:], etherType)
	h := b[etherSize:]
	h[0], h[1], h[2], h[3] = wireVersion, f.typ, f.flags, f.status
	copy(h[4:], f.src[:])
	copy(h[20:], f.dst[:])
	be.PutUint16(h[36:], f.srcQP)
	be.PutUint16(h[38:], f.dstQP)
	be.PutUint32(h[40:], f.qkey)
	be.PutUint32(h[44:], f.imm)
	be.PutUint32(h[48:], f.epoch)
	be.PutUint32(h[52:], f.seq)
	be.PutUint64(h[56:], f.raddr)
	be.PutUint32(h[64:], f.rkey)
	be.PutUint32(h[68:], f.length)
	be.PutUint32(h[72:], uint32(len(f.payload)))
	return append(b, f.payload...) // 8 bytes are reserved
}

// parseFrame parses a frame. The payload is a part of b.
func parseFrame(b []byte) (f frame, err error) {
	switch {
	case len(b) < etherSize+headSize:
		return f, fmt.Errorf("frame of %d bytes: the headers have %d", len(b), etherSize+headSize)
	case be.Uint16(b[12:]) != etherType:
		return f, fmt.Errorf("EtherType %#04x, %#04x is expected", be.Uint16(b[12:]), etherType)
	}
	h := b[etherSize:]
	n := be.Uint32(h[72:])
	switch {
	case h[0] != wireVersion:
		return f, fmt.Errorf("version %d, %d is expected", h[0], wireVersion)
	case h[1] < typeUDSend || h[1] > typeReadData:
		return f, fmt.Errorf("type %d", h[1])
	case n > uint32(len(h)-headSize) || n > mtu:
		return f, fmt.Errorf("payload of %d bytes in a frame of %d", n, len(b))
	}
	f = frame{typ: h[1], flags: h[2], status: h[3], src: [16]byte(h[4:]), dst: [16]byte(h[20:]),
		srcQP: be.Uint16(h[36:]),
		dstQP: be.Uint16(h[38:]), qkey: be.Uint32(h[40:]), imm: be.Uint32(h[44:]), epoch: be.Uint32(h[48:]),
		seq:   be.Uint32(h[52:]),
		raddr: be.Uint64(h[56:]), rkey: be.Uint32(h[64:]), length: be.Uint32(h[68:]), payload: h[headSize:][:n]}
	return f, nil
}

// transmit sends a frame to the wire, or to this device itself. SRD frames of one Step leave in any order.
func (m *Model) transmit(f *frame, to [16]byte) {
	if to == m.gid {
		m.loop = append(m.loop, f.marshal())
		return
	}
	m.out = append(m.out, outgoing{f.marshal(), f.typ != typeUDSend})
}

type outgoing struct {
	frame []byte
	srd   bool
}

// flushWire sends the frames of a Step. SRD uses many paths, so its frames overtake one another: the model shuffles
// those of one Step.
func (m *Model) flushWire() {
	if !m.opt.InOrder {
		for i := len(m.out) - 1; i > 0; i-- {
			if j := i - m.Rand.IntN(min(i, 3)+1); m.out[i].srd && m.out[j].srd {
				m.out[i], m.out[j] = m.out[j], m.out[i]
			}
		}
	}
	for _, o := range m.out {
		m.Host.Transmit(o.frame)
	}
	clear(m.out)
	m.out = m.out[:0]
}
