package process

import (
	"bytes"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The runtime chooses a random place for the heap. One of 120 responders had it so low that the program's variables
// counted as part of it, and locked all 34 MB of them.
func TestVariablesAreNoHeap(t *testing.T) {
	const heap = 0x25fa400000
	if (mapping{start: 0x15ab000, end: 0x35f5000}).near(heap) || !(mapping{start: heap + 4<<20}).near(heap) {
		t.Error("the heap is not told from the variables")
	}
}

func TestParse(t *testing.T) {
	got, err := parse(strings.NewReader(
		"00400000-00c28000 r-xp 00001000 fe:00 10002780                 /usr/bin/a b\n" +
			"7ffc1a4a0000-7ffc1a4c1000 rw-p 00000000 00:00 0                          [stack]\n7f00-7f01 ---p 00000000 00:00 0 \n"))
	want := []mapping{{0x400000, 0xc28000, "r-xp", 10002780, "/usr/bin/a"},
		{0x7ffc1a4a0000, 0x7ffc1a4c1000, "rw-p", 0, "[stack]"},
		{0x7f00, 0x7f01, "---p", 0, ""}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := parse(strings.NewReader("rubbish\n")); err == nil {
		t.Error("rubbish has no error")
	}
}

var variable [1 << 16]byte

// What the program has is in memory after Lock, and counts as locked; most of what the runtime reserves does not. DMA
// memory, which VFIO pins and counts, is not counted a second time.
func TestLockOfMemoryFiles(t *testing.T) {
	fd := must.Get(unix.MemfdCreate("rebound-dma", unix.MFD_CLOEXEC))(t)
	defer unix.Close(fd)
	must.OK(t, unix.Ftruncate(fd, 1<<16))
	b := must.Get(unix.Mmap(fd, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	defer unix.Munmap(b)
	if err := LockMemory(); err != nil {
		t.Skip("memory cannot be locked here: ", err)
	}
	defer unix.Munlockall()
	if in := residency(uintptr(unsafe.Pointer(&b[0])), 1<<16); slices.Contains(in, 1) {
		t.Errorf("DMA memory was filled: %v", in)
	}
}

// What a loop may touch of each kind of mapping is locked: all pages, those in use and the first variables, or none.
func TestLockOfKinds(t *testing.T) {
	const used, sparse, first = 5, 256 << 10, 1 << 20 // a page that the test writes, and the limits of LockMemory
	page := os.Getpagesize()
	for _, c := range []struct {
		name      string
		size      int
		m         mapping
		variables bool
		want      int // pages
	}{
		{"small", sparse, mapping{perms: "rw-p"}, false, sparse / page},
		{"read only", sparse, mapping{perms: "r--p"}, false, sparse / page},
		{"sparse", sparse + page, mapping{perms: "rw-p"}, false, 1},
		{"of a file", sparse + page, mapping{perms: "rw-p", inode: 1}, false, sparse/page + 1},
		{"variables", 2 * first, mapping{perms: "rw-p"}, true, first / page},
		{"few variables", first / 2, mapping{perms: "rw-p"}, true, first / 2 / page},
		{"reserved", sparse, mapping{perms: "---p"}, false, 0},
		{"shared", sparse, mapping{perms: "rw-s"}, false, 1},
		{"the kernel's", sparse, mapping{perms: "r--p", name: "[vvar]"}, false, 0},
		{"a stack", sparse, mapping{perms: "rw-p", name: "[stack]"}, false, sparse / page},
		{"the heap", sparse + page, mapping{perms: "rw-p"}, false, sparse/page + 1},
	} {
		prot, flags := unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE
		if c.m.perms[0] == 'r' {
			prot = unix.PROT_READ
		}
		if c.m.perms[1] == 'w' {
			prot |= unix.PROT_WRITE
		}
		if c.m.perms[3] == 's' {
			flags = unix.MAP_ANON | unix.MAP_SHARED
		}
		b := must.Get(unix.Mmap(-1, 0, c.size, prot, flags))(t)
		unix.Madvise(b, unix.MADV_NOHUGEPAGE)
		if c.m.perms[1] == 'w' {
			b[used*page] = 1
		}
		c.m.start = uintptr(unsafe.Pointer(&b[0]))
		c.m.end = c.m.start + uintptr(c.size)
		heap := c.m.start ^ 1<<heapBits
		if c.name == "the heap" {
			heap = c.m.start
		}
		if err := c.m.lock(heap, c.variables); os.Geteuid() != 0 && err != nil {
			t.Skip("memory cannot be locked here: ", err)
		} else if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		n := bytes.Count(residency(c.m.start, uintptr(c.size)), []byte{1})
		check.Equal(t, n, c.want, c.name+": %d pages are in memory")
		must.OK(t, unix.Munmap(b))
		check.OK(t, c.m.lock(heap, c.variables)) // unmapped since the list was read
	}
}

// Without the right to lock memory, or with too little of it, LockMemory fails.
func TestNoRightToLock(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread, which loses the capability, ends with the test
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	must.OK(t, unix.Capget(&head, &caps[0]))
	caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	must.OK(t, unix.Capset(&head, &caps[0]))
	var was unix.Rlimit
	must.OK(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &was))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &was)
	b := must.Get(unix.Mmap(-1, 0, sparse+1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE))(t)
	defer unix.Munmap(b)
	copy(b, bytes.Repeat([]byte{1}, len(b)))
	start := uintptr(unsafe.Pointer(&b[0]))
	for bytes, want := range map[uint64]error{0: unix.EPERM, 8192: unix.ENOMEM} {
		must.OK(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: was.Max}))
		check.Fails(t, "all", LockMemory(), want, "mlock ", " KB: ")
		m := mapping{start: start, end: start + uintptr(len(b)), perms: "rw-p"}
		check.Fails(t, "a mapping", m.lock(start^1<<heapBits, false), want)
	}
	unix.Munlockall()
}

// TestLock locks the memory of a new process: this one has what the tests before left.
func TestLock(t *testing.T) {
	const child = "REBOUND_LOCK"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLock$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		switch out, err := cmd.CombinedOutput(); {
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		case bytes.Contains(out, []byte("--- SKIP")):
			t.Skip(string(out))
		}
		return
	}
	heap := make([]byte, 1<<20) // not touched yet
	if err := LockMemory(); err != nil {
		t.Skip("memory cannot be locked here: ", err)
	}
	defer unix.Munlockall()
	page := uintptr(os.Getpagesize())
	for name, b := range map[string][]byte{"heap": heap, "variable": variable[:]} {
		start := (uintptr(unsafe.Pointer(&b[0])) + page - 1) &^ (page - 1)
		if in := residency(start, uintptr(len(b)/2)&^(page-1)); len(in) == 0 ||
			slices.ContainsFunc(in, func(b byte) bool { return b&1 == 0 }) {
			t.Errorf("the %s is not in memory: %v", name, in)
		}
	}
	if n := kilobytes(t, "VmLck"); n < 2<<10 || n > 48<<10 {
		t.Errorf("%d kB are locked", n)
	}
}
