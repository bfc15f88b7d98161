package dma

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// pagemap opens a file that has these entries for the pages at b, b plus step, and so on.
func pagemap(t *testing.T, b []byte, step int, entries ...uint64) *Physical {
	t.Helper()
	file := must.Get(os.Create(filepath.Join(t.TempDir(), "pagemap")))(t)
	for i, entry := range entries {
		page := int(uintptr(unsafe.Pointer(&b[i*step]))) / os.Getpagesize()
		if _, err := file.WriteAt(binary.NativeEndian.AppendUint64(nil, entry), int64(8*page)); err != nil {
			t.Skip("no sparse file of this size: ", err)
		}
	}
	return &Physical{pagemap: file}
}

// An entry of pagemap has the frame's number in bits 0 to 54, and says in bit 63 whether the page is present.
func TestAddressOfPage(t *testing.T) {
	page := uint64(os.Getpagesize())
	b := make([]byte, 2*page)
	at := uint64(uintptr(unsafe.Pointer(&b[0])))
	for _, c := range []struct {
		entry, frame uint64
		says         string
	}{
		{1<<63 | 5, 5, ""}, {1<<63 | 0xFF<<55 | 1<<51 | 1, 1<<51 | 1, ""},
		{5, 0, "entry 0x5: the page is not present"}, {1<<63 | 0xFF<<55, 0, "needs CAP_SYS_ADMIN"},
	} {
		p := pagemap(t, b, 0, c.entry)
		got, err := p.address(&b[0])
		if c.says != "" {
			check.Fails(t, c.says, err, nil, c.says)
		} else {
			check.OK(t, err)
			check.Equal(t, got, c.frame*page+at%page, "address %#x")
		}
		check.OK(t, p.Close())
		_, err = p.address(&b[0])
		check.Fails(t, "a closed pagemap", err, os.ErrClosed, "dma: pagemap: ")
	}
}

// Huge pages one after the other in physical memory are one block. Their addresses are whole pages apart.
func TestScatteredPages(t *testing.T) {
	small := uint64(os.Getpagesize())
	m := Memory{Bytes: make([]byte, 6*mib), Page: 2 * mib}
	at := uint64(uintptr(unsafe.Pointer(&m.Bytes[0])))
	for _, c := range []struct {
		frames [3]uint64
		whole  bool
	}{
		{[3]uint64{512, 1024, 1536}, true}, {[3]uint64{512, 1024, 1537}, false}, {[3]uint64{512, 512, 512}, false},
		{[3]uint64{512, 2048, 1536}, false},
	} {
		var entries []uint64
		for _, frame := range c.frames { // of 4 KiB
			entries = append(entries, 1<<63|frame*4096/small)
		}
		p := pagemap(t, m.Bytes, m.Page, entries...)
		got, err := p.Map(m)
		if c.whole {
			check.OK(t, err)
			check.Equal(t, got, 2*mib+at%small, "address %#x")
		} else {
			check.Fails(t, "scattered pages", err, errScattered, "6291456 bytes at physical address 0x2")
		}
		check.OK(t, p.Close())
	}
}

// A kept mapping is used again for its size or less, but not for less than half.
func TestReuse(t *testing.T) {
	for size, want := range map[int]bool{4*mib + 1: false, 4 * mib: true, 2 * mib: true, 2*mib - 1: false, 1: false} {
		p := &Pool{free: []*mapping{{mem: Memory{Bytes: make([]byte, mib/2)}}, {mem: Memory{Bytes: make([]byte, 4*mib)}}}}
		got := p.reuse(size)
		check.Equal(t, got != nil && len(got.mem.Bytes) == 4*mib, want, "reused %t")
		check.Equal(t, len(p.free) == 1, got != nil, "taken out %t")
	}
}
