package efasim

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/proof/check"
)

func TestPageLists(t *testing.T) {
	x := openRig(t, Options{})
	mem := x.Alloc(1 << 20)
	const pages = 256
	list := x.Alloc(8 * pages)
	order := make([]int, pages) // the pages of the region in shuffled order
	for i := range order {
		order[i] = (i*37 + 5) % pages
		le.PutUint64(list.Bytes[8*i:], mem.IOVA+4096*uint64(order[i]))
		le.PutUint32(mem.Bytes[4096*order[i]:], uint32(i))
	}
	const iova = 0x7000_1000_0000
	direct := fields{3: uint8(cmdCtrlData), 4: x.pd, 8: uint32(8 * pages), 12: list.IOVA, 40: uint64(pages * 4096),
		48: uint8(12), 49: uint8(7), 56: uint64(iova)}
	verify := func(what string, r []byte) {
		t.Helper()
		key := le.Uint32(r)
		for i := range pages {
			spans, err := x.m.local(x.pd, key, iova+4096*uint64(i), 4, 0)
			b := make([]byte, 4)
			if err == nil {
				err = x.m.load(spans, b)
			}
			if err != nil || le.Uint32(b) != uint32(i) {
				t.Fatalf("%s: page %d has %x, %v", what, i, b, err)
			}
		}
		x.OK(opDeregMR, fields{4: key})
	}
	verify("direct", x.OK(opRegMR, direct))
	chunk := x.Alloc(4096)
	le.PutUint64(chunk.Bytes, list.IOVA)
	indirect := direct.With(3, uint8(cmdCtrlData|cmdCtrlIndir)).With(8, uint32(8+12)).With(12, chunk.IOVA)
	verify("indirect", x.OK(opRegMR, indirect))
	verify("with page_num", x.OK(opRegMR, direct.With(52, uint32(pages))))

	x.bad(statusIllegal, opRegMR, direct.With(4, uint16(9)), "there is no PD 9")
	x.bad(statusIllegal, opRegMR, direct.With(8, uint32(8*pages-8)), "page list of 2040 bytes")
	x.bad(statusIllegal, opRegMR, direct.With(40, uint64(0)), "region of 0x0 bytes")
	x.bad(statusIllegal, opRegMR, direct.With(56, ^uint64(0)-5), "region of")
	x.bad(statusIllegal, opRegMR, direct.With(48, uint8(11)), "phys_page_size_shift 11")
	x.bad(statusIllegal, opRegMR, direct.With(52, uint32(7)), "page_num 7")
	x.bad(statusIllegal, opRegMR, direct.With(3, uint8(0)), "256 pages in the command")
	x.bad(statusMalformed, opRegMR, direct.With(3, uint8(cmdCtrlIndir)), "without ctrl_data")
	x.bad(statusIllegal, opRegMR, direct.With(48, uint8(13)).With(8, uint32(4*pages)), "not aligned to 0x2000")
	x.bad(statusIllegal, opRegMR, indirect.With(8, uint32(8)), "last chunk")
	x.bad(statusIllegal, opRegMR, indirect.With(12, chunk.IOVA+4), "chunk of a page list at")
	le.PutUint64(chunk.Bytes, list.IOVA+8)
	x.bad(statusIllegal, opRegMR, indirect, "part 0 of a page list")
	x.bad(statusIllegal, opRegMR, direct.With(12, uint64(1<<40)), "nothing is mapped")
	x.bad(statusIllegal, opDeregMR, fields{4: uint32(0x1234)}, "no region with l_key")

	// One page of 2 MiB, with an offset.
	r := x.OK(opRegMR, fields{4: x.pd, 8: uint64(0x40000000), 40: uint64(100), 48: uint8(21), 56: uint64(iova + 5000)})
	if spans, err := x.m.local(x.pd, le.Uint32(r), iova+5010, 90, 0); err != nil || len(spans) != 1 ||
		spans[0] != (span{0x40000000 + 5010, 90}) {
		t.Errorf("spans %v, %v", spans, err)
	}
	for _, c := range []struct {
		pd     uint16
		key    uint32
		at     uint64
		n      int
		rights uint8
		text   string
	}{
		{x.pd, le.Uint32(r), iova + 5010, 91, 0, "not in the region"},
		{x.pd, le.Uint32(r), iova + 4999, 1, 0, "not in the region"},
		{x.pd, le.Uint32(r), iova + 5010, 9, mayLocalWrite, "permissions"},
		{x.pd + 1, le.Uint32(r), iova + 5010, 9, 0, "has no region"},
		{x.pd, le.Uint32(r) + 1, iova + 5010, 9, 0, "has no region"},
	} {
		check.Fails(t, fmt.Sprintf("%+v", c), check.Err(x.m.local(c.pd, c.key, c.at, c.n, c.rights)), nil, c.text)
	}
	// Physical mode: the address is a bus address.
	r = x.OK(opRegMR, fields{4: x.pd, 40: uint64(1 << 48), 48: uint8(1 << 7), 49: uint8(1)})
	if spans, err := x.m.local(x.pd, le.Uint32(r), mem.IOVA+12345, 50, mayLocalWrite); err != nil ||
		spans[0] != (span{mem.IOVA + 12345, 50}) {
		t.Errorf("physical: %v, %v", spans, err)
	}
}

// TestChunkChain registers so many pages that their addresses fill more than one chunk of pointers, as Linux writes
// them: 512 addresses per part, 510 parts per chunk. Chunks before the last have a length of 4092 bytes, the last one
// its actual length, or 12 if it is full.
func TestChunkChain(t *testing.T) {
	for _, parts := range []int{1, 509, 510, 511, 1020, 1021} {
		x := openRig(t, Options{})
		n := parts*partPages - 3
		part := x.Alloc(4096) // all parts are the same one: the list repeats
		for i := range partPages {
			le.PutUint64(part.Bytes[8*i:], uint64(i+1)<<12)
		}
		var chunks []dma.Block
		for i := range parts {
			if i%ptrsPerChunk == 0 {
				chunks = append(chunks, x.Alloc(4096))
			}
			le.PutUint64(chunks[len(chunks)-1].Bytes[8*(i%ptrsPerChunk):], part.IOVA)
		}
		length := uint32(8*(parts%ptrsPerChunk) + 12)
		for i := len(chunks) - 1; i > 0; i-- {
			b := chunks[i-1].Bytes[nextChunk:]
			le.PutUint32(b, length)
			le.PutUint64(b[4:], chunks[i].IOVA)
			length = nextChunk + 12
		}
		f := fields{3: uint8(cmdCtrlData | cmdCtrlIndir), 4: x.pd, 8: length, 12: chunks[0].IOVA, 40: uint64(n) << 12,
			48: uint8(12), 49: uint8(7)}
		r := x.OK(opRegMR, f)
		y := x.m.region(le.Uint32(r))
		for i, a := range y.pages {
			if a != uint64(i%partPages+1)<<12 {
				t.Fatalf("%d parts: page %d at %#x", parts, i, a)
			}
		}
		if len(y.pages) != n {
			t.Errorf("%d parts: %d pages of %d", parts, len(y.pages), n)
		}
		if len(chunks) > 1 {
			x.bad(statusIllegal, opRegMR, f.With(8, length+8), "chunk of a page list is")
		}
		x.Clean()
	}
}
