package mlx5sim

import (
	"time"
)

// A CQ with cqe_comp_en may get several receive completions as one session: first a title, which is a CQE whose
// byte_cnt is the number of completions and whose format is compressed, followed by arrays of eight mini CQEs, the
// first array in the entry after the title, the next ones eight entries after the title and after each other. A session
// occupies as many entries as it has completions; the entries in between are not written. The completions of a session
// differ only in length, hash, checksum and time; a mini CQE has either the hash or the checksum, depending on
// mini_cqe_res_format, and the other one is the title's for all (Linux, mlx5e_decompress_cqe; DPDK,
// mlx5_rxtx_vec_sse.h).
//
// No session extends beyond the end of the ring: DPDK's vectorised loop continues reading without wrapping, and works
// on every card (rxq_cq_decompress_v); Linux's loop would tolerate a wrap.
//
// A card compresses while its bus is busy. The model holds a completion back for compressTime, in case another one
// follows.
const (
	miniHash     = 0 // mini_cqe_res_format
	miniChecksum = 1

	miniSize = 8
	minis    = cqeSize / miniSize

	// The recorded card's cqe_compression_max_num and cqe_compression_timeout. The unit of the timeout is not public:
	// the model assumes microseconds.
	compressMost = 16
	compressTime = 8 * time.Microsecond

	formatCompressed = 3 << 2 // of the last byte
)

// session has the completions that a CQ holds back.
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
	0x3c: true, 0x3d: true, // wqe_counter, which increments
}

func alike(a, b *[cqeSize]byte) bool {
	for i := range a {
		if !ownFields[i] && a[i] != b[i] {
			return false
		}
	}
	return true
}

// completeReceive is complete for a frame in a receive queue, which may become part of a session.
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

// flush writes the completions that the CQ holds back: the title last, because its owner bit hands over all of them.
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

// stepSessions ends sessions that no further completion was added to.
func (m *Model) stepSessions() (busy bool) {
	now := m.host.Now()
	for _, c := range m.obj.cqs.m {
		if len(c.session.held) == 0 {
			continue
		}
		busy = true // time has to advance
		if now-c.session.since >= compressTime {
			m.flush(c)
		}
	}
	return busy
}
