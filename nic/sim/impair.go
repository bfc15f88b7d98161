package sim

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Impairment is what a bad wire does to the frames that arrive at one end. The probabilities are 0 to 1; the same seed
// does the same to the same frames.
type Impairment struct {
	Delay     time.Duration
	Loss      float64
	Duplicate float64
	Reorder   float64 // a frame is overtaken by the next one
	Seed      uint64
}

// impaired is a wire's end with impairments.
type impaired struct {
	Wire
	Impairment
	mu   sync.Mutex
	rng  *rand.Rand
	line []delayed
}

type delayed struct {
	due   time.Duration
	frame []byte
}

// Impair returns w with impairments on what it receives.
func Impair(w Wire, i Impairment) Wire {
	return &impaired{Wire: w, Impairment: i, rng: rand.New(rand.NewPCG(i.Seed, 5))}
}

func (w *impaired) Recv(now time.Duration) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := w.Wire.Recv(now); f != nil; f = w.Wire.Recv(now) {
		if w.rng.Float64() < w.Loss {
			continue
		}
		w.line = append(w.line, delayed{now + w.Delay, f})
		if w.rng.Float64() < w.Duplicate {
			w.line = append(w.line, delayed{now + w.Delay, append([]byte(nil), f...)})
		}
		if n := len(w.line); n > 1 && w.rng.Float64() < w.Reorder {
			w.line[n-1].frame, w.line[n-2].frame = w.line[n-2].frame, w.line[n-1].frame
		}
	}
	if len(w.line) == 0 || w.line[0].due > now {
		return nil
	}
	f := w.line[0].frame
	w.line = w.line[1:]
	return f
}
