package process

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

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
