package mlx5sim

import (
	"slices"
	"sync/atomic"
	"time"
	"unsafe"
)

// UAR page, PRM "UAR Page Format".
const (
	uarCQ      = 0x20 // CQ doorbell, 8 bytes
	uarEQArm   = 0x40 // EQ consumer counter, and arm
	uarEQ      = 0x48 // EQ consumer counter
	uarBF      = 0x800
	bfRegSize  = 0x200 // 1 << cap log_bf_reg_size: two halves, used alternately
	bfHalf     = bfRegSize / 2
	bfHalves   = (uarSize - uarBF) / bfHalf
	bfWords    = bfHalf / 8
	bfPatience = 100 * time.Microsecond
)

// poison is the model's pattern in the words of UAR pages, which drivers only write: a word with another value was
// written.
const poison = 0x9e3779b97f4a7c15

// uar is a page of doorbells.
type uar struct {
	object
	bf [bfHalves]bfBuffer
}

// bfBuffer is one half of a BlueFlame register.
type bfBuffer struct {
	open    bool          // the first word was seen, more may still come
	trapped uint32        // words stored through WriteBAR: already counted
	ctrl    uint64        // the first word, if it was trapped
	since   time.Duration // time of the last word
	there   int           // words seen, if they are polled
	steps   int
	pushes  bool // more than one word was seen at least once: the driver pushes WQEs
	torn    bool // words of an earlier push came late: the current content cannot be trusted
	mixes   int  // consecutive suspect pushes that differed from the ring, however long the model waited
}

func (m *Model) allocUAR(c *call) *refusal {
	u := new(uar)
	if r := m.obj.uars.add(m, u); r != nil {
		return r
	}
	m.poisonUAR(u.id)
	c.out.Set("uar", uint64(u.id))
	return nil
}

// doorbellPage returns the UAR page of a new queue. The driver's own pages are for every user context, too: Linux 5.10
// allocates those of contexts without their id.
func (m *Model) doorbellPage(id uint32) (*uar, *refusal) {
	if u := m.obj.uars.m[id]; u != nil && u.uid == 0 {
		return u, nil
	}
	return m.obj.uars.get(id)
}

func (m *Model) deallocUAR(c *call) *refusal {
	u, r := m.obj.uars.remove(m, c.in.U32("uar"))
	if r == nil {
		m.checkIdle(u)
	}
	return r
}

// checkIdle detects stores that came too late.
func (m *Model) checkIdle(u *uar) {
	for h := range u.bf {
		if m.load(u.id, h, 0) != poison {
			m.host.Warnf("DEALLOC_UAR (803h): UAR %#x has a doorbell that was not served", u.id)
		}
	}
}

// word is the shadow memory of a UAR page.
func (m *Model) word(u uint32, off int) *uint64 {
	return (*uint64)(unsafe.Pointer(&m.host.Shadow(0)[int(u)*uarSize+off : int(u)*uarSize+off+8][0]))
}

func (m *Model) load(u uint32, half, w int) uint64 {
	return atomic.LoadUint64(m.word(u, uarBF+half*bfHalf+8*w))
}

// stored returns the value stored to a word since the last call.
func (m *Model) stored(u uint32, off int) (v uint64, ok bool) {
	p := m.word(u, off)
	if atomic.LoadUint64(p) == poison {
		return 0, false
	}
	return swap64(atomic.SwapUint64(p, poison)), true
}

func swap64(v uint64) uint64 {
	var b [8]byte
	*(*uint64)(unsafe.Pointer(&b[0])) = v
	return be.Uint64(b[:])
}

// poisonUAR prepares a page that is allocated. Others are not read.
func (m *Model) poisonUAR(u uint32) {
	for off := 0; off < uarSize; off += 8 {
		atomic.StoreUint64(m.word(u, off), poison)
	}
}

// writeUAR handles a trapped store, which is already in shadow memory.
func (m *Model) writeUAR(id uint32, off uint64, p []byte) error {
	u := m.obj.uars.m[id]
	if u == nil {
		if m.lost || m.dead() {
			return nil
		}
		m.host.Errorf("UAR %#x: %x written at %03xh, but it is not allocated", id, p, off)
		return nil
	}
	w := int(off &^ 7)
	switch {
	case off == uarEQArm || off == uarEQ:
		if len(p) != 4 {
			m.host.Errorf("UAR %#x: EQ doorbell of %d bytes, it has 4", id, len(p))
		} else {
			m.eqDoorbell(id, be.Uint32(p), off == uarEQArm)
		}
		atomic.StoreUint64(m.word(id, w), poison)
	case off == uarCQ || off == uarCQ+4:
		m.cqHalf(id, off, p)
	case off >= uarBF:
		m.bfStore(u, int(off-uarBF), p)
	default:
		m.host.Errorf("UAR %#x: %x written at %03xh, where nothing is", id, p, off)
		atomic.StoreUint64(m.word(id, w), poison)
	}
	return nil
}

// cqHalf handles a CQ doorbell written in one part or, if the CPU has no larger store, in two.
func (m *Model) cqHalf(id uint32, off uint64, p []byte) {
	if len(p) == 8 {
		m.cqDoorbell(id, be.Uint64(p))
	} else if off == uarCQ {
		return // the second part rings the doorbell
	} else {
		m.cqDoorbell(id, swap64(atomic.LoadUint64(m.word(id, uarCQ))))
	}
	atomic.StoreUint64(m.word(id, uarCQ), poison)
}

// bfStore is a trapped store to a BlueFlame register.
func (m *Model) bfStore(u *uar, off int, p []byte) {
	half, w := off/bfHalf, off%bfHalf/8
	b := &u.bf[half]
	if len(p) != 8 {
		m.host.Errorf("UAR %#x: store of %d bytes to BlueFlame register at %03xh: its words have 8", u.id, len(p),
			uarBF+off)
		return
	}
	if w == 0 {
		ctrl := be.Uint64(p)
		if b.open { // the previous one will not be completed any more
			m.clearBF(u.id, half, 1)
			m.ringSQ(u.id, b.ctrl, nil, false, false)
			b.open = false
		}
		if !b.pushes {
			atomic.StoreUint64(m.word(u.id, uarBF+half*bfHalf), poison)
			m.ringSQ(u.id, ctrl, nil, false, false)
			return
		}
		b.open, b.trapped, b.ctrl = true, 1, ctrl
		b.since, b.steps = m.host.Now(), 0
		return
	}
	b.pushes = true
	if !b.open { // the first word was already served as a doorbell
		atomic.StoreUint64(m.word(u.id, uarBF+half*bfHalf+8*w), poison)
		return
	}
	b.trapped |= 1 << w
	b.since, b.steps = m.host.Now(), 0
}

// clearBF clears the words of a half from w on.
func (m *Model) clearBF(u uint32, half, w int) {
	for ; w < bfWords; w++ {
		atomic.StoreUint64(m.word(u, uarBF+half*bfHalf+8*w), poison)
	}
}

// stepUARs detects doorbells that were stored through a pointer, and serves BlueFlame registers.
func (m *Model) stepUARs() (busy bool) {
	for _, u := range m.obj.uars.m {
		if v, ok := m.stored(u.id, uarCQ); ok {
			m.host.CountMMIOWrite(1)
			m.cqDoorbell(u.id, v)
			busy = true
		}
		for _, off := range [...]int{uarEQArm, uarEQ} {
			if v, ok := m.stored(u.id, off); ok {
				m.host.CountMMIOWrite(1)
				m.eqDoorbell(u.id, uint32(v>>32), off == uarEQArm)
				busy = true
			}
		}
		for _, h := range m.inRingOrder(u) {
			busy = m.stepBF(u, h, false) || busy
		}
	}
	return busy
}

// servePushes serves the BlueFlame registers in their current state, because the driver's stores to other registers
// arrive after these.
func (m *Model) servePushes() {
	for _, u := range m.obj.uars.m {
		for _, h := range m.inRingOrder(u) {
			m.stepBF(u, h, true)
		}
	}
}

// inRingOrder returns the written halves in the order of their WQEs in the ring. A device gets posted writes in the
// order of the stores; with polling, that order is lost.
func (m *Model) inRingOrder(u *uar) []int {
	var buf [bfHalves]int
	halves := buf[:0]
	for { // stores made before a word that was just seen are visible in the next pass
		n := len(halves)
		halves = buf[:0]
		for h := range u.bf {
			if m.load(u.id, h, 0) != poison {
				halves = append(halves, h)
			}
		}
		if len(halves) == n {
			break
		}
	}
	if len(halves) > 1 {
		slices.SortStableFunc(halves, func(a, b int) int { return m.ahead(u, a) - m.ahead(u, b) })
	}
	return halves
}

// ahead is the distance of the WQE in a half from the end of its queue's posted WQEs.
func (m *Model) ahead(u *uar, half int) int {
	ctrl := swap64(m.load(u.id, half, 0))
	if q := m.sendQueue(uint32(ctrl>>8) & 0xffffff); q != nil {
		return q.ahead(uint32(ctrl>>40) & 0xffff)
	}
	return 0
}

// stepBF serves one half of a BlueFlame register: a complete WQE if all of its words are present, otherwise, when no
// more are expected or if it is due, a doorbell.
func (m *Model) stepBF(u *uar, half int, due bool) bool {
	b := &u.bf[half]
	first := m.load(u.id, half, 0)
	if first == poison {
		return false
	}
	if !b.open { // stored through a pointer
		b.open, b.trapped, b.there, b.steps, b.since = true, 0, 0, 0, m.host.Now()
	}
	ctrl := swap64(first)
	n := min(int(ctrl&0x3f)*2, bfWords)
	there := 0
	for w := range bfWords {
		if m.load(u.id, half, w) != poison {
			there++
		}
	}
	want := (n + 7) &^ 7 // pushed in units of 64 bytes
	whole := there >= want || there >= n && m.prefix(u.id, half, n)
	// Late words of a push that was served too early make the next one look complete. Blocks stored through a pointer
	// may become visible in any order (MOVDIR64B), so words of another push may be among them. Such pushes are trusted
	// only if they are identical to the ring. If very many in a row differ, the cause is not timing but a driver that
	// does not write the ring.
	suspect := (b.trapped == 0 || b.torn) && b.mixes < 32
	mixed := suspect && whole && n > 1 && !m.inRing(m.peekBF(u.id, half, n))
	if !whole || mixed {
		if b.trapped == 0 && there > b.there { // a driver in a virtual machine stores slowly
			b.there, b.steps, b.since = there, 0, m.host.Now()
		}
		patient := b.steps == 0 || there > 1 && m.host.Now()-b.since < bfPatience
		if b.trapped != 0 {
			patient = b.pushes && m.host.Now()-b.since < bfPatience
		}
		if b.steps++; patient && !due {
			return true
		}
	}
	var buf [bfHalf]byte
	polled := b.trapped == 0
	stores, pushed := 0, 0
	for w := range bfWords {
		v := atomic.SwapUint64(m.word(u.id, uarBF+half*bfHalf+8*w), poison)
		if v == poison {
			continue
		}
		pushed++
		if b.trapped&(1<<w) == 0 {
			stores++
		}
		be.PutUint64(buf[8*w:], swap64(v))
	}
	// A processor merges the stores of 64 bytes into one transaction.
	if pushed > 1 && stores > 0 {
		stores = (stores + 7) / 8
	}
	m.host.CountMMIOWrite(stores)
	if pushed > 1 {
		b.pushes = true
	}
	// overwritten by the next push but one while the words were read
	overtaken := be.Uint64(buf[:]) != ctrl || polled && m.load(u.id, half, 0) != poison
	ctrl = be.Uint64(buf[:])
	inline := whole && !overtaken && n > 1
	b.torn = !whole && (pushed > 1 || polled && b.pushes) || overtaken
	b.open, b.trapped = false, 0
	if inline {
		b.torn = !m.ringSQ(u.id, ctrl, buf[:8*n], polled, suspect)
		if mixed {
			b.mixes++
		} else {
			b.mixes = 0
		}
	} else {
		m.ringSQ(u.id, ctrl, nil, polled, false)
	}
	return true
}

// peekBF returns the first n words without clearing them.
func (m *Model) peekBF(u uint32, half, n int) (b []byte) {
	for w := range n {
		b = be.AppendUint64(b, swap64(m.load(u, half, w)))
	}
	return b
}

// prefix reports whether the first n words are present.
func (m *Model) prefix(u uint32, half, n int) bool {
	for w := range n {
		if m.load(u, half, w) == poison {
			return false
		}
	}
	return true
}

// uarEnd is the end of the UAR pages in the BAR.
func (m *Model) uarEnd() uint64 { return uint64(firstUAR+m.uars) * uarSize }
