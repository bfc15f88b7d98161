package mlx5sim

// buffer is a queue's memory: pages that need not be contiguous.
type buffer struct {
	pages    []uint64
	logPage  int // page size
	offset   uint64
	logEntry int
	logSize  int   // entries
	umem     *umem // umem with the pages; nil if they came with the context
}

func (b *buffer) entries() uint32 { return 1 << b.logSize }

// at is the address of entry i modulo the size.
func (b *buffer) at(i uint32) uint64 {
	off := b.offset + uint64(i&(b.entries()-1))<<b.logEntry
	return b.pages[off>>b.logPage] + off&(1<<b.logPage-1)
}

// contiguous returns how many of n entries from i on are contiguous.
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

// newBuffer reads the page addresses after a context. log_page_size is relative to 4096 bytes.
func (m *Model) newBuffer(pas []byte, logPage, pageOffset, logEntry, logSize int) (buffer, *refusal) {
	if logSize > 22 {
		return buffer{}, refuse(stBadParam, "log size %d: too large", logSize)
	}
	b, r := m.pageList(pas, logPage, pageOffset, 1<<(logEntry+logSize))
	return b.of(logEntry, logSize), r
}

// of is the same memory with 2^logSize entries.
func (b buffer) of(logEntry, logSize int) buffer {
	b.logEntry, b.logSize = logEntry, logSize
	return b
}

// pageList reads the addresses of the pages needed for bytes. page_offset is in 64ths of a page.
func (m *Model) pageList(pas []byte, logPage, pageOffset, bytes int) (buffer, *refusal) {
	b := buffer{logPage: 12 + logPage}
	b.offset = uint64(pageOffset) << b.logPage / 64 // in parts of a page
	if b.logPage > 30 {
		return b, refuse(stBadParam, "log_page_size %d: too large", logPage)
	}
	need := int((b.offset + uint64(bytes) + 1<<b.logPage - 1) >> b.logPage)
	if len(pas) < 8*need {
		return b, refuse(stInLen, "%d bytes take %d pages of %d, the input has %d addresses",
			bytes, need, 1<<b.logPage, len(pas)/8)
	}
	for i := range need {
		at := be.Uint64(pas[8*i:])
		if need == 1 && at != 0 && at&(1<<b.logPage-1) != 0 && at%4096 == 0 {
			m.host.Warnf("log_page_size %d: the only page, %#x, is aligned to 4096 bytes and not to %d", logPage, at,
				1<<b.logPage)
		} else if at == 0 || at&(1<<b.logPage-1) != 0 {
			return b, refuse(stBadParam, "pas[%d] is %#x: pages of %d bytes are aligned to that", i, at, 1<<b.logPage)
		}
		b.pages = append(b.pages, at)
	}
	return b, nil
}
