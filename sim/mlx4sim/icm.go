package mlx4sim

// icm is the context memory: host memory that the driver maps at virtual addresses of its choice.
type icm struct {
	size uint64 // SET_ICM_SIZE; 0 before it
	page map[uint64]uint64
	aux  []chunk
}

func newICM() icm { return icm{page: map[uint64]uint64{}} }

// PRM "virtual_physical_mapping", with which MAP_FA, MAP_ICM_AUX and MAP_ICM provide memory. in_modifier gives their
// number.
var mapping = lay(16, "00*2 va 08*2 pa")

const mostMappings = mailboxSize / 16

// icmSlack is how far a mapping may exceed the size: Linux maps contexts for 1024 EQs into a table of 128 at the end.
const icmSlack = 64 << 10

func icmCommands() map[uint16]*command {
	return map[uint16]*command{
		0xffd: {name: "SET_ICM_SIZE", from: stageRunning, imm: true, outImm: true, run: (*Model).setICMSize},
		0xffc: {name: "MAP_ICM_AUX", from: stageRunning, in: mapping, tail: true, mods: 0x1ff, run: (*Model).mapAux},
		0xffb: {name: "UNMAP_ICM_AUX", from: stageRunning, run: (*Model).unmapAux},
		0xffa: {name: "MAP_ICM", from: stageRunning, in: mapping, tail: true, mods: 0x1ff, run: (*Model).mapICM},
		0xff9: {name: "UNMAP_ICM", from: stageRunning, imm: true, mods: 0xffffffff, run: (*Model).unmapICM},
	}
}

// chunks reads a list of mappings. Each is aligned to its own size.
func (m *Model) chunks(c *call, virtual bool) (list []chunk, r *refusal) {
	n := int(c.mod)
	if n == 0 || n > mostMappings {
		return nil, refuse(stBadParam, "in_modifier says %d mappings, expected 1 to %d", n, mostMappings)
	}
	if m.opt.NoICM {
		return nil, cannot(stICM, "no memory is taken")
	}
	for i := range n {
		b := c.in.B[16*i:]
		va, pa := be.Uint64(b), be.Uint64(b[8:])
		log := pa & 0x3f
		k := chunk{virt: va, at: pa &^ 0xfff, pages: 1 << log}
		switch {
		case pa&0xfc0 != 0 || va&0xfff != 0 && virtual:
			m.host.Warnf("%s: mapping %d: %x has reserved bits set", m.opName(c.opcode), i, b[:16])
		case log > 20:
			return nil, refuse(stBadParam, "mapping %d is of 2^%d pages", i, log)
		case k.at&(k.pages<<12-1) != 0:
			return nil, refuse(stBadParam, "mapping %d: %#x is not aligned to its %d pages", i, k.at, k.pages)
		case virtual && va&(k.pages<<12-1) != 0:
			return nil, refuse(stBadParam, "mapping %d: virtual address %#x is not aligned to its %d pages", i, va,
				k.pages)
		}
		k.virt &^= 0xfff
		list = append(list, k)
	}
	return list, nil
}

func pagesOf(list []chunk) (n uint64) {
	for _, k := range list {
		n += k.pages
	}
	return n
}

// setICMSize returns the number of pages of auxiliary memory for this size of context memory.
func (m *Model) setICMSize(c *call) *refusal {
	switch {
	case m.fw.stage == stageReady, m.icm.aux != nil:
		return refuse(stBadSysState, "memory is mapped already")
	case c.inParam == 0 || c.inParam > maxICM:
		return refuse(stLimit, "%#x bytes, max_icm_size is %#x", c.inParam, uint64(maxICM))
	}
	m.icm.size = c.inParam
	c.outParam = m.auxPages()
	return nil
}

// auxPages returns one page for each MB of context memory that is not sparse, the order of magnitude of real firmware.
func (m *Model) auxPages() uint64 { return min(max(m.icm.size>>20, 4), 256) }

func (m *Model) mapAux(c *call) *refusal {
	if m.icm.size == 0 {
		return refuse(stBadSysState, "SET_ICM_SIZE comes first")
	}
	list, r := m.chunks(c, false)
	if r != nil {
		return r
	}
	if n := pagesOf(m.icm.aux) + pagesOf(list); n > m.auxPages() {
		return refuse(stLimit, "%d pages, SET_ICM_SIZE asked for %d", n, m.auxPages())
	}
	m.icm.aux = append(m.icm.aux, list...)
	return nil
}

func (m *Model) unmapAux(*call) *refusal {
	if m.fw.stage == stageReady {
		return refuse(stBadSysState, "CLOSE_HCA comes first")
	}
	m.icm.aux = nil
	m.icm.size = 0
	return nil
}

func (m *Model) mapICM(c *call) *refusal {
	if m.icm.aux == nil || pagesOf(m.icm.aux) < m.auxPages() {
		return refuse(stBadSysState, "the auxiliary memory has %d pages of %d: MAP_ICM_AUX comes first",
			pagesOf(m.icm.aux), m.auxPages())
	}
	list, r := m.chunks(c, true)
	if r != nil {
		return r
	}
	for _, k := range list {
		if k.virt+k.pages<<12 > (m.icm.size+0xfff)&^0xfff+icmSlack {
			return refuse(stBadParam, "%#x to %#x: SET_ICM_SIZE said %#x", k.virt, k.virt+k.pages<<12, m.icm.size)
		}
		for i := range k.pages {
			if _, twice := m.icm.page[k.virt>>12+i]; twice {
				return refuse(stBadResState, "virtual address %#x is mapped already", k.virt+i<<12)
			}
		}
		for i := range k.pages {
			m.icm.page[k.virt>>12+i] = k.at + i<<12
		}
	}
	return nil
}

// unmapICM unmaps the number of pages in in_modifier. Drivers unmap more than they mapped: Linux a whole 256 KB for a
// small table, whose neighbours it no longer uses.
func (m *Model) unmapICM(c *call) *refusal {
	if c.inParam&0xfff != 0 || c.mod == 0 || uint64(c.mod) > maxICM>>12 {
		return refuse(stBadParam, "%d pages at virtual address %#x", c.mod, c.inParam)
	}
	if c.mod&(c.mod-1) != 0 { // Linux unmaps whole chunks of 64, iPXE rounds up to a power of two
		m.host.Warnf("UNMAP_ICM: %d pages, expected a power of two", c.mod)
	}
	if m.fw.stage == stageReady {
		for _, held := range m.obj.contexts(m) {
			if held.at >= c.inParam && held.at < c.inParam+uint64(c.mod)<<12 && m.icm.page[held.at>>12] != 0 {
				m.host.Warnf("UNMAP_ICM: %#x to %#x holds the context of %s", c.inParam, c.inParam+uint64(c.mod)<<12,
					held.name)
			}
		}
	}
	if uint64(c.mod) > uint64(len(m.icm.page)) {
		for p := range m.icm.page {
			if p >= c.inParam>>12 && p < c.inParam>>12+uint64(c.mod) {
				delete(m.icm.page, p)
			}
		}
		return nil
	}
	for i := range uint64(c.mod) {
		delete(m.icm.page, c.inParam>>12+i)
	}
	return nil
}

// entry returns the address of a table's entry in host memory.
func (i *icm) entry(t table, index uint32) (uint64, *refusal) {
	v := t.base + uint64(index)*t.size
	at, ok := i.page[v>>12]
	if !ok {
		return 0, refuse(stICM, "entry %#x of the table at %#x (%s): ICM is not mapped at %#x", index, t.base, t.name,
			v)
	}
	return at + v&0xfff, nil
}

// claim checks that each table has memory for the entry.
func (m *Model) claim(index uint32, tables ...table) *refusal {
	for _, t := range tables {
		if t.log >= 0 && index >= 1<<t.log {
			return refuse(stBadIndex, "index %#x, %s has 2^%d entries", index, t.name, t.log)
		}
		if _, r := m.icm.entry(t, index); r != nil {
			return r
		}
	}
	return nil
}

// store writes a context to the device's context memory. intact checks that it is unchanged, to detect writes by the
// host.
func (m *Model) store(t table, index uint32, b []byte) *refusal {
	at, r := m.icm.entry(t, index)
	if r == nil && m.host.DMAWrite(at, b[:min(len(b), int(t.size))]) != nil {
		r = refuse(stICM, "the context memory at %#x cannot be written", at)
	}
	return r
}

func (m *Model) intact(t table, index uint32, b []byte) {
	b = b[:min(len(b), int(t.size))]
	at, r := m.icm.entry(t, index)
	if r != nil {
		return
	}
	now := make([]byte, len(b))
	if m.host.DMARead(at, now) == nil && string(now) != string(b) {
		m.host.Errorf("%s: entry %#x, which is the device's, was overwritten", t.name, index)
	}
}
