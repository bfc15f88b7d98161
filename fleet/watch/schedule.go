package watch

import "math/rand/v2"

// schedule decides whose probe is next. The loop sends one probe per time slot, whose length is the inverse of the sum
// of all rates. Each flow's next probe has a time on a clock that advances with the slots, and the earliest is next, so
// that flows with different intervals all keep theirs, and with equal intervals each has every n-th slot.
type schedule struct {
	heap []*flow // by next time
	now  uint64  // ticks
}

// follow replaces the flows. Those that were there keep their times; new ones begin at a random moment of their
// interval.
func (s *schedule) follow(flows []*flow, random *rand.PCG) {
	s.heap = append(s.heap[:0], flows...)
	for _, f := range flows {
		if f.turn == 0 {
			f.turn = s.now + 1 + random.Uint64()%f.interval
		}
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.sink(i)
	}
}

// next returns the flow whose probe is next.
func (s *schedule) next() *flow {
	f := s.heap[0]
	s.now = f.turn
	f.turn += f.interval
	s.sink(0)
	return f
}

// sink restores the order of the heap below i.
func (s *schedule) sink(i int) {
	h := s.heap
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(h) && h[child].turn < h[least].turn {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
