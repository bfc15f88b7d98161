package pci

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
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

// A piece is within its window, at whole pages of it. After an error nothing is mapped.
func TestMapPieces(t *testing.T) {
	page := uint64(os.Getpagesize())
	f := must.Get(os.Create(t.TempDir() + "/bar"))(t)
	defer f.Close()
	must.OK(t, f.Truncate(int64(4*page)))
	mapped := func() int { return strings.Count(string(must.Get(os.ReadFile("/proc/self/maps"))(t)), f.Name()) }
	fd := int(f.Fd())
	for _, bad := range []piece{{fd: fd, at: 1, size: page}, {fd: fd, at: 3 * page, size: page + 1},
		{fd: fd, at: 4 * page, size: 1}, {fd: -1, at: page, size: page}} {
		_, err := mapPieces(4*page-1, piece{fd: fd, size: page}, bad)
		check.Equal(t, err != nil, true, "refused: %v")
		check.Equal(t, mapped(), 0, "%d pieces are left")
	}
	b := must.Get(mapPieces(4*page-1, piece{fd: fd, size: 1},
		piece{fd: fd, file: int64(2 * page), at: 3 * page, size: page}))(t)
	check.Equal(t, len(b), int(4*page), "%d bytes")
	b[0], b[4*page-1] = 7, 8
	now := must.Get(os.ReadFile(f.Name()))(t)
	check.Equal(t, [2]byte{now[0], now[3*page-1]}, [2]byte{7, 8}, "the file has %d")
	check.Equal(t, mapped(), 2, "%d pieces are mapped")
	must.OK(t, unix.Munmap(b))
}

// An argument is a pointer, or else a value.
func TestIoctl(t *testing.T) {
	f, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminal can be made: ", err)
	}
	defer f.Close()
	number := int32(-1)
	for _, c := range []struct {
		req, value uintptr
		arg        unsafe.Pointer
		want       int
		err        error
	}{
		{unix.TIOCGPTN, 0, unsafe.Pointer(&number), 0, nil}, {unix.TCFLSH, 2, nil, 0, nil},
		{unix.TCFLSH, 9, nil, -1, unix.EINVAL},
	} {
		n, err := ioctl(int(f.Fd()), c.req, c.value, c.arg)
		check.Equal(t, n, c.want, "%d")
		check.Equal(t, errors.Is(err, c.err), true, "the error: %v")
	}
	check.Equal(t, number >= 0, true, "the terminal has a number: %v")
}

// A function that cannot be opened is no function, not even a nil one of a type.
func TestNoFunction(t *testing.T) {
	for name, open := range map[string]func(string, bool) (Function, error){"sysfs": openSysfs, "vfio": openVFIO} {
		f, err := open("ffff:ff:1f.7", false)
		check.Fails(t, name, err, ErrNoDevice)
		check.Equal(t, f, nil, name+": %v")
	}
}
