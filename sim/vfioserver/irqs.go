package vfioserver

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/vfiouser/proto"
	"github.com/rebound-nic/rebound/sim"
)

// irqs are the event file descriptors that the client passed for interrupts.
type irqs struct {
	mu      sync.Mutex
	msix    []int // -1 for none
	msi     []int // one message, or none
	intx    int
	masked  bool // INTx: set when it is raised, until the client unmasks it
	pending bool
}

func (q *irqs) init(c sim.Config) {
	q.intx, q.msix = -1, make([]int, c.MSIXVectors)
	for i := range q.msix {
		q.msix[i] = -1
	}
	if c.MSI {
		q.msi = []int{-1}
	}
}

func (q *irqs) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.msix {
		drop(&q.msix[i])
	}
	for i := range q.msi {
		drop(&q.msi[i])
	}
	drop(&q.intx)
}

func drop(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}

func (q *irqs) count(index uint32) uint32 {
	switch index {
	case proto.IRQINTx:
		return 1
	case proto.IRQMSI:
		return uint32(len(q.msi))
	case proto.IRQMSIX:
		return uint32(len(q.msix))
	}
	return 0
}

func (q *irqs) flags(index uint32) uint32 {
	switch index {
	case proto.IRQINTx:
		return proto.IRQEventFD | proto.IRQMaskable | proto.IRQAutomasked
	case proto.IRQMSI, proto.IRQMSIX:
		return proto.IRQEventFD | proto.IRQNoResize
	}
	return 0
}

// raise signals MSI-X vector v if the client enabled MSI-X, otherwise the MSI message, otherwise INTx. A client enables
// one of them.
func (q *irqs) raise(v int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case v >= 0 && v < len(q.msix) && q.msix[v] >= 0:
		signal(q.msix[v])
	case len(q.msi) > 0 && q.msi[0] >= 0:
		signal(q.msi[0])
	case q.intx >= 0 && q.masked:
		q.pending = true
	case q.intx >= 0:
		q.masked = true
		signal(q.intx)
	}
}

func signal(fd int) { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (q *irqs) set(m *proto.Message) error {
	var s proto.SetIRQsBody
	data, err := proto.Decode(m.Body, &s)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	fds := q.msix
	switch s.Index {
	case proto.IRQMSI:
		fds = q.msi
	case proto.IRQINTx:
		fds = []int{q.intx}
		defer func() { q.intx = fds[0] }()
	}
	if uint64(s.Start)+uint64(s.Count) > uint64(q.count(s.Index)) {
		return syscall.EINVAL
	}
	if s.Index != proto.IRQINTx && s.Index != proto.IRQMSI && s.Index != proto.IRQMSIX {
		return nil // there are none: nothing to disable
	}
	switch s.Flags {
	case proto.SetTrigger | proto.SetDataEventFD:
		if len(m.FDs) != 0 && len(m.FDs) != int(s.Count) {
			return syscall.EINVAL
		}
		for _, fd := range m.FDs {
			if !isEventFD(fd) {
				return syscall.EINVAL
			}
		}
		for i := range s.Count {
			drop(&fds[s.Start+i])
			if len(m.FDs) > 0 {
				fds[s.Start+i] = m.TakeFD(0)
			}
		}
	case proto.SetTrigger | proto.SetDataNone:
		if s.Count == 0 { // disable all
			for i := range fds {
				drop(&fds[i])
			}
		}
		for i := range s.Count {
			if fd := fds[s.Start+i]; fd >= 0 {
				signal(fd)
			}
		}
	case proto.SetTrigger | proto.SetDataBool:
		if len(data) != int(s.Count) {
			return syscall.EINVAL
		}
		for i, on := range data {
			if fd := fds[int(s.Start)+i]; on != 0 && fd >= 0 {
				signal(fd)
			}
		}
	case proto.SetMask | proto.SetDataNone, proto.SetUnmask | proto.SetDataNone:
		if s.Index != proto.IRQINTx {
			return syscall.ENOTSUP
		}
		q.masked = s.Flags&proto.SetMask != 0
		if !q.masked && q.pending && fds[0] >= 0 {
			q.masked, q.pending = true, false
			signal(fds[0])
		}
	default:
		return syscall.ENOTSUP
	}
	return nil
}

// isEventFD verifies that fd is an event file descriptor: a write to another kind of file could block the device
// forever.
func isEventFD(fd int) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && name == "anon_inode:[eventfd]" && unix.SetNonblock(fd, true) == nil
}
