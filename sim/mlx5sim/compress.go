package mlx5sim

import (
	"time"
)

// A CQ with cqe_comp_en may get several receive completions as one session: a title, which is a CQE whose byte_cnt is
// their number and whose format says compressed, and in the entries behind it arrays of eight mini CQEs, the first
// one behind the title, the next ones eight entries from the title and from each other. A session takes as many
// entries as it stands for; what is between is not written. Completions that go together differ in nothing but
// length, hash, checksum and time; of the hash and the checksum a mini CQE has one, as mini_cqe_res_format says, and
// the other is the title's for all (Linux, mlx5e_decompress_cqe; DPDK, mlx5_rxtx_vec_sse.h).
//
// No session goes beyond the end of the ring: DPDK's loop of vector instructions reads on without a wrap, and runs on
// every card (rxq_cq_decompress_v); Linux's would bear it.
//
// A card compresses while its bus is busy. The model holds a completion back for compressTime, to see whether another
// one follows.
const (
	miniHash     = 0 // mini_cqe_res_format
	miniChecksum = 1

	miniSize = 8
	minis    = cqeSize / miniSize

	// What the recorded card tells as cqe_compression_max_num and cqe_compression_timeout. The unit of the time is not public:
	// the model takes it for microseconds.
	compressMost = 16
	compressTime = 8 * time.Microsecond

	formatCompressed = 3 << 2 // of the last byte
)

// session is what a CQ holds back.
type session struct {
	q     *rq
	held  [][cqeSize]byte
	since time.Duration
}

// Fields that may differ within a session.
var ownFields = [cqeSize]bool{
	0x0c: true, 0x0d: true, 0x0e: true, 0x0f: true, // rx_hash_result
	0x14: true, 0x15: true, // checksum
	0x2c: true, 0x2d: true, 0x2e: true, 0x2f: true, // byte_cnt
	0x30: true, 0x31: true, 0x32: true, 0x33: true, 0x34: true, 0x35: true, 0x36: true, 0x37: true, // timestamp
	0x3c: true, 0x3d: true, // wqe_counter, which counts on
}

func alike(a, b *[cqeSize]byte) bool {
	for i := range a {
		if !ownFields[i] && a[i] != b[i] {
			return false
		}
	}
	return true
}

// completeReceive is complete for a frame in a receive queue, which may go into a session.
func (m *Model) completeReceive(c *cq, q *rq, b *[cqeSize]byte) {
	if !c.compress {
		m.complete(c, b, false)
		return
	}
	s := &c.session
	if len(s.held) > 0 && (s.q != q || !alike(&s.held[0], b)) {
		m.flush(c)
	}
	if len(s.held) == 0 {
		s.q, s.since = q, m.host.Now()
	}
	s.held = append(s.held, *b)
	if end := c.entries() - c.pi&(c.entries()-1); uint32(len(s.held)) >= min(compressMost, end) {
		m.flush(c)
	}
}

// flush writes what the CQ holds back: the title last, since its owner bit hands all of it over.
func (m *Model) flush(c *cq) {
	held := c.session.held
	c.session.held = held[:0]
	n := uint32(len(held))
	if n == 0 || !m.room(c, n) {
		return
	}
	title := &held[0]
	if n > 1 {
		for i := uint32(0); i < n; i += minis {
			var array [cqeSize]byte
			for j := i; j < min(i+minis, n); j++ {
				mini := array[(j-i)*miniSize:]
				if c.mini == miniChecksum {
					copy(mini, held[j][0x14:0x16])
				} else {
					copy(mini, held[j][0x0c:0x10])
				}
				copy(mini[4:], held[j][0x2c:0x30])
			}
			if m.host.DMAWrite(c.at(c.pi+max(1, i)), array[:]) != nil {
				return
			}
		}
		be.PutUint32(title[0x2c:], n)
		title[63] |= formatCompressed
		m.count.sessions++
		m.count.compressed += uint64(n)
	}
	m.put(c, title, n, false)
}

// stepSessions ends those that no further completion came for.
func (m *Model) stepSessions() (busy bool) {
	now := m.host.Now()
	for _, c := range m.obj.cqs.m {
		if len(c.session.held) == 0 {
			continue
		}
		busy = true // the clock has to go on
		if now-c.session.since >= compressTime {
			m.flush(c)
		}
	}
	return busy
}
