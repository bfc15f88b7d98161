package afpacket

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// header is struct tpacket2_hdr of linux/if_packet.h, at the start of each slot. The kernel writes all of it except for
// status, which both sides write: the slot is ours while it is statusUser, and the kernel's while it is 0.
type header struct {
	status    uint32
	len       uint32 // bytes of the frame on the wire
	snaplen   uint32 // bytes of the frame in the slot
	mac       uint16 // offset of the frame in the slot
	net       uint16
	sec, nsec uint32
	vlanTCI   uint16
	vlanTPID  uint16
	_         [4]byte
}

const _ = uint(unsafe.Sizeof(header{}) - 32)
const _ = uint(32 - unsafe.Sizeof(header{}))

// Bits of header.status.
const (
	statusUser          uint32 = unix.TP_STATUS_USER
	statusVLAN          uint32 = unix.TP_STATUS_VLAN_VALID      // the kernel took a tag out of the frame
	statusVLANTPID      uint32 = unix.TP_STATUS_VLAN_TPID_VALID // the TPID is valid; 0x8100 otherwise
	statusPartial       uint32 = unix.TP_STATUS_CSUMNOTREADY    // the sender left the checksum to the device
	statusStampHardware uint32 = unix.TP_STATUS_TS_RAW_HARDWARE
)

const (
	tagSize = 4 // an IEEE 802.1Q tag
	// requested in front of each frame: room for a tag, and a multiple of the kernel's alignment
	reserve = 16
	macFrom = 32 + unix.SizeofSockaddrLinklayer + 14 + reserve + 16 // a bound of header.mac
)

// ring is the memory that a socket and the kernel share.
type ring struct {
	mem  []byte
	size uintptr // bytes of a slot, a power of two
	end  uintptr // bytes of all slots
}

// newRing creates a receive ring of slots for frames of up to frame bytes on fd, and maps it.
func newRing(fd, slots, frame int) (ring, error) {
	size := 2048
	for size < macFrom+frame {
		size *= 2
	}
	block := max(size, 1<<16)
	req := unix.TpacketReq{
		Block_size: uint32(block),
		Block_nr:   uint32(max(1, slots*size/block)),
		Frame_size: uint32(size),
	}
	req.Frame_nr = req.Block_nr * uint32(block/size)
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &req); err != nil {
		return ring{}, fmt.Errorf("PACKET_RX_RING of %d slots of %d bytes: %w", req.Frame_nr, size, err)
	}
	n := block * int(req.Block_nr)
	mem, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring{}, fmt.Errorf("map the receive ring of %d bytes: %w", n, err)
	}
	return ring{mem: mem, size: uintptr(size), end: uintptr(n)}, nil
}

// slot returns the header of the slot at offset off.
func (g *ring) slot(off uintptr) *header {
	return (*header)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(g.mem)), off))
}

// next returns the offset of the slot after the one at off.
func (g *ring) next(off uintptr) uintptr {
	if off += g.size; off == g.end {
		return 0
	}
	return off
}

// full reports whether the kernel has put a frame into the slot, and its status (nic/memory-order.md: done, then the
// rest).
func (h *header) full() (status uint32, ok bool) {
	status = atomic.LoadUint32(&h.status)
	return status, status&statusUser != 0
}

// free returns the slot to the kernel (nic/memory-order.md: rings shared with the kernel).
func (h *header) free() { mmio.Store32(&h.status, 0) }

// frame returns the start of the frame.
func (h *header) frame() unsafe.Pointer { return unsafe.Add(unsafe.Pointer(h), uintptr(h.mac)) }

// retag puts the VLAN tag that the kernel took out back in front of the EtherType, and returns the frame's new start.
//
//go:noinline
func (h *header) retag(status uint32) unsafe.Pointer {
	old := (*[12]byte)(h.frame())
	frame := (*[16]byte)(unsafe.Add(unsafe.Pointer(old), -tagSize))
	copy(frame[:12], old[:])
	tpid := uint16(unix.ETH_P_8021Q)
	if status&statusVLANTPID != 0 {
		tpid = h.vlanTPID
	}
	binary.BigEndian.PutUint16(frame[12:], tpid)
	binary.BigEndian.PutUint16(frame[14:], h.vlanTCI)
	return unsafe.Pointer(frame)
}
