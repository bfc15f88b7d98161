package efasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Access rights of a memory region.
const (
	mayLocalWrite  = 1 << 0
	mayRemoteWrite = 1 << 1
	mayRemoteRead  = 1 << 2
)

// mr is a memory region.
type mr struct {
	lkey, rkey uint32
	pd         uint16
	iova, size uint64
	shift      uint     // of a page
	pages      []uint64 // bus addresses; nil in physical mode
	physical   bool
	may        uint8
}

// Page lists, efa_admin_reg_mr_cmd and efa_admin_ctrl_buff_info: a few pages in the command, a buffer of addresses, or
// a chain of 4096-byte chunks with the addresses of the 4096-byte parts of that buffer.
const (
	inlinePages  = 4
	chunkSize    = 4096
	ptrsPerChunk = chunkSize/8 - 2 // the last 16 bytes contain a 12-byte descriptor with the address of the next chunk
	nextChunk    = ptrsPerChunk * 8
	partPages    = chunkSize / 8 // page addresses in one part
)

func (m *Model) regMR(in parts.Msg, r []byte) *refusal {
	d, no := m.domain(in)
	if no != nil {
		return no
	}
	x := &mr{pd: uint16(in.U("pd")), iova: in.U("iova"), size: in.U("mr_length"),
		shift: uint(in.U("phys_page_size_shift"))}
	x.may = uint8(le.Uint32(in.B[0x30:]) >> 8 & 7)
	switch {
	case x.size == 0 || x.iova+x.size-1 < x.iova:
		return illegal("region of %#x bytes at IOVA %#x", x.size, x.iova)
	case in.Is("mem_addr_phy_mode_en"):
		x.physical = true
	case pageSizes&(1<<x.shift) == 0:
		return illegal("phys_page_size_shift %d: page_size_cap is %#x", x.shift, uint64(pageSizes))
	default:
		size := uint64(1) << x.shift
		first, last := x.iova&^(size-1), (x.iova+x.size-1)&^(size-1)
		n := (last-first)>>x.shift + 1
		if n > maxMRPages {
			return illegal("region of %d pages, up to %d are supported", n, maxMRPages)
		}
		if say := in.U("page_num"); say != 0 && say != n {
			return illegal("page_num %d, IOVA %#x and length %#x make it %d", say, x.iova, x.size, n)
		}
		if no := m.pageList(in, x, int(n)); no != nil {
			return no
		}
	}
	if len(m.mrs) >= int(m.opt.Profile.MaxMR) {
		return full
	}
	m.addMR(d, x, r)
	return nil
}

// Keys have 24 bits. Remote keys differ from local ones.
const remoteKey = 1 << 30

// addMR assigns the keys of a region. They are never 0, and a key is reused only after all others, so that use of a
// stale key is detected.
func (m *Model) addMR(d *pd, x *mr, r []byte) {
	for again := true; again; again = x.lkey == 0 || m.mrs[x.lkey] != nil {
		m.nextKey++
		x.lkey = m.nextKey & (1<<24 - 1)
	}
	x.rkey = x.lkey | remoteKey
	m.mrs[x.lkey] = x
	d.users++
	le.PutUint32(r[0:], x.lkey)
	le.PutUint32(r[4:], x.rkey)
}

// pageList reads the addresses of n pages, in any of the forms.
func (m *Model) pageList(in parts.Msg, x *mr, n int) *refusal {
	pbl := in.Bytes("pbl")
	at, length := le.Uint64(pbl[4:]), le.Uint32(pbl[0:])
	var list []byte
	switch flags(in) & (cmdCtrlData | cmdCtrlIndir) {
	case 0:
		if n > inlinePages {
			return illegal("%d pages in the command, which has room for %d", n, inlinePages)
		}
		list = pbl[:8*n]
	case cmdCtrlData:
		if length != uint32(8*n) {
			return illegal("page list of %d bytes, %d pages need %d", length, n, 8*n)
		}
		list = make([]byte, 8*n)
		if m.Host.DMARead(at, list) != nil {
			return unreachable
		}
	case cmdCtrlData | cmdCtrlIndir:
		var no *refusal
		if list, no = m.chunks(at, length, n); no != nil {
			return no
		}
	default:
		return malformed("flags %#02x: ctrl_data_indirect without ctrl_data", flags(in))
	}
	x.pages = make([]uint64, n)
	for i := range x.pages {
		a := le.Uint64(list[8*i:])
		if a&(1<<x.shift-1) != 0 {
			return illegal("page %d at %#x is not aligned to %#x bytes", i, a, uint64(1)<<x.shift)
		}
		if err := m.CheckWidth(fmt.Sprintf("page %d", i), a); err != nil {
			return illegal("%v", err)
		}
		x.pages[i] = a
	}
	return nil
}

// chunks follows the chain. It does not trust the lengths: Linux reports 12 for a full last chunk.
func (m *Model) chunks(at uint64, length uint32, n int) ([]byte, *refusal) {
	parts := (n + partPages - 1) / partPages
	list := make([]byte, 0, 8*n)
	for left := parts; left > 0; {
		k := min(left, ptrsPerChunk)
		last := left == k
		if want := uint32(8*(k%ptrsPerChunk) + 12); last && length != want && length != uint32(8*k+12) {
			return nil, illegal("last chunk of a page list is %d bytes long, %d pointers need %d", length, k, want)
		} else if !last && length != nextChunk+12 {
			return nil, illegal("chunk of a page list is %d bytes long, with another behind it it has %d", length,
				nextChunk+12)
		}
		b := make([]byte, 8*k)
		if !last {
			b = make([]byte, length)
		}
		if at%8 != 0 || m.CheckWidth("chunk", at) != nil {
			return nil, illegal("chunk of a page list at %#x", at)
		}
		if m.Host.DMARead(at, b) != nil {
			return nil, unreachable
		}
		for i := range k {
			part := make([]byte, min(chunkSize, 8*n-len(list)))
			a := le.Uint64(b[8*i:])
			if a%chunkSize != 0 {
				return nil, illegal("part %d of a page list at %#x is not aligned to %d bytes", i, a, chunkSize)
			}
			if m.Host.DMARead(a, part) != nil {
				return nil, unreachable
			}
			list = append(list, part...)
		}
		if left -= k; left > 0 {
			length, at = le.Uint32(b[nextChunk:]), le.Uint64(b[nextChunk+4:])
		}
	}
	return list, nil
}

func (m *Model) deregMR(in parts.Msg, _ []byte) *refusal {
	x := m.region(in.U32("l_key"))
	if x == nil {
		return illegal("there is no region with l_key %#x", in.U("l_key"))
	}
	m.takeRung(x.pd)
	delete(m.mrs, x.lkey)
	m.pds[x.pd].users--
	return nil
}

// span is contiguous memory by bus address.
type span struct {
	at uint64
	n  int
}

// reach translates n bytes at addr of a region, if it grants the rights.
func (x *mr) reach(addr uint64, n int, rights uint8) ([]span, error) {
	switch {
	case x.may&rights != rights:
		return nil, fmt.Errorf("key %#x has the permissions %#x, %#x are needed", x.lkey, x.may, rights)
	case addr < x.iova || addr-x.iova > x.size || uint64(n) > x.size-(addr-x.iova):
		return nil, fmt.Errorf("%d bytes at %#x are not in the region %#x+%#x of key %#x", n, addr, x.iova, x.size,
			x.lkey)
	case x.physical:
		return []span{{addr, n}}, nil
	}
	var all []span
	size := uint64(1) << x.shift
	for at := addr - x.iova&^(size-1); n > 0; {
		off := at & (size - 1)
		k := int(min(size-off, uint64(n)))
		bus := x.pages[at>>x.shift] + off
		if last := len(all) - 1; last >= 0 && all[last].at+uint64(all[last].n) == bus {
			all[last].n += k
		} else {
			all = append(all, span{bus, k})
		}
		at, n = at+uint64(k), n-k
	}
	return all, nil
}

// region finds a region by its local key.
func (m *Model) region(key uint32) *mr {
	return m.mrs[key]
}

// local finds memory by its local key.
func (m *Model) local(domain uint16, key uint32, addr uint64, n int, rights uint8) ([]span, error) {
	x := m.region(key)
	if x == nil || x.pd != domain {
		return nil, fmt.Errorf("PD %d has no region with l_key %#x", domain, key)
	}
	return x.reach(addr, n, rights)
}

// remote finds memory by the remote key of a request.
func (m *Model) remote(domain uint16, key uint32, addr uint64, n int, rights uint8) ([]span, error) {
	x := m.region(key &^ remoteKey)
	if key&remoteKey == 0 || x == nil || x.pd != domain {
		return nil, fmt.Errorf("PD %d has no region with r_key %#x", domain, key)
	}
	return x.reach(addr, n, rights)
}

// load reads spans into p, one after the other.
func (m *Model) load(spans []span, p []byte) error {
	for _, s := range spans {
		if err := m.Host.DMARead(s.at, p[:s.n]); err != nil {
			return err
		}
		p = p[s.n:]
	}
	return nil
}

func (m *Model) store(spans []span, p []byte) error {
	for _, s := range spans {
		k := min(s.n, len(p))
		if k == 0 {
			return nil
		}
		if err := m.Host.DMAWrite(s.at, p[:k]); err != nil {
			return err
		}
		p = p[k:]
	}
	return nil
}

// ring is the memory of a queue's entries: bus addresses, or a region.
type ring struct {
	base uint64
	key  uint32
	virt bool
	pd   uint16
}

// at translates n bytes of the ring.
func (m *Model) at(r *ring, off uint64, n int, rights uint8) ([]span, error) {
	if !r.virt {
		return []span{{r.base + off, n}}, nil
	}
	x := m.region(r.key)
	if x == nil {
		return nil, fmt.Errorf("there is no region with l_key %#x", r.key)
	}
	return x.reach(r.base+off, n, rights)
}
