package mlx5sim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// Access modes of memory keys, access_mode_4_2 and access_mode_1_0.
const (
	accessPA  = 0 // untranslated host memory
	accessMTT = 1 // translated by a list of pages
	accessKLM = 2 // lists of other keys: created, destroyed and counted, but not followed
	accessKSM = 3

	accessMemic = 5 // device memory: addresses in WQEs are offsets from start_addr
)

// use is a type of access through a key.
type use uint8

const (
	localRead use = iota
	localWrite
	remoteRead
	remoteWrite
)

type mkey struct {
	object
	key     uint32 // index and variant
	pd      uint32
	mode    uint32
	free    bool    // not usable before a UMR WQE enables it
	umr     bool    // UMR WQEs may change it
	allow   [4]bool // by use: lr, lw, rr, rw
	start   uint64
	len     uint64
	logPage int
	mtt     []uint64
	memic   *memic // of accessMemic
}

// Memory key context, PRM "MKey Context".
var mkeyContext = lay(64, `00.30 free 00.28:26 access_mode_4_2 00.18 relaxed_ordering_write 00.16 small_fence_on_rdma_read_response 00.15 umr_en
	00.14 a 00.13 rw 00.12 rr 00.11 lw 00.10 lr 00.9:8 access_mode_1_0 04.31:8 qpn 04.7:0 mkey_7_0 0c.31 length64 0c.24 en_rinval 0c.23:0 pd
	10*2 start_addr 18*2 len 20.31:0 bsf_octword_size 34.31:0 translations_octword_size 38.6 relaxed_ordering_read 38.5:0 log_page_size`)

// maxTranslations bounds a key's list: 2^22 pages.
const maxTranslations = 1 << 22

func (m *Model) createMkey(c *call) *refusal {
	in := c.in
	k := &mkey{pd: in.U32("pd"), mode: in.U32("access_mode_4_2")<<2 | in.U32("access_mode_1_0"), free: in.Is("free"),
		umr:   in.Is("umr_en"),
		start: in.U("start_addr"), len: in.U("len"), logPage: in.I("log_page_size"),
		allow: [4]bool{in.Is("lr"), in.Is("lw"), in.Is("rr"), in.Is("rw")}}
	octwords := in.I("translations_octword_size")
	switch {
	case k.free && !k.umr:
		return refuse(stBadParam, "free is set without umr_en: nothing could ever fill the key")
	case in.U("qpn") != 0xffffff:
		return refuse(stBadParam, "qpn is %#x, expected ffffffh: not bound to a queue pair", in.U("qpn"))
	case in.Is("bsf_octword_size"):
		return refuse(stBadParam, "bsf_octword_size is %d without capability sho", in.U("bsf_octword_size"))
	case octwords > maxTranslations/2:
		return refuse(stLimit, "translations_octword_size is %d, the model has up to %d", octwords, maxTranslations/2)
	}
	if _, r := m.obj.pds.get(k.pd); r != nil {
		return r
	}
	switch k.mode {
	case accessPA:
		if !in.Is("length64") {
			return refuse(stBadParam, "length64 is clear: a physical key of %d bytes is not modelled", k.len)
		}
	case accessMTT:
		if k.free {
			k.mtt = make([]uint64, (2*octwords+7)&^7) // multiples of 64 bytes, as UMR WQEs fill them
			break
		}
		if r := k.pages(in); r != nil {
			return r
		}
	case accessMemic: // of any length: rdma-core's tests register keys of no bytes, too
		if k.memic = m.memic.piece(k.start, k.len); k.memic == nil {
			return refuse(stBadParam, "device memory %#x+%#x is not allocated", k.start, k.len)
		}
	case accessKLM, accessKSM:
		if !k.free {
			return refuse(stBadParam, "access mode %d: the model has lists of keys as free keys only", k.mode)
		}
	default:
		return refuse(stBadParam,
			"access mode is %d, the model has 0 (physical), 1 (translated by MTTs), 2 (KLM), 3 (KSM) and 5 (device memory)",
			k.mode)
	}
	if r := m.obj.mkeys.add(m, k); r != nil {
		return r
	}
	k.key = k.id<<8 | in.U32("mkey_7_0")
	m.obj.pds.m[k.pd].held++
	if k.memic != nil {
		k.memic.held++
	}
	c.out.Set("mkey_index", uint64(k.id))
	return nil
}

// pages reads the list after a context.
func (k *mkey) pages(in msg) *refusal {
	if k.logPage < 12 || k.logPage > 31 {
		return refuse(stBadParam, "log_page_size is %d, expected 12 to 31", k.logPage)
	}
	if k.len == 0 || k.len > 1<<40 || k.start > 1<<52 {
		return refuse(stBadParam, "%#x+%#x is not modelled", k.start, k.len)
	}
	n := int((k.start&(1<<k.logPage-1) + k.len + 1<<k.logPage - 1) >> k.logPage)
	pas := in.B[min(len(in.B), 0x110):]
	if oct := in.I("translations_octword_actual_size"); oct < (n+1)/2 || len(pas) < 8*n {
		return refuse(stBadParam, "%d pages take %d octwords of translations; said %d, sent %d bytes", n, (n+1)/2, oct,
			len(pas))
	}
	for i := range n {
		k.mtt = append(k.mtt, be.Uint64(pas[8*i:])&^0xfff)
	}
	return nil
}

func (m *Model) destroyMkey(c *call) *refusal {
	k, r := m.obj.mkeys.remove(m, c.in.U32("mkey_index"))
	if r != nil {
		return r
	}
	m.obj.pds.m[k.pd].held--
	if k.memic != nil {
		k.memic.held--
	}
	return nil
}

// anyPD is the protection domain of a QP for UMR. Linux up to 5.10 has it in another one than the key of its lists.
const anyPD = ^uint32(0)

// translate resolves an address under a key for a queue of protection domain pd.
func (m *Model) translate(key uint32, at uint64, n int, pd uint32, rlky bool, u use) ([]rdma.Piece, error) {
	if key == resdLkey {
		if !rlky || u > localWrite {
			return nil, fmt.Errorf("the reserved lkey %#x, but the queue's rlky is clear, or it is not local", key)
		}
		return []rdma.Piece{{At: at, N: n}}, nil
	}
	k, ok := m.obj.mkeys.m[key>>8]
	switch {
	case !ok:
		return nil, fmt.Errorf("lkey %#x: no such memory key", key)
	case k.key != key:
		return nil, fmt.Errorf("lkey %#x: the key is %#x", key, k.key)
	case k.free:
		return nil, fmt.Errorf("lkey %#x is free", key)
	case pd != anyPD && k.pd != pd:
		return nil, fmt.Errorf("lkey %#x belongs to PD %#x, the queue to %#x", key, k.pd, pd)
	case !k.allow[u]:
		return nil, fmt.Errorf("lkey %#x does not allow it (lr, lw, rr, rw: %v)", key, k.allow)
	case k.mode == accessPA:
		return []rdma.Piece{{At: at, N: n}}, nil
	case k.mode == accessMemic && (at > k.len || uint64(n) > k.len-at):
		return nil, fmt.Errorf("lkey %#x: %#x+%d is outside of %#x bytes of device memory", key, at, n, k.len)
	case k.mode == accessMemic:
		return []rdma.Piece{{At: onCard | (k.start + at), N: n}}, nil
	case k.mode != accessMTT:
		return nil, fmt.Errorf("lkey %#x is a list of keys, which the model does not follow", key)
	case at < k.start || at+uint64(n) > k.start+k.len || at+uint64(n) < at:
		return nil, fmt.Errorf("lkey %#x: %#x+%d is outside of %#x+%d", key, at, n, k.start, k.len)
	}
	var p []rdma.Piece
	off := at - k.start&^(1<<k.logPage-1)
	for n > 0 {
		if off>>k.logPage >= uint64(len(k.mtt)) {
			return nil, fmt.Errorf("lkey %#x: %#x is beyond its %d pages", key, at, len(k.mtt))
		}
		in := off & (1<<k.logPage - 1)
		l := min(n, int(1<<k.logPage-in))
		a := k.mtt[off>>k.logPage] + in
		if last := len(p) - 1; last >= 0 && p[last].At+uint64(p[last].N) == a {
			p[last].N += l
		} else {
			p = append(p, rdma.Piece{At: a, N: l})
		}
		off, n = off+uint64(l), n-l
	}
	return p, nil
}

// Bits of mkey_mask in a UMR control segment: the fields to change.
const (
	umrLen       = 1 << 0
	umrPageSize  = 1 << 1
	umrStart     = 1 << 6
	umrPD        = 1 << 7
	umrRemoteInv = 1 << 8
	umrKey       = 1 << 13
	umrQPN       = 1 << 14
	umrLR        = 1 << 17
	umrLW        = 1 << 18
	umrRR        = 1 << 19
	umrRW        = 1 << 20
	umrAtomic    = 1 << 21
	umrFence     = 1 << 23
	umrFree      = 1 << 29
	umrAll       = umrLen | umrPageSize | umrStart | umrPD | umrRemoteInv | umrKey | umrQPN | umrLR | umrLW | umrRR |
		umrRW | umrAtomic | umrFence | umrFree

	// Flags of the segment, its first byte.
	umrOffset  = 1 << 4 // xlt_offset is valid
	umrNotFree = 1 << 5 // fail if the key is not free
	umrIsFree  = 2 << 5 // fail if the key is free
	umrInline  = 1 << 7 // the translations are in the WQE

	umrCtrlSize = 48
	umrHead     = ctrlSize + umrCtrlSize + 64
)

// umr executes a WQE that changes a memory key (UMR): control segment, UMR control segment, key context, and the
// translations or a pointer to them.
func (m *Model) umr(q *sq, w []byte) *wqeError {
	if len(w) < umrHead {
		return badWQE(syndLocalOp, "UMR: WQE of %d bytes, its segments have %d", len(w), umrHead)
	}
	key := be.Uint32(w[12:])
	flags, octwords, mask := w[16], int(be.Uint16(w[20:])), be.Uint64(w[24:])
	c := as(w[64:128], mkeyContext)
	k := m.obj.mkeys.m[key>>8]
	switch {
	case k == nil:
		return badWQE(syndBind, "UMR: memory key %#x does not exist", key)
	case !k.umr:
		return badWQE(syndBind, "UMR: memory key %#x was made without umr_en", key)
	case flags&umrNotFree != 0 && !k.free, flags&umrIsFree != 0 && k.free:
		return badWQE(syndBind, "UMR: flags %02x, but free is %v of memory key %#x", flags, k.free, key)
	case mask&^umrAll != 0:
		return badWQE(syndBind, "UMR: mkey_mask is %#x, the model changes %#x", mask, uint64(umrAll))
	}
	if octwords > 0 {
		if err := m.umrTranslations(q, k, w, flags, octwords); err != nil {
			return err
		}
	}
	if mask&umrPD != 0 {
		pd := c.U32("pd")
		if _, r := m.obj.pds.get(pd); r != nil {
			return badWQE(syndBind, "UMR: %s", r.text)
		}
		m.obj.pds.m[k.pd].held--
		m.obj.pds.m[pd].held++
		k.pd = pd
	}
	if mask&umrLen != 0 {
		k.len = c.U("len")
	}
	if mask&umrStart != 0 {
		k.start = c.U("start_addr")
	}
	if mask&umrPageSize != 0 {
		if k.logPage = c.I("log_page_size"); k.logPage < 12 || k.logPage > 31 {
			return badWQE(syndBind, "UMR: log_page_size is %d, expected 12 to 31", k.logPage)
		}
	}
	if mask&umrKey != 0 {
		k.key = k.id<<8 | c.U32("mkey_7_0")
	}
	for u, b := range [...]struct {
		mask uint64
		name string
	}{{umrLR, "lr"}, {umrLW, "lw"}, {umrRR, "rr"}, {umrRW, "rw"}} {
		if mask&b.mask != 0 {
			k.allow[u] = c.Is(b.name)
		}
	}
	if mask&umrFree != 0 {
		k.free = c.Is("free")
	}
	return nil
}

// umrTranslations reads a key's pages from the WQE, or from the memory that its data segment points to.
func (m *Model) umrTranslations(q *sq, k *mkey, w []byte, flags uint8, octwords int) *wqeError {
	list := w[umrHead:]
	if flags&umrInline == 0 {
		if len(list) < wqeSeg {
			return badWQE(syndLocalOp, "UMR: %d octwords of translations, and no data segment", octwords)
		}
		n := int(be.Uint32(list))
		if n < 16*octwords {
			return badWQE(syndLocalLength, "UMR: %d octwords of translations in %d bytes", octwords, n)
		}
		var err *wqeError
		if list, err = m.gather(q, nil, list[:wqeSeg]); err != nil {
			return err
		}
	}
	if len(list) < 16*octwords {
		return badWQE(syndLocalLength, "UMR: %d octwords of translations in %d bytes", octwords, len(list))
	}
	if k.mode != accessMTT {
		return nil
	}
	at := 0
	if flags&umrOffset != 0 {
		at = 2 * int(uint64(be.Uint32(w[32:]))<<16|uint64(be.Uint16(w[22:])))
	}
	if at < 0 || at+2*octwords > len(k.mtt) {
		return badWQE(syndBind, "UMR: translations %d to %d, memory key %#x has room for %d", at, at+2*octwords-1,
			k.key, len(k.mtt))
	}
	for i := range 2 * octwords {
		k.mtt[at+i] = be.Uint64(list[8*i:]) &^ 0xfff
	}
	return nil
}
