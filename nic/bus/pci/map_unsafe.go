package pci

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// piece is a range of a file that is mapped at an offset of a window.
type piece struct {
	fd       int
	file     int64  // offset in the file
	at, size uint64 // in the window; at is a multiple of the page size
}

// mapPieces maps pieces into a range of addresses of size bytes, rounded up to whole pages. The gaps between pieces are
// inaccessible.
//
// Each piece is mapped at an address that the kernel chooses, and then moved. MAP_FIXED would unmap the range even if
// the file then refuses the mapping, and another thread could map something there before this one unmaps it.
func mapPieces(size uint64, pieces ...piece) ([]byte, error) {
	page := uint64(os.Getpagesize())
	size = (size + page - 1) &^ (page - 1)
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %#x bytes of addresses: %w", size, err)
	}
	for _, p := range pieces {
		n := (p.size + page - 1) &^ (page - 1)
		if p.at%page != 0 || p.at+n > size {
			unix.Munmap(b)
			return nil, fmt.Errorf("%#x bytes at %#x of a window of %#x", p.size, p.at, size)
		}
		at, err := unix.MmapPtr(p.fd, p.file, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			unix.Munmap(b)
			return nil, err
		}
		if _, err := unix.MremapPtr(at, uintptr(n), unsafe.Pointer(&b[p.at]), uintptr(n),
			unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED); err != nil {
			unix.MunmapPtr(at, uintptr(n))
			// the state of b's addresses is unknown
			return nil, fmt.Errorf("move %#x bytes to their window: %w", n, err)
		}
	}
	return b, nil
}

// ioctl passes arg to the kernel if it is not nil, and value otherwise.
func ioctl(fd int, req, value uintptr, arg unsafe.Pointer) (int, error) {
	var r uintptr
	var e unix.Errno
	if arg != nil {
		r, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(arg))
	} else {
		r, _, e = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, value)
	}
	if e != 0 {
		return -1, e
	}
	return int(r), nil
}
