package virtio

import "unsafe"

// Split ring (§2.7). The Driver Area is the available ring: flags, idx, ring of uint16. The Device Area is the used
// ring: flags, idx, ring of usedElem. Flags and idx, 16 bits each, are accessed as one word here.
type splitDesc struct {
	addr  uint64
	len   uint32
	flags uint16
	next  uint16
}

// usedElem is written by the device (§2.7.8).
type usedElem struct {
	id  uint32 // first descriptor of the chain
	len uint32 // bytes that the device wrote
}

const (
	availNoInterrupt = 1 // VIRTQ_AVAIL_F_NO_INTERRUPT, flags of the available ring (§2.7.6)
	usedNoNotify     = 1 // VIRTQ_USED_F_NO_NOTIFY, flags of the used ring (§2.7.10)
	ringHead         = 4 // bytes of flags and idx before the entries of either ring
)

// packedDesc is a descriptor of the packed ring (§2.8.13): written by the driver, and overwritten by the device when it
// is used.
type packedDesc struct {
	addr uint64
	len  uint32 // of the buffer; used: bytes that the device wrote
	tail uint32 // id 15:0, flags 31:16
}

// The packed ring's Driver Area and Device Area are one event suppression structure each (§2.8.14): offset and wrap
// 15:0, flags 17:16.
const (
	eventDisable = 1 << 16 // RING_EVENT_FLAGS_DISABLE
	eventFlags   = 3 << 16
)

// Descriptor flags, of both rings (§2.7.5, §2.8.1). AVAIL and USED are the packed ring's alone.
const (
	descNext  = 1 << 0  // VIRTQ_DESC_F_NEXT: the buffer continues in another descriptor
	descWrite = 1 << 1  // VIRTQ_DESC_F_WRITE: the device writes it
	descAvail = 1 << 7  // VIRTQ_DESC_F_AVAIL
	descUsed  = 1 << 15 // VIRTQ_DESC_F_USED
)

const (
	descSize = 16
	usedSize = 8

	// headerLen is the size of struct virtio_net_hdr before each frame (§5.1.6): flags, gso_type, hdr_len, gso_size,
	// csum_start, csum_offset, num_buffers. Without offloads all but num_buffers are zero. That is 1 in what the device
	// writes, although it need not be without MRG_RXBUF, and zero in what it reads.
	headerLen = 12
)

// Compile-time checks of the device's layout.
var (
	_ [descSize]byte = [unsafe.Sizeof(splitDesc{})]byte{}
	_ [descSize]byte = [unsafe.Sizeof(packedDesc{})]byte{}
	_ [usedSize]byte = [unsafe.Sizeof(usedElem{})]byte{}
)
