package mlx5sim

import "encoding/binary"

// The firmware has no memory: it requests pages of the host, keeps its objects' contexts there, and returns pages on
// request. The host must not touch a page in between.
const (
	pageSize    = 4096
	contextSize = 64 // of each object, in the model's format
	perPage     = pageSize / contextSize
	bootPages   = 6 // as the recorded card requests

	pagesCannotGive = 0 // MANAGE_PAGES op_mod
	pagesGive       = 1
	pagesTake       = 2
)

// page is a page that the firmware owns.
type page struct {
	iova uint64
	used [perPage]bool
	n    int
}

type pagePool struct {
	owned   map[uint64]*page
	order   []*page // in the order in which they were given
	missing int     // requested by QUERY_PAGES and not yet given
	boot    int
	asked   int // requested by events and not yet given
}

// slot is the position of an object's context.
type slot struct {
	p *page
	i int
}

func (p *pagePool) want(n int) {
	p.missing, p.boot = n, n
	p.owned = map[uint64]*page{}
}

// release frees all contexts, so that the pages can be returned.
func (p *pagePool) release() {
	for _, pg := range p.order {
		pg.used, pg.n = [perPage]bool{}, 0
	}
	p.asked = 0
}

// functionID is this function's ID in page commands: that of a virtual function is not 0.
func (m *Model) functionID() uint32 {
	if m.prof.virtual {
		return 3
	}
	return 0
}

func (m *Model) queryPages(c *call) *refusal {
	c.out.Set("function_id", uint64(m.functionID()))
	n := 0
	switch c.in.U("op_mod") {
	case 1: // boot pages
		n = m.pages.missing
	case 2: // init pages
		if m.hca == hcaReady {
			return refuse(stBadSysState, "init pages are asked for before INIT_HCA")
		}
		if !m.opt.HostPages {
			n = max(0, m.opt.InitPages+bootPages-len(m.pages.owned))
		}
		m.pages.missing = n
	case 3: // regular pages: a negative number can be returned
		n = -m.pages.idle()
	default:
		return refuse(stBadParam, "op_mod is %d, expected 1 (boot), 2 (init) or 3 (regular)", c.in.U("op_mod"))
	}
	c.out.Set("num_pages", uint64(uint32(int32(n))))
	return nil
}

func (p *pagePool) idle() (n int) {
	for _, pg := range p.order {
		if pg.n == 0 {
			n++
		}
	}
	return n
}

func (m *Model) managePages(c *call) *refusal {
	n := c.in.I("input_num_entries")
	if f := c.in.U32("function_id"); f != m.functionID() {
		return refuse(stBadParam, "function_id is %d, the function is %d", f, m.functionID())
	}
	switch c.in.U("op_mod") {
	case pagesCannotGive:
		m.pages.asked = 0
		return nil
	case pagesGive:
		return m.givePages(c, n)
	case pagesTake:
		return m.takePages(c, n)
	}
	return refuse(stBadParam, "op_mod is %d, expected 0 (cannot give), 1 (give) or 2 (take)", c.in.U("op_mod"))
}

func (m *Model) givePages(c *call, n int) *refusal {
	pas := c.in.B[16:]
	// A list of one entry is padded to the recorded card's minimum length.
	if len(pas) < 8*n {
		return refuse(stInLen, "%d pages in %d bytes", n, len(pas))
	}
	if m.opt.NoPages {
		return cannot(stBadParam, "pages refused")
	}
	for i := range n {
		at := be.Uint64(pas[8*i:])
		switch {
		case at%pageSize != 0:
			return refuse(stBadParam, "page %d of %d, %#x, is not aligned to 4096", i, n, at)
		case m.pages.owned[at] != nil:
			return refuse(stBadParam, "page %d of %d, %#x, is the firmware's already", i, n, at)
		}
		p := &page{iova: at}
		m.pages.owned[at] = p
		m.pages.order = append(m.pages.order, p)
	}
	m.pages.missing = max(0, m.pages.missing-n)
	m.pages.asked = max(0, m.pages.asked-n)
	return nil
}

func (m *Model) takePages(c *call, n int) *refusal {
	if len(c.out.B) < 16+8*n {
		return refuse(stOutLen, "%d pages in %d bytes", n, len(c.out.B))
	}
	k := 0
	for i := len(m.pages.order) - 1; i >= 0 && k < n; i-- {
		p := m.pages.order[i]
		if p.n > 0 {
			continue
		}
		be.PutUint64(c.out.B[16+8*k:], p.iova)
		delete(m.pages.owned, p.iova)
		m.pages.order = append(m.pages.order[:i], m.pages.order[i+1:]...)
		k++
	}
	m.pages.asked = 0
	c.out.Set("output_num_entries", uint64(k))
	return nil
}

// keep writes a new object's context into a page.
func (m *Model) keep(kind uint32, id uint32) (slot, *refusal) {
	if m.opt.HostPages {
		return slot{}, nil
	}
	for _, p := range m.pages.order {
		if p.n == perPage {
			continue
		}
		for i := range p.used {
			if p.used[i] {
				continue
			}
			s := slot{p, i}
			if m.host.DMAWrite(s.iova(), context(kind, id)) != nil {
				return slot{}, refuse(stInternal, "page %#x was given and cannot be written", p.iova)
			}
			p.used[i] = true
			p.n++
			return s, nil
		}
	}
	m.RequestPages(pagesAtATime)
	return slot{}, cannot(stNoRes, "no page is left for a context")
}

func (s slot) iova() uint64 { return s.p.iova + uint64(s.i)*contextSize }

// drop reads a context back when its object is destroyed, and checks that the host did not modify it.
func (m *Model) drop(s slot, kind, id uint32) {
	if s.p == nil {
		return
	}
	var b [contextSize]byte
	if m.host.DMARead(s.iova(), b[:]) == nil && string(b[:]) != string(context(kind, id)) {
		m.host.Errorf("page %#x is the firmware's, and the host wrote to it: the context at %#x was %x, is %x",
			s.p.iova, s.iova(), context(kind, id), b)
	}
	s.p.used[s.i] = false
	s.p.n--
}

func context(kind, id uint32) []byte {
	b := make([]byte, contextSize)
	for i := 0; i < contextSize; i += 8 {
		binary.BigEndian.PutUint64(b[i:], uint64(kind)<<56|uint64(i)<<32|uint64(id))
	}
	return b
}

// pagesAtATime is how many pages the firmware requests when it runs out.
const pagesAtATime = 16

// RequestPages sends a page request event: the firmware requests n more pages or, if n is negative, returns up to that
// many.
func (m *Model) RequestPages(n int) {
	if m.hca != hcaReady {
		return
	}
	var d [eventData]byte
	be.PutUint16(d[2:], uint16(m.functionID()))
	be.PutUint32(d[4:], uint32(int32(n)))
	m.pages.asked = max(0, n)
	m.event(eventPageRequest, 0, d[:])
}

// AskPages makes the next Step request n pages. Any goroutine may call it.
func (m *Model) AskPages(n int) { m.fault.ask.Add(int32(n)) }

// Pages returns how many pages the firmware owns, and how many of them are empty. Use Port.Hold if the port is running.
func (m *Model) Pages() (owned, idle int) { return len(m.pages.owned), m.pages.idle() }
