package mlx5sim

import "fmt"

// buffer is a queue's memory: pages that need not be contiguous.
type buffer struct {
	pages    []uint64
	logPage  int // bytes of one
	offset   uint64
	logEntry int
	logSize  int // entries
}

func (b *buffer) entries() uint32 { return 1 << b.logSize }

// at is the address of entry i, which wraps.
func (b *buffer) at(i uint32) uint64 {
	off := b.offset + uint64(i&(b.entries()-1))<<b.logEntry
	return b.pages[off>>b.logPage] + off&(1<<b.logPage-1)
}

// contiguous returns how many of n entries from i on lie in one piece.
func (b *buffer) contiguous(i, n uint32) uint32 {
	i &= b.entries() - 1
	n = min(n, b.entries()-i)
	for k := uint32(1); k < n; k++ {
		if b.at(i+k) != b.at(i)+uint64(k)<<b.logEntry {
			return k
		}
	}
	return n
}

// newBuffer reads the page addresses behind a context. log_page_size counts from 4096 bytes.
func (m *Model) newBuffer(pas []byte, logPage, pageOffset, logEntry, logSize int) (buffer, *refusal) {
	b := buffer{logPage: 12 + logPage, offset: uint64(pageOffset) * 64, logEntry: logEntry, logSize: logSize}
	if b.logPage > 30 || logSize > 22 {
		return b, refuse(stBadParam, "log_page_size %d, log size %d: too large", logPage, logSize)
	}
	need := int((b.offset + 1<<(logEntry+logSize) + 1<<b.logPage - 1) >> b.logPage)
	if len(pas) < 8*need {
		return b, refuse(stInLen, "%d entries of %d bytes take %d pages of %d, the input has %d addresses",
			1<<logSize, 1<<logEntry, need, 1<<b.logPage, len(pas)/8)
	}
	for i := range need {
		at := be.Uint64(pas[8*i:])
		if need == 1 && at != 0 && at&(1<<b.logPage-1) != 0 && at%4096 == 0 {
			m.host.Tell("log_page_size %d: the only page, %#x, is aligned to 4096 bytes and not to %d", logPage, at, 1<<b.logPage)
		} else if at == 0 || at&(1<<b.logPage-1) != 0 {
			return b, refuse(stBadParam, "pas[%d] is %#x: pages of %d bytes are aligned to that", i, at, 1<<b.logPage)
		}
		b.pages = append(b.pages, at)
	}
	return b, nil
}

// mkey is a memory key. A physical one is host memory as it is.
type mkey struct {
	object
	key      uint32 // index and variant
	pd       uint32
	physical bool
	read     bool // lr
	write    bool // lw
	start    uint64
	len      uint64
	logPage  int
	mtt      []uint64
}

// Memory key context, PRM "MKey Context".
var mkeyContext = lay(64, `00.30 free 00.28:26 access_mode_4_2 00.18 relaxed_ordering_write 00.15 umr_en 00.14 a 00.13 rw 00.12 rr 00.11 lw 00.10 lr
	00.9:8 access_mode_1_0 04.31:8 qpn 04.7:0 mkey_7_0 0c.31 length64 0c.24 en_rinval 0c.23:0 pd 10*2 start_addr 18*2 len
	34.31:0 translations_octword_size 38.6 relaxed_ordering_read 38.5:0 log_page_size`)

func (m *Model) createMkey(c *call) *refusal {
	in := c.in
	k := &mkey{pd: in.u32("pd"), read: in.is("lr"), write: in.is("lw"), start: in.u("start_addr"), len: in.u("len"), logPage: in.i("log_page_size")}
	switch {
	case in.is("free"), in.u("access_mode_4_2") != 0, in.is("umr_en"):
		return refuse(stBadParam, "free %d, access_mode_4_2 %d, umr_en %d: the model has neither free keys nor UMR",
			in.u("free"), in.u("access_mode_4_2"), in.u("umr_en"))
	case in.u("qpn") != 0xffffff:
		return refuse(stBadParam, "qpn is %#x, expected ffffffh: not bound to a queue pair", in.u("qpn"))
	}
	if _, r := m.obj.pds.get(k.pd); r != nil {
		return r
	}
	switch mode := in.u("access_mode_1_0"); mode {
	case 0: // PA
		k.physical = true
		if !in.is("length64") {
			return refuse(stBadParam, "length64 is clear: a physical key of %d bytes is not modelled", k.len)
		}
	case 1: // MTT
		if k.logPage < 12 || k.logPage > 31 {
			return refuse(stBadParam, "log_page_size is %d, expected 12 to 31", k.logPage)
		}
		if k.len == 0 || k.len > 1<<40 || k.start > 1<<52 {
			return refuse(stBadParam, "%#x+%#x is not modelled", k.start, k.len)
		}
		n := int((k.start&(1<<k.logPage-1) + k.len + 1<<k.logPage - 1) >> k.logPage)
		pas := in.b[min(len(in.b), 0x110):]
		if oct := in.i("translations_octword_actual_size"); oct != (n+1)/2 || len(pas) < 8*n {
			return refuse(stBadParam, "%d pages take %d octwords of translations; said %d, sent %d bytes", n, (n+1)/2, oct, len(pas))
		}
		for i := range n {
			k.mtt = append(k.mtt, be.Uint64(pas[8*i:])&^0xfff)
		}
	default:
		return refuse(stBadParam, "access_mode_1_0 is %d, the model has 0 (physical) and 1 (translated by MTTs)", mode)
	}
	if r := m.obj.mkeys.add(m, k); r != nil {
		return r
	}
	k.key = k.id<<8 | in.u32("mkey_7_0")
	m.obj.pds.m[k.pd].held++
	c.out.set("mkey_index", uint64(k.id))
	return nil
}

func (m *Model) destroyMkey(c *call) *refusal {
	k, r := m.obj.mkeys.remove(m, c.in.u32("mkey_index"))
	if r == nil {
		m.obj.pds.m[k.pd].held--
	}
	return r
}

// piece is a contiguous part of host memory.
type piece struct {
	at uint64
	n  int
}

// translate resolves an address under a key for a queue of protection domain pd.
func (m *Model) translate(key uint32, at uint64, n int, pd uint32, rlky, write bool) ([]piece, error) {
	if key == resdLkey {
		if !rlky {
			return nil, fmt.Errorf("the reserved lkey %#x, but the queue's rlky is clear", key)
		}
		return []piece{{at, n}}, nil
	}
	k, ok := m.obj.mkeys.m[key>>8]
	switch {
	case !ok:
		return nil, fmt.Errorf("lkey %#x: no such memory key", key)
	case k.key != key:
		return nil, fmt.Errorf("lkey %#x: the key is %#x", key, k.key)
	case k.pd != pd:
		return nil, fmt.Errorf("lkey %#x belongs to PD %#x, the queue to %#x", key, k.pd, pd)
	case write && !k.write, !write && !k.read:
		return nil, fmt.Errorf("lkey %#x does not allow it (lr %v, lw %v)", key, k.read, k.write)
	case k.physical:
		return []piece{{at, n}}, nil
	case at < k.start || at+uint64(n) > k.start+k.len || at+uint64(n) < at:
		return nil, fmt.Errorf("lkey %#x: %#x+%d is outside of %#x+%d", key, at, n, k.start, k.len)
	}
	var p []piece
	off := at - k.start&^(1<<k.logPage-1)
	for n > 0 {
		in := off & (1<<k.logPage - 1)
		l := min(n, int(1<<k.logPage-in))
		a := k.mtt[off>>k.logPage] + in
		if last := len(p) - 1; last >= 0 && p[last].at+uint64(p[last].n) == a {
			p[last].n += l
		} else {
			p = append(p, piece{a, l})
		}
		off, n = off+uint64(l), n-l
	}
	return p, nil
}
