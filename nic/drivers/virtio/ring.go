package virtio

import (
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// ring is one virtqueue. Entry numbers are free-running; their low bits index the ring. In the packed ring the driver's
// and the device's wrap counters (§2.8.1) are the lowest bit above those, inverted: they start at 1.
type ring struct {
	desc   unsafe.Pointer // Descriptor Area
	driver unsafe.Pointer // Driver Area: the available ring; packed, the driver's event suppression
	device unsafe.Pointer // Device Area: the used ring; packed, the device's event suppression
	bell   unsafe.Pointer // notification address

	index  uint32 // of the virtqueue
	mask   uint32 // ring size - 1
	shift  uint8  // log2 of the ring size
	packed bool
	data   bool // the notification includes the next entry (NOTIFICATION_DATA)

	next uint32 // entries before it were made available to the device
	seen uint32 // used entries before it were taken back

	fence uint32 // its value means nothing

	iova [3]uint64 // of the three areas
}

// Sizes of the areas in bytes (§2.7, §2.8.10).
func (r *ring) areas() [3]int {
	n := int(r.mask) + 1
	if r.packed {
		return [3]int{n * descSize, 4, 4}
	}
	return [3]int{n * descSize, ringHead + 2*n, ringHead + usedSize*n}
}

// reset puts the ring into the state in which a device that was reset expects it: nothing available, no interrupts
// wanted.
func (r *ring) reset() {
	r.next, r.seen = 0, 0
	a := r.areas()
	clear(unsafe.Slice((*byte)(r.desc), a[0]))
	clear(unsafe.Slice((*byte)(r.device), a[2]))
	*(*uint32)(r.driver) = availNoInterrupt
	if r.packed {
		*(*uint32)(r.driver) = eventDisable
	}
}

// avail returns the AVAIL and USED flags that make entry n of a packed ring available.
func (r *ring) avail(n uint32) uint32 { return descAvail << (n >> (r.shift & 31) & 1 * 8) }

// isUsed reports whether the device has used entry n of a packed ring, according to tail, the entry's last word.
func (r *ring) isUsed(tail, n uint32) bool {
	wrap := (n>>(r.shift&31)&1 - 1) & ((descAvail | descUsed) << 16)
	return tail&((descAvail|descUsed)<<16) == wrap
}

// usedEnd returns the number after the last used entry of a split ring. The device's index has 16 bits. If it claims
// more entries than are outstanding, the caller finds an invalid one.
func (r *ring) usedEnd(seen uint32) uint32 {
	return seen + uint32(uint16(atomic.LoadUint32((*uint32)(r.device))>>16-seen))
}

// notify tells the device that entries before r.next are available, unless it requests no notification (§2.7.7,
// §2.8.14). The caller has published them.
//
// A device that suppresses notifications enables them before it checks the ring for the last time. So the suppression
// counts only if it is read after the entries are visible, after a full fence. Then at least one side sees what the
// other wrote, and no entry is forgotten (nic/memory-order.md, "entries, then the device's wish"). A request for
// notifications needs no fence, because an unnecessary notification does no harm.
func (r *ring) notify() {
	if r.unwanted() {
		atomic.StoreUint32(&r.fence, 0)
		if r.unwanted() {
			return
		}
	}
	switch {
	case !r.data:
		mmio.Store16((*uint16)(r.bell), uint16(r.index))
	case r.packed: // §2.9: offset in 30:16, wrap counter in 31
		mmio.Store32((*uint32)(r.bell), r.index|r.next&r.mask<<16|^r.next>>(r.shift&31)<<31)
	default:
		mmio.Store32((*uint32)(r.bell), r.index|r.next<<16)
	}
}

// unwanted reports whether the device suppresses notifications.
func (r *ring) unwanted() bool {
	w := atomic.LoadUint32((*uint32)(r.device))
	if r.packed {
		return w&eventFlags == eventDisable
	}
	return w&usedNoNotify != 0
}

func (r *ring) packedAt(n uint32) *packedDesc {
	return (*packedDesc)(unsafe.Add(r.desc, n&r.mask*descSize))
}
func (r *ring) splitAt(id uint32) *splitDesc {
	return (*splitDesc)(unsafe.Add(r.desc, id*descSize))
}
func (r *ring) availAt(n uint32) *uint16 {
	return (*uint16)(unsafe.Add(r.driver, ringHead+n&r.mask*2))
}
func (r *ring) usedAt(n uint32) *usedElem {
	return (*usedElem)(unsafe.Add(r.device, ringHead+n&r.mask*usedSize))
}

// publish makes the entries of a split ring before r.next available, after all earlier stores.
func (r *ring) publish() { mmio.Store32((*uint32)(r.driver), r.next<<16|availNoInterrupt) }
