package mlx4sim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/rdma"
)

// reservedLKey is the key of physical memory that queues with rlky may use.
const reservedLKey = 0x100 << 8

// invalidLKey ends a receive WQE's list.
const invalidLKey = 0x100

// PRM "Memory Protection Table".
var mptLayout = lay(64, `00.31:28 status 00.19 no_snoop 00.17 mio 00.15 eb 00.14 atomic 00.13 rw 00.12 rr 00.11 lw 00.10 lr 00.9 pa 00.8 r_w
	04.31:8 qpn 04.7 bqp 08.31:0 mem_key 0c.29 w_dif 0c.28 rae 0c.27 fre 0c.26 nce 0c.25:24 en_inv 0c.23:0 pd 10*2 start_addr 18*2 len
	20.31:0 lkey 24.23:0 win_cnt 28.23 fbo_en 28.22 len64 28.21 block_mode 28.3:0 mtt_rep 2c*2 mtt_adr 34.31:0 mtt_size 38.20:0 entity_size 3c.20:0 mtt_fbo`).
	Without("eb", "rae", "fre", "nce", "w_dif", "qpn", "bqp", "win_cnt")

// mpt is a memory region.
type mpt struct {
	raw        []byte
	key        uint32
	pd         uint32
	start, len uint64
	len64      bool
	physical   bool
	access     uint32 // bits 14:10 of the flags
	mtt        uint64
	logPage    uint
	pages      map[uint64]uint64 // translations seen
}

const (
	localRead    = 1 << 10
	localWrite   = 1 << 11
	remoteRead   = 1 << 12
	remoteWrite  = 1 << 13
	remoteAtomic = 1 << 14
)

func mptCommands() map[uint16]*command {
	return map[uint16]*command{
		0x00d: {name: "SW2HW_MPT", from: stageReady, in: mptLayout, mods: 0xffffff, run: (*Model).newMPT},
		0x00f: {name: "HW2SW_MPT", from: stageReady, out: mptLayout, mods: 0xffffff, opMods: 1<<1 | quietOut, run: (*Model).dropMPT},
		0x011: {name: "WRITE_MTT", from: stageReady, in: lay(16, "00*2 mtt_base_addr"), tail: true, mods: 0x1ff, run: (*Model).writeMTT},
	}
}

func (m *Model) newMPT(c *call) *refusal {
	in := c.in
	i := c.mod
	if r := m.claim(i, m.hca.dmpt); r != nil {
		return r
	}
	if i < 1<<logReservedMPTs {
		return refuse(stBadIndex, "MPT %#x: the first %#x are the firmware's", i, 1<<logReservedMPTs)
	}
	if m.obj.mpts[i] != nil {
		return refuse(stBadResState, "MPT %#x is the device's already", i)
	}
	k := &mpt{raw: append([]byte(nil), in.B...), key: in.U32("mem_key"), pd: in.U32("pd"), start: in.U("start_addr"),
		len: in.U("len"), len64: in.Is("len64"),
		physical: in.Is("pa"), access: be.Uint32(in.B) & 0x7c00, mtt: in.U("mtt_adr"),
		logPage: uint(in.U("entity_size")), pages: map[uint64]uint64{}}
	switch {
	case k.key&(1<<m.hca.dmpt.log-1) != i:
		return refuse(stBadParam, "mem_key is %#x: its low bits are the index, %#x", k.key, i)
	case !in.Is("r_w"):
		return refuse(stBadParam, "r_w is 0: memory windows are not offered")
	case in.Is("block_mode") || in.Is("mtt_rep") || in.Is("fbo_en"):
		return refuse(stBadParam, "block_mode, mtt_rep or fbo_en: not offered")
	case in.Is("status") && in.U("status") != 0xf: // this status means that software owns it, as it does until now
		return refuse(stBadParam, "status is %xh, expected 0 or fh", in.U("status"))
	case k.access&localRead == 0:
		m.host.Warnf("SW2HW_MPT: lr is clear, expected set")
	case in.Is("lkey"):
		m.host.Warnf("SW2HW_MPT: lkey is %#x, expected 0", in.U("lkey"))
	case !k.physical && (k.logPage < 9 || k.logPage > 31 || k.len64 || k.mtt&7 != 0):
		return refuse(stBadParam, "a translated region with entity_size %d, len64 %d, mtt_adr %#x", k.logPage,
			in.U("len64"), k.mtt)
	}
	if !k.physical {
		for _, off := range []uint64{0, max(k.len, 1) - 1} { // firmware checks the list's addresses
			page := (k.start+off)>>k.logPage - k.start>>k.logPage
			if _, r := m.icm.entry(table{"mtt_base", m.hca.mtt.base, -1, 8}, uint32(k.mtt/8+page)); r != nil {
				return r
			}
		}
	}
	if r := m.store(m.hca.dmpt, i, k.raw); r != nil {
		return r
	}
	m.obj.mpts[i] = k
	return nil
}

func (m *Model) dropMPT(c *call) *refusal {
	k := m.obj.mpts[c.mod]
	if k == nil {
		return refuse(stBadIndex, "MPT %#x is not the device's", c.mod)
	}
	copy(c.out.B, k.raw) // if it is requested
	delete(m.obj.mpts, c.mod)
	return nil
}

func (m *Model) writeMTT(c *call) *refusal {
	n := int(c.mod)
	if n == 0 || n > mailboxSize/8-2 {
		return refuse(stBadParam, "%d entries, expected 1 to %d", n, mailboxSize/8-2)
	}
	first := c.in.U("mtt_base_addr")
	for i := range n {
		at, r := m.icm.entry(table{"mtt_base", m.hca.mtt.base, -1, 8}, uint32(first/8)+uint32(i))
		if r != nil {
			return r
		}
		if m.host.DMAWrite(at, c.in.B[16+8*i:][:8]) != nil {
			return refuse(stICM, "the MTT at %#x cannot be written", at)
		}
	}
	return nil
}

// translate resolves n bytes at an address of a region, by its key: index and variant rotated.
func (m *Model) translate(lkey uint32, addr uint64, n int, pd uint32, reserved bool, need uint32) ([]rdma.Piece,
	error) {
	key := lkey>>8 | lkey<<24
	if lkey == reservedLKey && reserved {
		return []rdma.Piece{{At: addr, N: n}}, nil
	}
	k := m.obj.mpts[key&(1<<max(m.hca.dmpt.log, 0)-1)]
	switch {
	case k == nil:
		return nil, fmt.Errorf("key %#x: MPT %#x is not the device's", lkey, key&(1<<m.hca.dmpt.log-1))
	case k.key != key:
		return nil, fmt.Errorf("key %#x: the MPT has %#x", lkey, k.key<<8|k.key>>24)
	case k.pd != pd:
		return nil, fmt.Errorf("key %#x: protection domain %#x, the queue has %#x", lkey, k.pd, pd)
	case k.access&need != need:
		return nil, fmt.Errorf("key %#x: access %#x is not granted", lkey, need)
	case !k.len64 && (addr < k.start || addr-k.start > k.len || k.len-(addr-k.start) < uint64(n)):
		return nil, fmt.Errorf("key %#x: %d bytes at %#x, the region is %#x bytes at %#x", lkey, n, addr, k.len,
			k.start)
	case k.physical:
		return []rdma.Piece{{At: addr, N: n}}, nil
	}
	var list []rdma.Piece
	for n > 0 {
		page := addr>>k.logPage - k.start>>k.logPage
		at, ok := k.pages[page]
		if !ok {
			v, r := m.readMTT(k.mtt+8*page, k.logPage)
			if r != nil {
				return nil, fmt.Errorf("key %#x: %w", lkey, r)
			}
			at = v
			k.pages[page] = at
		}
		in := addr & (1<<k.logPage - 1)
		part := min(n, int(1<<k.logPage-in))
		list = append(list, rdma.Piece{At: at + in, N: part})
		addr, n = addr+uint64(part), n-part
	}
	return list, nil
}
