package afpacket

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// long sends frames that sendto refuses with EMSGSIZE although the interface supports them. The kernel allows a frame
// four bytes beyond the MTU only if its outer tag is 802.1Q (packet_extra_vlan_len_allowed in net/packet/af_packet.c),
// so an 802.1ad-tagged reply of 1515 to 1518 bytes needs another path. The limit does not apply to a ring with a virtio
// header before each frame; the interface then decides whether the frame is too long.
type long struct {
	mem  []byte
	fd   uintptr
	size uintptr // bytes of a slot, a power of two
	next uintptr // offset of the slot to fill
}

const (
	longSlots = 16
	dataAt    = 32 // of a slot: TPACKET2_HDRLEN less struct sockaddr_ll
	virtioHdr = 10 // struct virtio_net_hdr; all zero requests nothing
)

// openLong makes a ring for frames of up to frame bytes.
func openLong(i *netif.Interface, frame, bypass int) (l long, err error) {
	fd, err := netif.PacketSocket()
	if err != nil {
		return l, fmt.Errorf("packet socket: %w", err)
	}
	l.fd, l.size = uintptr(fd), 2048
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	for _, s := range []struct {
		name       string
		opt, value int
	}{
		{"PACKET_VERSION", unix.PACKET_VERSION, unix.TPACKET_V2},
		{"PACKET_VNET_HDR", unix.PACKET_VNET_HDR, 1},
		{"PACKET_QDISC_BYPASS", unix.PACKET_QDISC_BYPASS, bypass},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, s.opt, s.value); err != nil {
			return l, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for l.size < dataAt+virtioHdr+uintptr(frame) {
		l.size *= 2
	}
	all := longSlots * l.size
	req := unix.TpacketReq{Block_size: uint32(all), Block_nr: 1, Frame_size: uint32(l.size), Frame_nr: longSlots}
	if err := unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_TX_RING, &req); err != nil {
		return l, fmt.Errorf("PACKET_TX_RING of %d slots of %d bytes: %w", longSlots, l.size, err)
	}
	if l.mem, err = unix.Mmap(fd, 0, int(all), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return l, fmt.Errorf("map the transmit ring of %d bytes: %w", all, err)
	}
	// without a protocol: it receives nothing
	if err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: i.Index}); err != nil {
		return l, fmt.Errorf("bind: %w", err)
	}
	return l, nil
}

// send sends n bytes at frame.
//
//go:noinline
func (l *long) send(frame unsafe.Pointer, n int) unix.Errno {
	slot := unsafe.Add(unsafe.Pointer(unsafe.SliceData(l.mem)), l.next)
	h := (*header)(slot)
	switch status := atomic.LoadUint32(&h.status); {
	case status != unix.TP_STATUS_AVAILABLE && status != unix.TP_STATUS_WRONG_FORMAT:
		return unix.ENOBUFS // the interface still has the frame
	case dataAt+virtioHdr+uintptr(n) > l.size:
		return unix.EMSGSIZE
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(slot, dataAt+virtioHdr)), n), unsafe.Slice((*byte)(frame), n))
	h.len = uint32(virtioHdr + n)
	mmio.Store32(&h.status, unix.TP_STATUS_SEND_REQUEST)
	if l.next += l.size; l.next == uintptr(len(l.mem)) {
		l.next = 0
	}
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, l.fd, 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

func (l *long) close() {
	if l.mem != nil {
		unix.Munmap(l.mem)
	}
	if l.fd != 0 {
		unix.Close(int(l.fd))
	}
}
