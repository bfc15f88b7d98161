package enasim

import (
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// cq is an I/O completion queue.
type cq struct {
	live   bool
	base   uint64
	depth  uint16
	size   int // bytes of an entry
	tail   uint16
	users  int // submission queues on it
	used   int // their entries
	irq    bool
	vector int
	rx     bool
}

// createCQ is ena_admin_aq_create_cq_cmd.
func (m *Model) createCQ(c *amazon.Message, in parts.Msg, r []byte) (byte, error) {
	const what = "CREATE_CQ"
	base, err := m.address(c, what, 12)
	depth, words, v := uint16(in.U("cq_depth")), in.I("cq_entry_size_words"), in.U32("msix_vector")
	irq := in.Is("interrupt_mode_enabled") && v != noVector
	switch {
	case err != nil:
		return statusIllegal, err
	case depth == 0 || depth&(depth-1) != 0 || depth > hostDepth:
		return statusIllegal, fmt.Errorf("%s: cq_depth %d: a power of two up to %d is expected", what, depth, hostDepth)
	case words != 2 && words != 4 && words != 8:
		return statusIllegal, fmt.Errorf("%s: cq_entry_size_words %d: 2 for transmit, 4 or 8 for receive", what, words)
	case !m.opt.AnyDriver && m.offered()&(1<<featHostAttr) != 0 && m.feat.driverMajor != driverMajor: // seen on c6i.large (iPXE 3b81a4e25, f88761ef4)
		return statusUnknown, fmt.Errorf("%s: the host information says driver version major %d, %d is expected", what,
			m.feat.driverMajor, driverMajor)
	case !m.opt.AnyDriver && v == 0 && !in.Is("interrupt_mode_enabled"): // iPXE 9f81e97af
		return statusUnknown, fmt.Errorf("%s: msix_vector is 0 without interrupts, %#x is expected", what,
			uint32(noVector))
	case irq && v >= uint32(len(m.vec)):
		return statusIllegal, fmt.Errorf("%s: msix_vector %d: there are %d", what, v, len(m.vec))
	case base == 0:
		return statusIllegal, fmt.Errorf("%s: cq_ba is zero", what)
	case base%64 != 0:
		m.Host.Warnf("%s: cq_ba %#x is not aligned to 64 bytes", what, base)
	}
	if m.opt.ShortCQ != 0 {
		depth = min(depth, m.opt.ShortCQ)
	}
	for i := range m.cq {
		if q := &m.cq[i]; !q.live {
			*q = cq{live: true, base: base, depth: depth, size: 4 * words, irq: irq, vector: int(v)}
			le.PutUint16(r[0:], uint16(i))
			le.PutUint16(r[2:], depth)
			if q.irq {
				le.PutUint32(r[12:], uint32(regUnmask)+4*v)
			}
			return statusOK, nil
		}
	}
	return statusNoResource, nil
}

func (m *Model) destroyCQ(in parts.Msg) (byte, error) {
	i := in.I("cq_idx")
	switch {
	case i >= len(m.cq) || !m.cq[i].live:
		return statusIllegal, fmt.Errorf("DESTROY_CQ: there is no CQ %d", i)
	case m.cq[i].users > 0:
		return statusIllegal, fmt.Errorf("DESTROY_CQ: CQ %d before its %d submission queues", i, m.cq[i].users)
	}
	m.cq[i] = cq{}
	return statusOK, nil
}

// createSQ is ena_admin_aq_create_sq_cmd.
func (m *Model) createSQ(c *amazon.Message, in parts.Msg, r []byte) (byte, error) {
	const what = "CREATE_SQ"
	dir, place, policy := byte(in.U("sq_direction")), in.U("placement_policy"), in.U("completion_policy")
	at, depth := in.I("cq_idx"), uint16(in.U("sq_depth"))
	base, err := m.address(c, what+" sq_ba", 12)
	switch {
	case err != nil:
		return statusIllegal, err
	case dir != dirTX && dir != dirRX:
		return statusIllegal, fmt.Errorf("%s: sq_direction %d", what, dir)
	case policy != 0:
		return statusIllegal, fmt.Errorf("%s: completion_policy %d: only 0, a completion for each, is supported", what,
			policy)
	case !in.Is("is_physically_contiguous"):
		return statusIllegal, fmt.Errorf("%s: is_physically_contiguous is clear, CAPS.CONTIGUOUS_QUEUE_REQUIRED is set",
			what)
	case at >= len(m.cq) || !m.cq[at].live:
		return statusIllegal, fmt.Errorf("%s: there is no CQ %d", what, at)
	case depth == 0 || depth&(depth-1) != 0 || depth > hostDepth:
		return statusIllegal, fmt.Errorf("%s: sq_depth %d: a power of two up to %d is expected", what, depth, hostDepth)
	}
	q := &m.cq[at]
	if q.users > 0 && q.rx != (dir == dirRX) {
		return statusIllegal, fmt.Errorf("%s: CQ %d serves the other direction", what, at)
	}
	if q.used+int(depth) > int(q.depth) {
		return statusIllegal, fmt.Errorf("%s: sq_depth %d on CQ %d with %d of %d entries free", what, depth, at,
			int(q.depth)-q.used, q.depth)
	}
	if want := map[bool]int{false: 8, true: 16}[dir == dirRX]; q.size != want && (q.size != 32 || dir == dirTX) {
		return statusIllegal, fmt.Errorf("%s: entries of CQ %d have %d bytes, %d are expected", what, at, q.size, want)
	}
	switch place {
	case placeHost:
		if base == 0 {
			return statusIllegal, fmt.Errorf("%s: sq_ba is zero", what)
		}
		if base%4096 != 0 { // DPDK's and iPXE's are not
			m.Host.Warnf("%s: sq_ba %#x is not page aligned", what, base)
		}
	case placeDevice:
		if status, err := m.checkLLQ(dir, depth, base); err != nil || status != statusOK {
			return status, err
		}
	default:
		return statusIllegal, fmt.Errorf("%s: placement_policy %d", what, place)
	}
	i := -1
	if dir == dirTX {
		i = m.newTX(at, depth, base, place == placeDevice, r)
	} else {
		i = m.newRX(at, depth, base, r)
	}
	if i < 0 {
		return statusNoResource, nil
	}
	le.PutUint16(r[0:], uint16(i))
	q.users++
	q.used += int(depth)
	q.rx = dir == dirRX
	return statusOK, nil
}

func (m *Model) destroySQ(in parts.Msg) (byte, error) {
	i, dir := in.I("sq_idx"), byte(in.U("sq_direction"))
	var at int
	var depth uint16
	switch {
	case dir == dirTX && i < len(m.tx) && m.tx[i].live:
		at, depth = m.tx[i].cq, m.tx[i].depth
		m.tx[i] = txQueue{}
		le.PutUint32(m.Host.Shadow(0)[regTxDB+4*amazon.Reg(i):], 0)
	case dir == dirRX && i < len(m.rx) && m.rx[i].live:
		at, depth = m.rx[i].cq, m.rx[i].depth
		m.rx[i] = rxQueue{}
		le.PutUint32(m.Host.Shadow(0)[regRxDB+4*amazon.Reg(i):], 0)
	default:
		return statusIllegal, fmt.Errorf("DESTROY_SQ: there is no SQ %d of direction %d", i, dir)
	}
	m.cq[at].users--
	m.cq[at].used -= int(depth)
	return statusOK, nil
}

// complete writes a completion. fill gets the phase bit.
func (m *Model) complete(at int, fill func(b []byte, phase byte), tamper func([]byte)) {
	q := &m.cq[at]
	var buf [32]byte
	b := buf[:q.size]
	fill(b, amazon.Phase(q.tail, q.depth))
	if tamper != nil {
		tamper(b)
	}
	iova := q.base + uint64(q.size)*uint64(q.tail%q.depth)
	if q.size == 32 {
		m.WriteEntry(iova, b)
	} else {
		m.Host.DMAWrite(iova, b)
	}
	q.tail++
	if q.irq {
		v := &m.vec[q.vector]
		if !v.pending {
			v.pending = true
			v.due = m.Host.Now() + map[bool]time.Duration{false: v.txDelay, true: v.rxDelay}[q.rx]
		}
	}
}

// vector is an MSI-X vector of I/O queues.
type vector struct {
	armed, pending   bool
	due              time.Duration
	rxDelay, txDelay time.Duration
}

// unmask is ena_eth_io_intr_reg.
func (m *Model) unmask(i int, v uint32) error {
	if i == 0 {
		return fmt.Errorf("interrupt control of vector 0 = %#x: it is the management vector", v)
	}
	if i >= len(m.vec) {
		return fmt.Errorf("interrupt control of vector %d = %#x: there are %d", i, v, len(m.vec))
	}
	x := &m.vec[i]
	if v&intrKeep == 0 {
		x.rxDelay = time.Duration(v&intrRxDelay) * delayUnit * time.Microsecond
		x.txDelay = time.Duration(v>>intrTxShift&intrRxDelay) * delayUnit * time.Microsecond
	}
	x.armed = v&intrUnmask != 0
	return nil
}

func (m *Model) stepInterrupts() {
	for i := range m.vec {
		if v := &m.vec[i]; v.armed && v.pending && m.Host.Now() >= v.due {
			v.armed, v.pending = false, false
			m.Host.Interrupt(i)
		}
	}
}
