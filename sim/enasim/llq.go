package enasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
)

// LLQ entry sizes, ena_admin_llq_ring_entry_size.
const (
	llq128 = 1
	llq192 = 2
	llq256 = 4
)

// Accelerated LLQ, ena_admin_accel_mode_feat as bits.
const (
	accelNoMeta = 1 << 0
	accelBurst  = 1 << 1
)

// getLLQ returns ena_admin_feature_llq_desc.
func (m *Model) getLLQ(r []byte, version byte) {
	le.PutUint32(r[0:], uint32(m.opt.Queues))
	le.PutUint32(r[4:], llqDepth)
	// header location, sizes, descriptors before header, stride
	supported := [4]uint16{1, m.opt.LLQSizes, 1 | 2 | 4 | 8, 1 | 2}
	for i, v := range supported {
		le.PutUint16(r[8+4*i:], v)
	}
	f := &m.feat
	if f.llqSize != 0 {
		le.PutUint16(r[10:], 1)
		le.PutUint16(r[14:], map[int]uint16{128: llq128, 192: llq192, 256: llq256}[f.llqSize])
		le.PutUint16(r[18:], uint16(f.llqBefore))
		le.PutUint16(r[22:], map[bool]uint16{true: 1, false: 2}[f.llqPerEntry == 1])
	}
	if version >= 1 {
		r[24] = 1
		r[25] = llq128
		if m.opt.PreferWide {
			r[25] = llq256
		}
		le.PutUint16(r[26:], m.wideDepth())
	}
	le.PutUint16(r[28:], m.accel())
	le.PutUint16(r[30:], m.opt.Burst)
}

func (m *Model) wideDepth() uint16 {
	if m.opt.WideDepth != 0 {
		return m.opt.WideDepth
	}
	return llqDepth / 2
}

func (m *Model) accel() (flags uint16) {
	if m.opt.NoMeta {
		flags |= accelNoMeta
	}
	if m.opt.Burst > 0 {
		flags |= accelBurst
	}
	return flags
}

func (m *Model) setLLQ(c *amazon.Message, what string) (byte, error) {
	p := c[20:]
	for _, at := range []int{8, 12, 16, 20} {
		if x := le.Uint16(p[at:]); x != 0 {
			return statusMalformed, fmt.Errorf("%s: the driver sets only what it enables, but byte %d is %#x", what,
				20+at, x)
		}
	}
	loc, size, before, stride := le.Uint16(p[10:]), le.Uint16(p[14:]), le.Uint16(p[18:]), le.Uint16(p[22:])
	flags := le.Uint16(p[28:])
	bytes := map[uint16]int{llq128: 128, llq192: 192, llq256: 256}[size]
	switch {
	case loc != 1:
		return statusIllegal, fmt.Errorf("%s: header_location_ctrl %d, only 1 (inline) is supported", what, loc)
	case size&m.opt.LLQSizes == 0 || bytes == 0:
		return statusIllegal, fmt.Errorf("%s: entry_size_ctrl %d, %#x are supported", what, size, m.opt.LLQSizes)
	case before != 1 && before != 2 && before != 4 && before != 8 || 16*int(before) >= bytes:
		return statusIllegal, fmt.Errorf("%s: desc_num_before_header %d of an entry of %d bytes", what, before, bytes)
	case stride != 1 && stride != 2:
		return statusIllegal, fmt.Errorf("%s: descriptors_stride_ctrl %d", what, stride)
	case m.accel()&^flags != 0:
		return statusIllegal, fmt.Errorf("%s: accel_mode %#x, the device requires %#x", what, flags, m.accel())
	}
	// Drivers set both bits that they know, whatever the device requires.
	if other := flags &^ (accelNoMeta | accelBurst); other != 0 {
		m.Host.Warnf("%s: accel_mode %#x is accepted and has no effect in this model", what, other)
	}
	for i := range m.tx {
		if m.tx[i].live && m.tx[i].llq {
			return statusIllegal, fmt.Errorf("%s while transmit queue %d uses the last setting", what, i)
		}
	}
	m.feat.llqSize, m.feat.llqBefore, m.feat.llqPerEntry = bytes, int(before), 1
	if stride == 2 {
		m.feat.llqPerEntry = bytes / 16
	}
	return statusOK, nil
}

// checkLLQ checks CREATE_SQ with placement in device memory.
func (m *Model) checkLLQ(dir byte, depth uint16, base uint64) (byte, error) {
	const what = "CREATE_SQ in device memory"
	limit := uint16(llqDepth)
	if m.feat.llqSize > 128 {
		limit = m.wideDepth()
	}
	switch {
	case dir != dirTX:
		return statusIllegal, fmt.Errorf("%s: sq_direction %d, only transmit is supported", what, dir)
	case m.feat.llqSize == 0:
		return statusIllegal, fmt.Errorf("%s before SET_FEATURE LLQ", what)
	case m.opt.NoMemBAR:
		return statusIllegal, fmt.Errorf("%s: there is no BAR 2", what)
	case depth > limit:
		return statusIllegal, fmt.Errorf("%s: sq_depth %d, up to %d with entries of %d bytes", what, depth, limit,
			m.feat.llqSize)
	case base != 0:
		return statusIllegal, fmt.Errorf("%s: sq_ba %#x, must not be used", what, base)
	}
	return statusOK, nil
}

// llqAt returns the offset of a queue's entries in BAR 2.
func llqAt(i int) int { return i * llqStride }

// forget fills an entry with the pattern that marks bytes that were not pushed.
func (m *Model) forget(i int, q *txQueue, slot int) {
	b := m.Host.Shadow(2)[llqAt(i)+slot*q.size:][:q.size]
	for k := 0; k < len(b); k += 8 {
		le.PutUint64(b[k:], poison)
	}
}

// pushed notes a trapped store to LLQ memory.
func (m *Model) pushed(off uint64, p []byte) error {
	i := int(off / llqStride)
	if i >= len(m.tx) || !m.tx[i].live || !m.tx[i].llq {
		return fmt.Errorf("no LLQ is there")
	}
	q := &m.tx[i]
	slot := int(off%llqStride) / q.size
	if slot >= int(q.depth) {
		return fmt.Errorf("transmit queue %d has %d entries of %d bytes", i, q.depth, q.size)
	}
	q.trapped[slot] = true
	return nil
}

// entry reads the next entry of an LLQ from BAR 2.
func (m *Model) entry(i int, q *txQueue) ([]byte, error) {
	slot := int(q.head % q.depth)
	src := m.Host.Shadow(2)[llqAt(i)+slot*q.size:][:q.size]
	b := make([]byte, q.size)
	missing := 0
	for k := 0; k < len(b); k += 8 {
		v := sim.Load64(src[k:])
		if v == poison {
			missing += 8
		}
		le.PutUint64(b[k:], v)
	}
	m.forget(i, q, slot)
	if !q.trapped[slot] {
		m.Host.CountMMIOWrite(q.size / 64)
	}
	q.trapped[slot] = false
	if missing > 0 {
		return b, fmt.Errorf("LLQ entry %d: %d of its %d bytes were not pushed before the doorbell", slot, missing,
			q.size)
	}
	return b, nil
}
