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
		file := must.Get(os.Create(filepath.Join(t.TempDir(), "pagemap")))(t)
		var e [8]byte
		binary.NativeEndian.PutUint64(e[:], c.entry)
		if _, err := file.WriteAt(e[:], int64(at/page*8)); err != nil {
			t.Skip("no sparse file of this size: ", err)
		}
		p := &Physical{pagemap: file}
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
