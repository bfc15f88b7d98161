package dma

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// hugePages reserves some 2 MiB pages on the host for one test.
func hugePages(t *testing.T) {
	needs.Root(t, "reserving huge pages")
	const file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Skip("the kernel has no 2 MiB pages:", err)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(old)))
	if err := os.WriteFile(file, fmt.Append(nil, n+16), 0); err != nil {
		t.Skip("huge pages cannot be reserved:", err)
	}
	t.Cleanup(func() { os.WriteFile(file, old, 0) })
	needHuge(t, 8)
}

// needHuge skips a test if fewer than n 2 MiB pages are free: tests of drivers that run at the same time use them too.
func needHuge(t *testing.T, n int) {
	t.Helper()
	free, _ := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	if f, _ := strconv.Atoi(strings.TrimSpace(string(free))); f < n {
		t.Skipf("only %d huge pages of the 16 asked for are free", f)
	}
}

func TestHugePages(t *testing.T) {
	hugePages(t)
	m := &fakeMapper{next: 1 << 30}
	a := must.Get(NewArena(m, 5<<20))(t)
	defer a.Close()
	got := m.mapped[1<<30]
	if got.Page != 2<<20 {
		needHuge(t, 3)
	}
	if got.Page != 2<<20 || len(got.Bytes) != 6<<20 || got.FD < 0 {
		t.Errorf("mapped %d bytes in pages of %d, fd %d; want 6 MiB in pages of 2 MiB", len(got.Bytes), got.Page,
			got.FD)
	}
	if n := a.Notes(); len(n) != 1 || !strings.Contains(n[0], "2 MiB") {
		t.Errorf("Notes = %q", n)
	}
}

// nodeMapper is a device on NUMA node 0.
type nodeMapper struct{ fakeMapper }

func (nodeMapper) NUMANode() int { return 0 }

func TestNUMANode(t *testing.T) {
	a := must.Get(NewArena(&nodeMapper{}, 4096))(t)
	defer a.Close()
	for _, n := range a.Notes() {
		if strings.Contains(n, "NUMA") && !strings.Contains(n, "not implemented") {
			t.Error(n)
		}
	}
}

func TestPhysical(t *testing.T) {
	hugePages(t)
	p := must.Get(UnsafeNoIOMMU())(t)
	defer p.Close()
	a, err := NewArena(p, 8<<20)
	if err != nil {
		needHuge(t, 4)
		t.Fatal(err)
	}
	defer a.Close()
	total := 0
	for _, s := range a.segments {
		for off := 0; off < len(s.bytes); off += 4096 {
			addr := must.Get(p.address(&s.bytes[off]))(t)
			must.Equal(t, addr, s.iova+uint64(off), "a page of the arena is at %#x")
		}
		total += len(s.bytes)
	}
	check.Equal(t, total, 8<<20, "%d bytes in all segments")
}

func TestPhysicalRefuses(t *testing.T) {
	p, err := UnsafeNoIOMMU()
	if err != nil {
		t.Skip("no pagemap:", err)
	}
	defer p.Close()
	mp := must.Get(mapPages(4096, -1, kind{page: os.Getpagesize()}))(t)
	defer mp.close(p)
	check.Fails(t, "ordinary pages", check.Err(p.Map(mp.mem)), nil, "nr_hugepages")
	// A page that was never touched is not present and has no address.
	untouched := must.Get(unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	defer unix.Munmap(untouched)
	if addr, err := p.address(&untouched[4096]); err == nil {
		t.Errorf("an untouched page has the address %#x", addr)
	} else if errors.Is(err, errScattered) {
		t.Error(err)
	}
}
