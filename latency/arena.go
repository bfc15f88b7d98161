package latency

import (
	"encoding/binary"
	"math"
	"sync/atomic"
)

// arena stores finished intervals as bytes: a header and, for each non-zero counter, the distance to the previous one
// and the count, as varints. One second of a steady round trip takes about a kilobyte, so a block lasts about a quarter
// of an hour. Adding a block is the only allocation during a recording. One goroutine writes; others may read finished
// intervals through their own cursors, because finished intervals never change.
type arena struct {
	first, last *block
	taken       cursor // used by fresh
}

type block struct {
	data [chunk]byte
	used atomic.Int64 // bytes of finished intervals
	next atomic.Pointer[block]
}

const (
	chunk      = 1 << 20
	headerSize = 7 * 8
	maxEntry   = 3 + binary.MaxVarintLen64 // an index step is below 2^16
)

// grow appends a block to the list, with all of its pages touched.
func (a *arena) grow() {
	b := &block{}
	for i := 0; i < len(b.data); i += 4096 {
		b.data[i] = 1 // touch every page now, before recording
	}
	if a.last == nil {
		a.first = b
		a.taken = cursor{b, 0}
	} else {
		a.last.next.Store(b)
	}
	a.last = b
}

// put appends the non-zero counters of an interval, from and to in ns since the first run, as variable-length
// numbers. It starts a new block if the present one may have too little room.
func (a *arena) put(from, to int64, c *counters) {
	used := c.used()
	if chunk-int(a.last.used.Load()) < headerSize+used*maxEntry {
		a.grow()
	}
	head := int(a.last.used.Load())
	buf := a.last.data[:head+headerSize]
	last := 0
	c.each(func(i int, n int64) {
		buf = binary.AppendUvarint(buf, uint64(i-last))
		buf = binary.AppendUvarint(buf, uint64(n))
		last = i
	})
	h := buf[head:]
	for i, v := range [...]uint64{uint64(from), uint64(to), uint64(c.n), uint64(c.min), uint64(c.max),
		math.Float64bits(c.sum), uint64(used)} {
		binary.LittleEndian.PutUint64(h[8*i:], v)
	}
	a.last.used.Store(int64(len(buf)))
}

func (a *arena) intervals() []Interval { return (&cursor{a.first, 0}).intervals() }

// fresh returns the intervals added since the last call.
func (a *arena) fresh() []Interval { return a.taken.intervals() }

// cursor is a read position in an arena.
type cursor struct {
	in *block
	at int64
}

// next returns the data of intervals finished since the last call, without copying it. It is empty if there are none.
func (c *cursor) next() []byte {
	for {
		after := c.in.next.Load() // load next before used: once next is set, used is final
		if used := c.in.used.Load(); used > c.at {
			b := c.in.data[c.at:used]
			c.at = used
			return b
		}
		if after == nil {
			return nil
		}
		c.in, c.at = after, 0
	}
}

type head struct {
	from, to, n, min, max int64
	sum                   float64
	used                  int
}

// intervals decodes the intervals from the cursor on, as histograms.
func (c *cursor) intervals() []Interval {
	var out []Interval
	for b := c.next(); len(b) > 0; b = c.next() {
		for len(b) > 0 {
			var v head
			v, b = readHead(b)
			h := &Histogram{Count: v.n, Max: v.max, Sum: v.sum, index: make([]int32, 0, v.used),
				count: make([]int64, 0, v.used)}
			if h.Count > 0 {
				h.Min = v.min
			}
			b = v.entries(b, func(i int, n int64) { h.index, h.count = append(h.index, int32(i)), append(h.count, n) })
			out = append(out, Interval{Start: v.from, End: v.to, Histogram: h})
		}
	}
	return out
}

func readHead(b []byte) (head, []byte) {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return head{int64(word(0)), int64(word(1)), int64(word(2)), int64(word(3)), int64(word(4)),
		math.Float64frombits(word(5)), int(word(6))}, b[headerSize:]
}

// entries calls yield with each counter of the interval at the start of b, and returns the rest of b.
func (h *head) entries(b []byte, yield func(index int, n int64)) []byte {
	at := uint64(0)
	for range h.used {
		step, n := binary.Uvarint(b)
		count, m := binary.Uvarint(b[n:])
		b = b[n+m:]
		at += step
		yield(int(at), int64(count))
	}
	return b
}

// Follower reads the finished intervals of a recorder's main series while another goroutine records. It never blocks
// the recording goroutine.
type Follower struct{ cursor }

// Follow returns a Follower that starts at the beginning of the recording.
func (r *Recorder) Follow() *Follower {
	t := r.sent
	if r.intended != nil {
		t = r.intended
	}
	return &Follower{cursor{t.arena.first, 0}}
}

// AddTo adds the intervals finished since the last call to a tally, and returns their number. It allocates only what
// the tally allocates.
func (f *Follower) AddTo(t *Tally) (intervals int) {
	for b := f.next(); len(b) > 0; b = f.next() {
		for len(b) > 0 {
			var v head
			v, b = readHead(b)
			b = v.entries(b, t.add)
			intervals++
			if v.n == 0 {
				continue
			}
			if t.n == 0 || v.min < t.min {
				t.min = v.min
			}
			t.n, t.max, t.sum = t.n+v.n, max(t.max, v.max), t.sum+v.sum
		}
	}
	return intervals
}
