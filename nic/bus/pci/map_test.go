package pci

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// A mapping that the kernel refuses must not remove mappings of other threads that were given the same addresses
// meanwhile.
func TestMapPiecesRefused(t *testing.T) {
	// A TCP socket refuses to be mapped writable, as a BAR that vfio-pci has claimed does in sysfs: by its own mmap
	// operation, before which the kernel has emptied the addresses.
	fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	const size = 1 << 20

	var stop atomic.Bool
	lost := make(chan int)
	go func() {
		runtime.LockOSThread()
		n := 0
		for !stop.Load() {
			b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				t.Error(err)
				break
			}
			for range 5 {
				if errors.Is(unix.Madvise(b, unix.MADV_NORMAL), unix.ENOMEM) { // nothing is mapped there
					n++
					break
				}
			}
			unix.Munmap(b)
		}
		lost <- n
	}()
	for range 20000 {
		if b, err := mapPieces(size, piece{fd: fd, size: size}); !errors.Is(err, unix.EPERM) {
			t.Errorf("a refused mapping: %d bytes, %v", len(b), err)
			break
		}
	}
	stop.Store(true)
	if n := <-lost; n > 0 {
		t.Errorf("%d mappings of another thread were taken away", n)
	}
}
