package pci

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// piece is a range of a file to be mapped at an offset of a window.
type piece struct {
	fd       int
	file     int64  // offset in the file
	at, size uint64 // in the window; at is a multiple of the page size
}

// mapPieces maps pieces into a range of addresses that is size bytes long, rounded up to whole pages. What is between the
// pieces cannot be touched.
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
		_, err := unix.MmapPtr(p.fd, p.file, unsafe.Pointer(&b[p.at]), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		if err != nil {
			unix.Munmap(b)
			return nil, err
		}
	}
	return b, nil
}

// ioctl calls the kernel with arg if it is not nil, and with value otherwise.
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
