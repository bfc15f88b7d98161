package mlx5

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
)

// Firmware keeps its state in pages of host memory that the driver gives it (PRM, QUERY_PAGES and MANAGE_PAGES).
const (
	pagesBoot    = 1 // QUERY_PAGES op_mod
	pagesInit    = 2
	pagesRegular = 3

	pagesCantGive = 0 // MANAGE_PAGES op_mod
	pagesGive     = 1
	pagesTake     = 2

	pageSize    = 4096
	pagesAtOnce = (maxMessage - 0x10) / 8
)

// reclaimLimit is how long firmware may take to return pages after TEARDOWN_HCA.
var reclaimLimit = 5 * time.Second

// pagePool is the memory that firmware has or may get. Each page belongs either to the pool or to firmware.
type pagePool struct {
	mu    sync.Mutex
	arena *dma.Arena
	free  []uint64
	given map[uint64]struct{}
	limit int // pages that firmware may have; 0 for no limit

	function uint32 // the function's ID in page commands
}

// allocate returns n pages and grows the arena if there are too few.
func (p *pagePool) allocate(n int) ([]uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.limit != 0 && len(p.given)+n > p.limit {
		return nil, fmt.Errorf("firmware wants %d pages and has %d: more than %d are not given", n, len(p.given),
			p.limit)
	}
	for len(p.free) < n {
		size := max(n-len(p.free), 64) * pageSize
		b, err := p.arena.Alloc(size, pageSize)
		if errors.Is(err, dma.ErrNoRoom) {
			if err = p.arena.Grow(size); err != nil {
				return nil, err
			}
			// smaller pieces if there is no IOMMU
			if b, err = p.arena.Alloc(size, pageSize); errors.Is(err, dma.ErrNoRoom) {
				size = pageSize
				b, err = p.arena.Alloc(size, pageSize)
			}
		}
		if err != nil {
			return nil, err
		}
		for off := 0; off < size; off += pageSize {
			if b.IOVA+uint64(off) != 0 { // firmware reads address 0 as no page
				p.free = append(p.free, b.IOVA+uint64(off))
			}
		}
	}
	got := append([]uint64(nil), p.free[len(p.free)-n:]...)
	p.free = p.free[:len(p.free)-n]
	for _, a := range got {
		p.given[a] = struct{}{}
	}
	return got, nil
}

// put takes pages back. It returns an error for a page that firmware did not have.
func (p *pagePool) put(pages []uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range pages {
		if _, ok := p.given[a]; !ok {
			return fmt.Errorf("%w: firmware gives back page %#x, which it did not have", nic.ErrHardware, a)
		}
		delete(p.given, a)
		p.free = append(p.free, a)
	}
	return nil
}

// held returns the number of pages that firmware has.
func (p *pagePool) held() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.given)
}

// queryPages returns the number of pages that firmware needs now.
func (d *Device) queryPages(which uint32) (function uint32, n int, err error) {
	out, err := d.exec(command(opQueryPages, which, 0x10), 0x10)
	if err != nil {
		return 0, 0, err
	}
	return out.get(0x08, 15, 0), int(int32(out.get(0x0C, 31, 0))), nil
}

// startupPages gives firmware the pages that it needs for a stage of its start.
func (d *Device) startupPages(which uint32) error {
	function, n, err := d.queryPages(which)
	if err != nil {
		return err
	}
	d.pages.function = function
	return d.givePages(function, n)
}

// givePages gives n pages of 4 KB to a function's firmware, in several commands. Pages that firmware refuses are free
// again.
func (d *Device) givePages(function uint32, n int) error {
	for ; n > 0; n -= pagesAtOnce {
		some := min(n, pagesAtOnce)
		pages, err := d.pages.allocate(some)
		if err != nil {
			return errors.Join(d.card.Errorf("%d pages for firmware: %w", n, err), d.cantGive(function))
		}
		in := command(opManagePages, pagesGive, 0x10+8*some).
			set("function_id", 0x08, 15, 0, function).
			set("input_num_entries", 0x0C, 31, 0, uint32(some))
		for i, a := range pages {
			in.set64(0x10+8*i, a)
		}
		if _, err := d.exec(in, 0x10); err != nil {
			if refused(err) { // firmware did not take them
				err = errors.Join(err, d.pages.put(pages))
			}
			return err
		}
	}
	return nil
}

// cantGive reports to firmware that no memory is available.
func (d *Device) cantGive(function uint32) error {
	_, err := d.exec(command(opManagePages, pagesCantGive, 0x10).set("function_id", 0x08, 15, 0, function), 0x10)
	return err
}

// reclaimPages requests up to n pages from firmware and returns how many it got.
func (d *Device) reclaimPages(function uint32, n int) (int, error) {
	n = min(n, pagesAtOnce)
	out, err := d.exec(command(opManagePages, pagesTake, 0x10).
		set("function_id", 0x08, 15, 0, function).
		set("input_num_entries", 0x0C, 31, 0, uint32(n)), 0x10+8*n)
	if err != nil {
		return 0, err
	}
	got := int(out.get(0x08, 31, 0))
	if got > n {
		return 0, d.card.Errorf("%w: firmware gives back %d pages where %d were asked for", nic.ErrHardware, got, n)
	}
	pages := make([]uint64, got)
	for i := range pages {
		pages[i] = out.get64(0x10+8*i) &^ (pageSize - 1)
	}
	return got, d.pages.put(pages)
}

// reclaimAll takes back every page, after TEARDOWN_HCA.
func (d *Device) reclaimAll() error {
	for end := time.Now().Add(reclaimLimit); d.pages.held() > 0; {
		late := time.Now().After(end)
		n, err := d.reclaimPages(d.pages.function, d.pages.held())
		if err != nil {
			return err
		}
		if n == 0 {
			if late {
				return d.card.Errorf("%w: firmware keeps %d pages after TEARDOWN_HCA", nic.ErrTimeout, d.pages.held())
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// pageRequest handles a page request event: firmware needs n pages, or returns -n.
func (d *Device) pageRequest(function uint32, n int) {
	var err error
	if n >= 0 {
		err = d.givePages(function, n)
	}
	for want := -n; want > 0 && err == nil; {
		var got int
		if got, err = d.reclaimPages(function, want); got == 0 {
			break
		}
		want -= got
	}
	if err != nil {
		d.card.Log.Warn("page request", "pages", n, "err", err)
		d.events.pageErrors.Add(1)
		return
	}
	d.card.Log.Debug("page request", "pages", n, "held", d.pages.held())
	d.events.pageRequests.Add(1)
}
