package sim

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Impairment describes the impairments of frames that arrive at one end of a wire. Probabilities are 0 to 1. The same
// seed has the same effect on the same frames.
type Impairment struct {
	Delay     time.Duration
	Loss      float64
	Duplicate float64
	Reorder   float64 // a frame is overtaken by the next one
	Seed      uint64
}

// WireCounts counts what an Impaired wire did to the frames that arrived at its end.
type WireCounts struct {
	Frames     uint64 `json:"frames"` // arrived, before any impairment
	Lost       uint64 `json:"lost"`
	Delayed    uint64 `json:"delayed"` // by Delay, copies included
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"` // arrived after a later one
}

// Impaired is an end of a wire with impairments.
type Impaired struct {
	Wire
	Impairment
	mu     sync.Mutex
	rng    *rand.Rand
	line   []delayed
	counts WireCounts
}

type delayed struct {
	due   time.Duration
	frame []byte
	late  bool // was overtaken
}

// Impair returns w with impairments on the frames that it receives.
func Impair(w Wire, i Impairment) *Impaired {
	return &Impaired{Wire: w, Impairment: i, rng: rand.New(rand.NewPCG(i.Seed, 5))}
}

// Counts returns the counts so far.
func (w *Impaired) Counts() WireCounts {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts
}

// OnWire reports whether the other end has frames to take. Those that it delays were taken.
func (w *Impaired) OnWire() bool {
	o, ok := w.Wire.(interface{ OnWire() bool })
	return ok && o.OnWire()
}

func (w *Impaired) Recv(now time.Duration) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := w.Wire.Recv(now); f != nil; f = w.Wire.Recv(now) {
		w.counts.Frames++
		if w.rng.Float64() < w.Loss {
			w.counts.Lost++
			continue
		}
		w.line = append(w.line, delayed{due: now + w.Delay, frame: f})
		copies := 1
		if w.rng.Float64() < w.Duplicate {
			w.line = append(w.line, delayed{due: now + w.Delay, frame: append([]byte(nil), f...)})
			w.counts.Duplicated++
			copies = 2
		}
		if w.Delay > 0 {
			w.counts.Delayed += uint64(copies)
		}
		// This frame overtakes the previous one and its copy.
		if n := len(w.line); n > copies && w.rng.Float64() < w.Reorder {
			before := w.line[n-copies-1]
			copy(w.line[n-copies-1:], w.line[n-copies:])
			for i := n - copies - 1; i < n-1; i++ {
				w.line[i].due = before.due
			}
			if w.line[n-1] = (delayed{now + w.Delay, before.frame, true}); !before.late {
				w.counts.Reordered++
			}
		}
	}
	if len(w.line) == 0 || w.line[0].due > now {
		return nil
	}
	f := w.line[0].frame
	w.line = w.line[1:]
	return f
}
