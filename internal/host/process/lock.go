package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// number of low address bits that differ within Go's heap, whose place is random: no other mapping is likely to be
	// as near
	heapBits = 32
	sparse   = 256 << 10 // bytes of a writable mapping outside of the heap of which only the pages in use are locked
	first    = 1 << 20   // bytes of variables that are locked before their first use
)

// LockMemory locks the memory that the program uses, and fills it, so that no access to it causes a page fault. That
// includes the program's table of functions, which the runtime reads when it grows a stack. Memory by which the heap
// grows later is not locked, so call LockMemory when everything that a loop uses exists. It may be called again.
//
// It needs CAP_IPC_LOCK or a sufficient RLIMIT_MEMLOCK.
func LockMemory() error {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := parse(f)
	if err != nil {
		return fmt.Errorf("/proc/self/maps: %w", err)
	}
	for i, m := range all {
		// those that are zero in the program's file
		variables := i > 0 && all[i-1].inode != 0 && all[i-1].end == m.start
		if err := m.lock(uintptr(unsafe.Pointer(f)), variables); err != nil {
			return fmt.Errorf("mlock %d KB: %w", (m.end-m.start)>>10, err)
		}
	}
	return nil
}

// mapping is a line of /proc/self/maps (proc_pid_maps(5)).
type mapping struct {
	start, end uintptr
	perms      string
	inode      uint64
	name       string
}

// parse reads the mappings of /proc/PID/maps.
func parse(r io.Reader) (all []mapping, err error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		var m mapping
		var offset, device string
		if n, err := fmt.Sscanf(s.Text(), "%x-%x %s %s %s %d %s", &m.start, &m.end, &m.perms, &offset, &device,
			&m.inode, &m.name); n < 6 {
			return nil, fmt.Errorf("%q: %w", s.Text(), err)
		}
		all = append(all, m)
	}
	return all, s.Err()
}

// lock locks the mapping as far as a loop may touch it. heap is an address in Go's heap.
func (m mapping) lock(heap uintptr, variables bool) error {
	size := m.end - m.start
	switch {
	case m.perms[0] != 'r', m.perms[3] != 'p': // reserved only; a ring shared with the kernel, which keeps it; DMA memory, which VFIO pins
		return nil
	case strings.HasPrefix(m.name, "[v"): // the kernel's: vdso, vvar, vsyscall
		return nil
	case m.inode != 0, m.near(heap), size <= sparse:
		return mlock(m.start, size)
	}
	page := uintptr(os.Getpagesize())
	in := residency(m.start, size)
	if variables {
		for i := range min(first/page, uintptr(len(in))) {
			in[i] = 1
		}
	}
	for i := uintptr(0); i < uintptr(len(in)); i++ {
		from := i
		for i < uintptr(len(in)) && in[i]&1 != 0 {
			i++
		}
		if i > from {
			if err := mlock(m.start+from*page, (i-from)*page); err != nil {
				return err
			}
		}
	}
	return nil
}

// near reports whether the mapping is part of the heap that has the address heap.
func (m mapping) near(heap uintptr) bool { return m.start>>heapBits == heap>>heapBits }

// mlock locks size bytes at start, unless they were unmapped since the list was read.
func mlock(start, size uintptr) error {
	_, _, e := unix.Syscall(unix.SYS_MLOCK, start, size, 0)
	if e == 0 || e == unix.ENOMEM && residency(start, size) == nil {
		return nil
	}
	return e
}

// residency returns a byte for each page, odd if the page is in memory; nil if not all of it is mapped.
func residency(start, size uintptr) []byte {
	in := make([]byte, size/uintptr(os.Getpagesize()))
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, start, size, uintptr(unsafe.Pointer(&in[0]))); e != 0 {
		return nil
	}
	return in
}
