package latency

import (
	"encoding/binary"
	"math"
)

// arena stores finished intervals as bytes: a header and, for each non-zero counter, the distance to the previous one and the
// count, as varints. One second of a steady round trip takes about a kilobyte, so a chunk lasts about a quarter of an hour.
// Adding a chunk is the only allocation of a recording.
type arena struct {
	full [][]byte
	buf  []byte

	taken, at int // what fresh has returned: whole chunks, and bytes of the next
}

const (
	chunk      = 1 << 20
	headerSize = 7 * 8
	maxEntry   = 3 + binary.MaxVarintLen64 // an index step is below 2^16
)

func (a *arena) grow() {
	if a.buf != nil {
		a.full = append(a.full, a.buf)
	}
	a.buf = make([]byte, chunk)
	for i := 0; i < len(a.buf); i += 4096 {
		a.buf[i] = 1 // touch every page now, before recording
	}
	a.buf = a.buf[:0]
}

func (a *arena) put(from, to int64, c *counters) {
	if need := headerSize + max(c.hi-c.lo+1, 0)*maxEntry; cap(a.buf)-len(a.buf) < need {
		used := 0 // the bound is generous: compute the size before leaving the rest of the chunk unused
		if c.n > 0 {
			for _, n := range c.counts[c.lo : c.hi+1] {
				if n != 0 {
					used++
				}
			}
		}
		if cap(a.buf)-len(a.buf) < headerSize+used*maxEntry {
			a.grow()
		}
	}
	head := len(a.buf)
	a.buf = a.buf[:head+headerSize]
	used := uint64(0)
	if c.n > 0 {
		last := 0
		for i, n := range c.counts[c.lo : c.hi+1] {
			if n != 0 {
				k := c.lo + i
				a.buf = binary.AppendUvarint(a.buf, uint64(k-last))
				a.buf = binary.AppendUvarint(a.buf, uint64(n))
				last = k
				used++
			}
		}
	}
	h := a.buf[head:]
	for i, v := range [...]uint64{uint64(from), uint64(to), uint64(c.n), uint64(c.min), uint64(c.max), math.Float64bits(c.sum), used} {
		binary.LittleEndian.PutUint64(h[8*i:], v)
	}
}

func (a *arena) chunks() [][]byte { return append(a.full[:len(a.full):len(a.full)], a.buf) }

func (a *arena) intervals() []Interval { return decode(a.chunks()) }

// fresh returns the intervals put since the last call.
func (a *arena) fresh() []Interval {
	all := a.chunks()
	parts := append([][]byte(nil), all[a.taken:]...)
	parts[0] = parts[0][a.at:]
	a.taken, a.at = len(all)-1, len(a.buf)
	return decode(parts)
}

func decode(chunks [][]byte) []Interval {
	var out []Interval
	for _, b := range chunks {
		for len(b) > 0 {
			var v [7]uint64
			for i := range v {
				v[i] = binary.LittleEndian.Uint64(b[8*i:])
			}
			b = b[headerSize:]
			h := &Histogram{Count: int64(v[2]), Max: int64(v[4]), Sum: math.Float64frombits(v[5])}
			if h.Count > 0 {
				h.Min = int64(v[3])
			}
			h.index, h.count = make([]int32, v[6]), make([]int64, v[6])
			at := uint64(0)
			for i := range h.index {
				step, n := binary.Uvarint(b)
				count, m := binary.Uvarint(b[n:])
				b = b[n+m:]
				at += step
				h.index[i], h.count[i] = int32(at), int64(count)
			}
			out = append(out, Interval{Start: int64(v[0]), End: int64(v[1]), Histogram: h})
		}
	}
	return out
}
