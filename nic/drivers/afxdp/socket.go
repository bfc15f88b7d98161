package afxdp

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// ring is one of a socket's four rings in the layout of linux/if_xdp.h. The producer writes *producer, the consumer
// *consumer; both only grow. The kernel writes flags.
type ring struct {
	producer, consumer, flags *uint32
	entries                   unsafe.Pointer // uint64 addresses (fill, completion) or unix.XDPDesc (receive, transmit)
	mask                      uint32
	mem                       []byte
}

// address returns an entry of a fill or completion ring.
func (g *ring) address(i uint32) *uint64 {
	return (*uint64)(unsafe.Add(g.entries, uintptr(i&g.mask)*8))
}

// desc returns an entry of a receive or transmit ring.
func (g *ring) desc(i uint32) *unix.XDPDesc {
	return (*unix.XDPDesc)(unsafe.Add(g.entries, uintptr(i&g.mask)*unsafe.Sizeof(unix.XDPDesc{})))
}

// headroom is the number of bytes that the kernel keeps free before a received frame (XDP_PACKET_HEADROOM).
const headroom = 256

// frameSize returns the smallest UMEM chunk for a frame of n bytes. grain is the unit of a card's buffer sizes: the
// part of a chunk beyond a multiple of it stays unused.
func frameSize(n, grain int) (int, error) {
	room := 0
	for _, size := range []int{2048, 4096} {
		if room = (size - headroom) &^ (grain - 1); n <= room {
			return size, nil
		}
	}
	return 0, fmt.Errorf("%w: a frame of %d bytes does not fit into one UMEM chunk, which holds %d: set an MTU of %d or less "+
		"(jumbo frames over several chunks are not used)", nic.ErrFrameSize, n, room, room-ethernet-tags)
}

// bufferGrain returns the unit in bytes of receive buffer sizes of a kernel driver's cards: 1 KB for Intel's 1 and 10
// Gbit/s controllers (SRRCTL.BSIZEPACKET, 82599 §8.2.3.8.7). With zero copy, a chunk of 2048 bytes is then a buffer of
// 1024 to an 82599, and it drops longer frames.
func bufferGrain(driver string) int {
	switch driver {
	case "ixgbe", "igb", "igc":
		return 1024
	}
	return 1
}

// openQueue creates a socket with a UMEM of frames chunks for receiving and send for Send, and its rings. It does not
// bind it.
func openQueue(frames, send, size int) (_ *Queue, err error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("AF_XDP socket: %w: it takes CAP_NET_RAW, and the program CAP_NET_ADMIN, CAP_BPF and "+
			"CAP_PERFMON (run as root, or setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon+ep): %w", nic.ErrRights,
			err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return nil, fmt.Errorf("AF_XDP socket: the kernel was built without CONFIG_XDP_SOCKETS: %w", err)
	case err != nil:
		return nil, fmt.Errorf("AF_XDP socket: %w", err)
	}
	q := &Queue{fd: uintptr(fd), sendBase: uint64(frames * size)}
	defer func() {
		if err != nil {
			q.close()
		}
	}()
	if err := q.openUMEM(frames+send, size); err != nil {
		return nil, err
	}
	for _, r := range []struct {
		name    string
		option  int
		entries int
	}{
		{"XDP_UMEM_FILL_RING", unix.XDP_UMEM_FILL_RING, frames},
		{"XDP_UMEM_COMPLETION_RING", unix.XDP_UMEM_COMPLETION_RING, 2 * frames},
		{"XDP_RX_RING", unix.XDP_RX_RING, frames},
		{"XDP_TX_RING", unix.XDP_TX_RING, 2 * frames},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, r.option, r.entries); err != nil {
			return nil, fmt.Errorf("%s of %d entries: %w", r.name, r.entries, err)
		}
	}
	if err := q.mapRings(frames); err != nil {
		return nil, err
	}
	for i := range uint32(frames) {
		*q.fill.address(i) = uint64(i) * uint64(size)
	}
	for i := range uint64(send) {
		q.spare = append(q.spare, q.sendBase+i*uint64(size))
	}
	q.fillHead = uint32(frames)
	q.publishFill()
	return q, nil
}

// mapRings maps the socket's four rings.
func (q *Queue) mapRings(frames int) error {
	var off unix.XDPMmapOffsets
	n := uint32(unsafe.Sizeof(off))
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, q.fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS,
		uintptr(unsafe.Pointer(&off)), uintptr(unsafe.Pointer(&n)), 0); e != 0 {
		return fmt.Errorf("XDP_MMAP_OFFSETS: %w", e)
	}
	for _, r := range []struct {
		ring    *ring
		off     unix.XDPRingOffset
		entries int
		entry   uintptr
		page    int64
	}{
		{&q.fill, off.Fr, frames, 8, unix.XDP_UMEM_PGOFF_FILL_RING},
		{&q.completion, off.Cr, 2 * frames, 8, unix.XDP_UMEM_PGOFF_COMPLETION_RING},
		{&q.rx, off.Rx, frames, unsafe.Sizeof(unix.XDPDesc{}), unix.XDP_PGOFF_RX_RING},
		{&q.tx, off.Tx, 2 * frames, unsafe.Sizeof(unix.XDPDesc{}), unix.XDP_PGOFF_TX_RING},
	} {
		if err := r.ring.open(int(q.fd), r.off, r.entries, r.entry, r.page); err != nil {
			return err
		}
	}
	return nil
}

func (q *Queue) openUMEM(chunks, size int) (err error) {
	q.umem, err = unix.Mmap(-1, 0, chunks*size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("UMEM of %d bytes: %w", chunks*size, err)
	}
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&q.umem[0]))), Len: uint64(len(q.umem)),
		Size: uint32(size)}
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, q.fd, unix.SOL_XDP, unix.XDP_UMEM_REG, uintptr(unsafe.Pointer(&reg)),
		unsafe.Sizeof(reg), 0)
	switch {
	case e == unix.ENOBUFS:
		return fmt.Errorf("UMEM of %d bytes: %w: it must be locked and RLIMIT_MEMLOCK is less; raise it (ulimit -l, "+
			"LimitMEMLOCK=) or give CAP_IPC_LOCK: XDP_UMEM_REG: %w", len(q.umem), nic.ErrRights, e)
	case e != 0:
		return fmt.Errorf("UMEM of %d bytes: XDP_UMEM_REG: %w", len(q.umem), e)
	}
	return nil
}

func (g *ring) open(fd int, off unix.XDPRingOffset, entries int, entry uintptr, page int64) (err error) {
	g.mem, err = unix.Mmap(fd, page, int(off.Desc)+entries*int(entry), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map a ring of %d entries: %w", entries, err)
	}
	at := func(off uint64) *uint32 { return (*uint32)(unsafe.Pointer(&g.mem[off])) }
	g.producer, g.consumer, g.flags = at(off.Producer), at(off.Consumer), at(off.Flags)
	g.entries, g.mask = unsafe.Pointer(&g.mem[off.Desc]), uint32(entries-1)
	return nil
}

// bind binds the socket to a receive queue, with zero copy if the driver supports it and runs the program itself, and
// reports whether it is zero copy.
func (q *Queue) bind(i *netif.Interface, queue int, driverHook bool) (zeroCopy bool, err error) {
	modes := []uint16{unix.XDP_ZEROCOPY, unix.XDP_COPY}
	if !driverHook {
		// a driver that fills the socket's own chunks would hand them to the stack, not to the program
		modes = modes[1:]
	}
	var refused error
	for _, mode := range modes {
		err := q.bindMode(i, queue, mode)
		switch {
		case err == nil:
			return q.zeroCopy()
		case errors.Is(err, unix.EBUSY):
			return false, fmt.Errorf("interface %s, queue %d: %w: another AF_XDP socket is bound to it: bind: %w",
				i.Name,
				queue, nic.ErrBusy, err)
		case errors.Is(err, unix.EINVAL) && queue >= i.RxQueues:
			return false, fmt.Errorf("interface %s has no queue %d, its receive queues are 0 to %d: bind: %w", i.Name,
				queue,
				i.RxQueues-1, err)
		}
		refused = err
	}
	return false, fmt.Errorf("interface %s, queue %d: bind: %w", i.Name, queue, refused)
}

// zeroCopy reports whether the kernel bound the socket with zero copy.
func (q *Queue) zeroCopy() (bool, error) {
	var flags uint32 // struct xdp_options
	n := uint32(unsafe.Sizeof(flags))
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, q.fd, unix.SOL_XDP, unix.XDP_OPTIONS,
		uintptr(unsafe.Pointer(&flags)), uintptr(unsafe.Pointer(&n)), 0); e != 0 {
		return false, fmt.Errorf("XDP_OPTIONS: %w", e)
	}
	return flags&unix.XDP_OPTIONS_ZEROCOPY != 0, nil
}

// bindMode retries for some seconds while the queue is in use: the kernel releases a closed socket's queue later, in a
// work item that a busy machine delays.
func (q *Queue) bindMode(i *netif.Interface, queue int, mode uint16) (err error) {
	for range 5000 {
		err = unix.Bind(int(q.fd), &unix.SockaddrXDP{
			Flags: mode | unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(i.Index), QueueID: uint32(queue),
		})
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

func (q *Queue) close() {
	unix.Close(int(q.fd))
	for _, g := range []*ring{&q.fill, &q.completion, &q.rx, &q.tx} {
		if g.mem != nil {
			unix.Munmap(g.mem)
		}
	}
	if q.umem != nil {
		unix.Munmap(q.umem)
	}
}
