package virtio

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
)

// control is the control queue (§5.1.6.5): one command at a time.
type control struct {
	ring
	buf  unsafe.Pointer // command, then acknowledgement in the last byte
	iova uint64
}

const (
	controlRing = 64   // entries at most
	controlBuf  = 4096 // bytes; large enough for a table of multicast addresses
)

// errRefused means that the device refused a command.
var errRefused = fmt.Errorf("%w: refused", nic.ErrHardware)

// controlLimit is the timeout of a command: most devices are threads of a hypervisor, which may be descheduled.
const controlLimit = 5 * time.Second

// command sends one command and waits for its end.
func (c *control) command(d *Device, name string, what [2]byte, data []byte) error {
	size := len(what) + len(data)
	if size >= controlBuf {
		return d.card.Errorf("control command %s of %d bytes, at most %d are possible", name, size, controlBuf-1)
	}
	b := unsafe.Slice((*byte)(c.buf), controlBuf)
	copy(b, what[:])
	copy(b[2:], data)
	b[controlBuf-1] = 0xFF
	used := c.submit(uint32(size))
	for end := kit.NewDeadline(controlLimit, 100); !used(); time.Sleep(20 * time.Microsecond) {
		if d.gone() {
			return d.card.Gone("device_status")
		}
		if end.Over() && !used() {
			return d.card.Errorf("%w: control command %s is not done after %v", nic.ErrTimeout, name, controlLimit)
		}
	}
	if ack := b[controlBuf-1]; ack != ctrlOK {
		return d.card.Errorf("%w: control command %s: the device answers %d, should be %d", errRefused, name, ack,
			ctrlOK)
	}
	return nil
}

// submit makes a command of size bytes and its acknowledgement available, as a chain of two descriptors, and returns a
// function that reports whether the device has used them.
func (c *control) submit(size uint32) (used func() bool) {
	r := &c.ring
	n, ack := r.next, c.iova+controlBuf-1
	if !r.packed {
		*r.splitAt(0) = splitDesc{addr: c.iova, len: size, flags: descNext, next: 1}
		*r.splitAt(1) = splitDesc{addr: ack, len: 1, flags: descWrite}
		*r.availAt(n) = 0
		r.next++
		r.publish()
		r.notify()
		return func() bool { return r.usedEnd(n) == n+1 }
	}
	// §2.8.20: the first descriptor is the last to be made available. The device uses the chain by its first entry
	// alone.
	second, first := r.packedAt(n+1), r.packedAt(n)
	second.addr, first.addr = ack, c.iova
	mmio.Store64((*uint64)(unsafe.Pointer(&second.len)), 1|uint64(r.avail(n+1)|descWrite)<<48)
	mmio.Store64((*uint64)(unsafe.Pointer(&first.len)), uint64(size)|uint64(r.avail(n)|descNext)<<48)
	r.next += 2
	r.notify()
	return func() bool { return r.isUsed(atomic.LoadUint32(&first.tail), n) }
}
