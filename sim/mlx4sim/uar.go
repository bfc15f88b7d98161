package mlx4sim

import (
	"slices"
	"sync/atomic"
	"time"
	"unsafe"
)

// BAR 2: UAR pages with doorbells, then as many BlueFlame pages (PRM "UAR").
const (
	uarSize = 4096
	logUARs = 10
	uars    = 1 << logUARs

	uarSend = 0x14  // send doorbell: the QP's number << 8
	uarCQ   = 0x20  // CQ doorbell, 8 bytes
	uarEQ   = 0x800 // consumer counters of four EQs, 8 bytes apart

	bfHalf     = 1 << logBF / 2
	bfHalves   = uarSize / bfHalf
	bfWords    = bfHalf / 8
	bfPatience = 100 * time.Microsecond
)

// Pattern in the words of UAR pages, which drivers only ever write: any other value means that the word was stored to.
const (
	poison   = 0x9e3779b97f4a7c15
	poison32 = 0x9e3779b9
)

// uarPages are the pages that contain objects' doorbells.
type uarPages struct{ pages map[uint32]*uarPage }

type uarPage struct {
	id   uint32
	held int
	bf   [bfHalves]bfBuffer
}

// bfBuffer is one half of a BlueFlame register. Drivers push WQEs to the halves alternately.
type bfBuffer struct {
	open    bool
	trapped uint32 // words that arrived by WriteBAR and are already counted
	since   time.Duration
	there   int
	steps   int
}

func (u *uarPages) reset(*Model) { u.pages = map[uint32]*uarPage{} }

// hold counts the objects of a page. The model polls only those pages.
func (u *uarPages) hold(m *Model, id uint32, n int) {
	p := u.pages[id]
	if p == nil {
		p = &uarPage{id: id}
		u.pages[id] = p
		atomic.StoreUint32(m.word32(id, uarSend), poison32)
		atomic.StoreUint64(m.word(id, uarCQ), poison)
		for i := range 4 {
			atomic.StoreUint32(m.word32(id, uarEQ+8*i), poison32)
		}
		for off := 0; off < uarSize; off += 8 {
			atomic.StoreUint64(m.word(uars+id, off), poison)
		}
	}
	if p.held += n; p.held == 0 {
		delete(u.pages, id)
	}
}

func (m *Model) word(page uint32, off int) *uint64 {
	at := int(page)*uarSize + off
	return (*uint64)(unsafe.Pointer(&m.host.Shadow(2)[at : at+8][0]))
}

func (m *Model) word32(page uint32, off int) *uint32 {
	at := int(page)*uarSize + off
	return (*uint32)(unsafe.Pointer(&m.host.Shadow(2)[at : at+4][0]))
}

func swap64(v uint64) uint64 {
	var b [8]byte
	*(*uint64)(unsafe.Pointer(&b[0])) = v
	return be.Uint64(b[:])
}

func swap32(v uint32) uint32 {
	var b [4]byte
	*(*uint32)(unsafe.Pointer(&b[0])) = v
	return be.Uint32(b[:])
}

// writeUAR handles a trapped store, which is already in shadow memory.
func (m *Model) writeUAR(off uint64, p []byte) error {
	page, at := uint32(off/uarSize), int(off%uarSize)
	if m.fault.dead {
		return nil
	}
	if page >= uars {
		m.bfStore(page-uars, at, p)
		return nil
	}
	if m.uar.pages[page] == nil {
		m.host.Errorf("UAR %#x: %x written at %03xh, but no object has its doorbells there", page, p, at)
		return nil
	}
	switch {
	case at == uarSend && len(p) == 4:
		m.servePushes()
		atomic.StoreUint32(m.word32(page, at), poison32)
		m.sendDoorbell(page, be.Uint32(p))
	case at == uarCQ && len(p) == 8:
		atomic.StoreUint64(m.word(page, uarCQ), poison)
		m.cqDoorbell(page, be.Uint64(p))
	case at == uarCQ && len(p) == 4: // the second part rings
	case at == uarCQ+4 && len(p) == 4:
		m.cqDoorbell(page, swap64(atomic.SwapUint64(m.word(page, uarCQ), poison)))
	case at >= uarEQ && at < uarEQ+32 && at&7 == 0 && len(p) == 4:
		atomic.StoreUint32(m.word32(page, at), poison32)
		m.eqDoorbell(4*page+uint32(at-uarEQ)/8, be.Uint32(p))
	default:
		m.host.Errorf("UAR %#x: %x written at %03xh, where nothing is", page, p, at)
	}
	return nil
}

// bfStore is a trapped store to a BlueFlame register.
func (m *Model) bfStore(id uint32, at int, p []byte) {
	u := m.uar.pages[id]
	switch {
	case u == nil:
		m.host.Errorf("BlueFlame page %#x: %x written at %03xh, but no object has its doorbells there", id, p, at)
		return
	case len(p) != 8:
		m.host.Errorf("BlueFlame page %#x: store of %d bytes at %03xh: its words have 8", id, len(p), at)
		return
	}
	half, w := at/bfHalf, at%bfHalf/8
	b := &u.bf[half]
	switch {
	case w == 0:
		if b.open { // the last one will not be completed, so it counts as a doorbell
			m.pushed(id, m.bfPeek(u, half), false, false)
		}
		for k := 1; k < bfWords; k++ {
			atomic.StoreUint64(m.word(uars+id, half*bfHalf+8*k), poison)
		}
		*b = bfBuffer{open: true}
	case !b.open: // the first word was served as a doorbell already
		atomic.StoreUint64(m.word(uars+id, at), poison)
		return
	}
	b.trapped |= 1 << w
	b.since, b.steps = m.host.Now(), 0
}

// bfPeek returns the first word of a half in the byte order of the push.
func (m *Model) bfPeek(u *uarPage, half int) []byte {
	return be.AppendUint64(nil, swap64(m.bfLoad(u, half, 0)))
}

// servePushes handles the BlueFlame registers with trapped stores, even if incomplete: the driver's next store
// elsewhere must arrive after them.
func (m *Model) servePushes() {
	for _, u := range m.uar.pages {
		for _, h := range m.inRingOrder(u) {
			if b := &u.bf[h]; b.open && b.trapped != 0 {
				m.takeBF(u, h, m.whole(u, h))
			}
		}
	}
}

// stepUARs finds doorbells that were stored through a pointer, and serves BlueFlame registers. Unlike on a card, two
// stores to one doorbell between two Steps look like one. So other possible sources of a doorbell are checked: a CQ's
// arm record, and the next WQE in a queue.
func (m *Model) stepUARs() (busy bool) {
	for _, u := range m.uar.pages {
		for _, h := range m.inRingOrder(u) {
			busy = m.stepBF(u, h) || busy
		}
		if p := m.word32(u.id, uarSend); atomic.LoadUint32(p) != poison32 {
			m.host.CountMMIOWrite(1)
			m.sendDoorbell(u.id, swap32(atomic.SwapUint32(p, poison32)))
			m.lookAtQueues(u.id)
			busy = true
		}
		if p := m.word(u.id, uarCQ); halvesStored(atomic.LoadUint64(p)) {
			m.host.CountMMIOWrite(1)
			m.cqDoorbell(u.id, swap64(atomic.SwapUint64(p, poison)))
			m.lookAtRecords(u.id)
			busy = true
		}
		for i := range 4 {
			if p := m.word32(u.id, uarEQ+8*i); atomic.LoadUint32(p) != poison32 {
				m.host.CountMMIOWrite(1)
				m.eqDoorbell(4*u.id+uint32(i), swap32(atomic.SwapUint32(p, poison32)))
				busy = true
			}
		}
	}
	return busy
}

// halvesStored reports whether both halves of a word were stored to.
func halvesStored(v uint64) bool { return uint32(v) != poison&0xffffffff && v>>32 != poison>>32 }

// lookAtRecords arms CQs whose arm record requests it, and whose doorbell another store may have overwritten.
func (m *Model) lookAtRecords(u uint32) {
	h, ok := m.host.(interface {
		Peek(iova uint64, p []byte) error
	})
	if !ok {
		return
	}
	for _, q := range m.obj.cqs {
		var rec [4]byte
		if q.uar != u || h.Peek(q.dbr+4, rec[:]) != nil {
			continue
		}
		v := be.Uint32(rec[:])
		cmd, ci := v>>24&7, v&0xffffff
		if v == q.record || cmd == 0 || (ci-q.ci)&0xffffff > (q.pi-q.ci)&0xffffff {
			continue
		}
		q.record = v
		m.host.CountMMIOWrite(1)
		m.armCQ(q, v>>28&3, cmd, ci)
	}
}

// stepBF handles one half of a BlueFlame register: as a whole WQE if all of its words have arrived, and as a doorbell
// once no more can be expected.
func (m *Model) stepBF(u *uarPage, half int) bool {
	b := &u.bf[half]
	if !b.open {
		*b = bfBuffer{open: true, since: m.host.Now()}
	}
	there := 0
	for w := range bfWords {
		if m.bfLoad(u, half, w) != poison {
			there++
		}
	}
	whole := m.whole(u, half)
	if !whole {
		if there > b.there {
			b.there, b.steps, b.since = there, 0, m.host.Now()
		}
		if b.steps++; b.steps == 1 || m.host.Now()-b.since < bfPatience {
			return true
		}
	}
	m.takeBF(u, half, whole)
	return true
}

func (m *Model) bfLoad(u *uarPage, half, w int) uint64 {
	return atomic.LoadUint64(m.word(uars+u.id, half*bfHalf+8*w))
}

// whole reports whether all words that the WQE's first word announces have arrived. They arrive in units of 64 bytes.
func (m *Model) whole(u *uarPage, half int) bool {
	n := min(int(swap64(m.bfLoad(u, half, 0))&0x3f)*2, bfWords)
	n = min((n+7)&^7, bfWords)
	for w := range max(n, 1) {
		if m.bfLoad(u, half, w) == poison {
			return false
		}
	}
	return n > 0
}

// takeBF empties a half and handles its WQE.
func (m *Model) takeBF(u *uarPage, half int, whole bool) {
	var buf [bfHalf]byte
	b := &u.bf[half]
	stores := 0
	for w := range bfWords {
		v := atomic.SwapUint64(m.word(uars+u.id, half*bfHalf+8*w), poison)
		if v == poison {
			continue
		}
		if b.trapped&(1<<w) == 0 {
			stores++
		}
		be.PutUint64(buf[8*w:], swap64(v))
	}
	// A processor merges the stores of a whole 64 bytes into one transaction.
	if stores > 0 {
		m.host.CountMMIOWrite((stores + 7) / 8)
	}
	polled := b.trapped == 0
	*b = bfBuffer{}
	if be.Uint64(buf[:]) != 0 {
		m.pushed(u.id, buf[:], whole, polled)
	}
}

// inRingOrder returns the halves that were stored to, in the order of their WQEs: a device receives posted writes in
// the order of the stores, but polling loses it.
func (m *Model) inRingOrder(u *uarPage) []int {
	var buf [bfHalves]int
	halves := buf[:0]
	for h := range u.bf {
		if m.bfLoad(u, h, 0) != poison {
			halves = append(halves, h)
		}
	}
	if len(halves) > 1 {
		slices.SortStableFunc(halves, func(a, b int) int { return m.ahead(u, a) - m.ahead(u, b) })
	}
	return halves
}

// ahead returns the distance of a half's WQE from the one that its queue executes next.
func (m *Model) ahead(u *uarPage, half int) int {
	v := swap64(m.bfLoad(u, half, 0))
	if q := m.obj.qps[uint32(v>>8)&0xffffff&m.qpMask()]; q != nil {
		return int(int16(uint16(v>>40) - uint16(q.head)))
	}
	return 0
}
