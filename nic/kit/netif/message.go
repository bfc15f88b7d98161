package netif

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Message is room for one recvmsg(2) with its control messages. It allocates nothing and makes raw system calls only,
// so that a pinned loop may use it. One goroutine does.
type Message struct {
	hdr     unix.Msghdr
	iov     unix.Iovec
	control [256]byte
}

// Receive calls recvmsg. Data is stored in buf, and the sender in from; both may be nil.
func (m *Message) Receive(fd int, buf []byte, flags int, from *unix.RawSockaddrInet6) (n int, e unix.Errno) {
	m.hdr.Name, m.hdr.Namelen = (*byte)(unsafe.Pointer(from)), 0
	if from != nil {
		m.hdr.Namelen = uint32(unsafe.Sizeof(*from))
	}
	m.iov.Base = unsafe.SliceData(buf)
	m.iov.SetLen(len(buf))
	m.hdr.Iov = &m.iov
	m.hdr.SetIovlen(1)
	m.hdr.Control = &m.control[0]
	m.hdr.SetControllen(len(m.control))
	got, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), uintptr(flags))
	return int(got), e
}

// Stamp returns the timestamp of the last received message, or zero if it had none
// (Documentation/networking/timestamping.rst). If the message is from the error queue, ok is set, and id is the index,
// from 0, of the send that the timestamp belongs to.
func (m *Message) Stamp() (t nic.Timestamp, id uint32, ok bool) {
	const head = unix.SizeofCmsghdr
	for b := m.control[:m.hdr.Controllen]; len(b) >= head; {
		size := int((*unix.Cmsghdr)(unsafe.Pointer(&b[0])).Len)
		if size < head || size > len(b) {
			break
		}
		level, kind, data := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:]), b[head:size]
		switch {
		case level == unix.SOL_SOCKET && kind == unix.SO_TIMESTAMPING && len(data) >= 48: // three timespecs: kernel, unused, card
			for _, at := range [...]int{0, 32} {
				if ns := int64(binary.NativeEndian.Uint64(data[at:]))*1e9 + int64(
					binary.NativeEndian.Uint64(data[at+8:])); ns != 0 {
					t = nic.Timestamp{Nanoseconds: ns, Hardware: at != 0}
				}
			}
		case (level == unix.SOL_IP && kind == unix.IP_RECVERR || level == unix.SOL_IPV6 && kind == unix.IPV6_RECVERR ||
			level == unix.SOL_PACKET && kind == unix.PACKET_TX_TIMESTAMP) && len(data) >= 16:
			const timestamping = 4 // SO_EE_ORIGIN_TIMESTAMPING
			// sock_extended_err: errno, origin, type, code, pad, info, data
			ok = data[4] == timestamping
			id = binary.NativeEndian.Uint32(data[12:16]) // which send
		}
		b = b[min(len(b), (size+7)&^7):]
	}
	return t, id, ok
}
