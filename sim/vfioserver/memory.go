package vfioserver

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// memory maps each file that a client shares once: with an IOMMU, QEMU sends a map for every 4 KiB of a file, and Linux
// allows a process 65530 mappings.
type memory map[fileKey]*file

type fileKey struct {
	dev, inode uint64
	write      bool
}

type file struct {
	mem  []byte
	refs int
}

// acquire returns size bytes of the file from offset, and a function that releases them.
func (m memory) acquire(fd int, offset, size uint64, write bool) ([]byte, func(), error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, err
	}
	end := offset + size
	if st.Mode&unix.S_IFMT != unix.S_IFREG || size == 0 || end < offset || end > uint64(st.Size) {
		return nil, nil, fmt.Errorf("%#x bytes at %#x of a file of %#x: %w", size, offset, st.Size, syscall.EINVAL)
	}
	key := fileKey{uint64(st.Dev), st.Ino, write}
	f := m[key]
	if f != nil && uint64(len(f.mem)) < end { // it has grown
		return nil, nil, fmt.Errorf("the file grew to %#x bytes: %w", st.Size, syscall.EINVAL)
	}
	if f == nil {
		prot := unix.PROT_READ
		if write {
			prot |= unix.PROT_WRITE
		}
		mem, err := unix.Mmap(fd, 0, int(st.Size), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
		if err != nil {
			return nil, nil, fmt.Errorf("map a file of %#x bytes: %w", st.Size, err)
		}
		f = &file{mem: mem}
		m[key] = f
	}
	f.refs++
	return f.mem[offset:end:end], func() {
		if f.refs--; f.refs == 0 {
			delete(m, key)
			unix.Munmap(f.mem)
		}
	}, nil
}
