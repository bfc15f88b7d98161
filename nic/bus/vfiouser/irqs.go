package vfiouser

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// irqs are the event file descriptors that the client gave for interrupts.
type irqs struct {
	mu      sync.Mutex
	msix    []int // -1 for none
	intx    int
	masked  bool // INTx: since it was raised, until the client unmasks it
	pending bool
}

func (q *irqs) init(vectors int) {
	q.intx, q.msix = -1, make([]int, vectors)
	for i := range q.msix {
		q.msix[i] = -1
	}
}

func (q *irqs) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.msix {
		drop(&q.msix[i])
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
	case irqINTx:
		return 1
	case irqMSIX:
		return uint32(len(q.msix))
	}
	return 0
}

func (q *irqs) flags(index uint32) uint32 {
	switch index {
	case irqINTx:
		return irqEventFD | irqMaskable | irqAutomasked
	case irqMSIX:
		return irqEventFD | irqNoResize
	}
	return 0
}

// raise signals MSI-X vector v where the client wants it, INTx otherwise.
func (q *irqs) raise(v int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case v >= 0 && v < len(q.msix) && q.msix[v] >= 0:
		signal(q.msix[v])
	case q.intx >= 0 && q.masked:
		q.pending = true
	case q.intx >= 0:
		q.masked = true
		signal(q.intx)
	}
}

func signal(fd int) { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

func (q *irqs) set(m *message) error {
	var s setIRQsBody
	data, err := decode(m.body, &s)
	if err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	fds := q.msix
	if s.Index == irqINTx {
		fds = []int{q.intx}
		defer func() { q.intx = fds[0] }()
	}
	if uint64(s.Start)+uint64(s.Count) > uint64(q.count(s.Index)) {
		return syscall.EINVAL
	}
	if s.Index != irqINTx && s.Index != irqMSIX {
		return nil // there are none of these: nothing to disable
	}
	switch s.Flags {
	case setTrigger | setDataEventFD:
		if len(m.fds) != 0 && len(m.fds) != int(s.Count) {
			return syscall.EINVAL
		}
		for _, fd := range m.fds {
			if !isEventFD(fd) {
				return syscall.EINVAL
			}
		}
		for i := range s.Count {
			drop(&fds[s.Start+i])
			if len(m.fds) > 0 {
				fds[s.Start+i] = m.takeFD(0)
			}
		}
	case setTrigger | setDataNone:
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
	case setTrigger | setDataBool:
		if len(data) != int(s.Count) {
			return syscall.EINVAL
		}
		for i, on := range data {
			if fd := fds[int(s.Start)+i]; on != 0 && fd >= 0 {
				signal(fd)
			}
		}
	case setMask | setDataNone, setUnmask | setDataNone:
		if s.Index != irqINTx {
			return syscall.ENOTSUP
		}
		q.masked = s.Flags&setMask != 0
		if !q.masked && q.pending && fds[0] >= 0 {
			q.masked, q.pending = true, false
			signal(fds[0])
		}
	default:
		return syscall.ENOTSUP
	}
	return nil
}

// isEventFD makes sure that to signal fd never waits: another kind of file could hold the device for ever.
func isEventFD(fd int) bool {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	return err == nil && name == "anon_inode:[eventfd]" && unix.SetNonblock(fd, true) == nil
}
