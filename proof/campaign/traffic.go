package campaign

import (
	"fmt"
	"sync"
	"time"
)

// asker sends requests and receives replies. Only one goroutine uses it.
type asker interface {
	// ask sends a request. It reports whether it succeeded.
	ask(seq uint32) bool
	// take returns the next reply: the request it belongs to, and what is wrong with it, "" if it is correct. any is
	// false if there is none.
	take() (seq uint32, wrong string, any bool)
	// silent is called periodically while no replies arrive, because the responder's address may have changed.
	silent()
}

const (
	window   = 16                     // outstanding requests
	lostTime = 300 * time.Millisecond // after which a request counts as lost; a later reply makes it late
	silence  = 100 * time.Millisecond // between two calls of silent
)

// counts are the numbers of requests by outcome.
type counts struct {
	Sent, Answered, Lost, Late, Twice, Wrong uint64
}

func (c *counts) add(o counts) {
	c.Sent += o.Sent
	c.Answered += o.Answered
	c.Lost += o.Lost
	c.Late += o.Late
	c.Twice += o.Twice
	c.Wrong += o.Wrong
}

func (c counts) since(o counts) counts {
	// Requests that were lost before may have been answered late since: then the total of lost ones has decreased, and
	// none were lost since.
	return counts{c.Sent - o.Sent, c.Answered - o.Answered, max(c.Lost, o.Lost) - o.Lost, c.Late - o.Late,
		c.Twice - o.Twice, c.Wrong - o.Wrong}
}

// Outcome of a request.
const (
	never = iota
	open
	answered
	lost
)

// traffic sends requests continuously, keeping up to window requests outstanding.
type traffic struct {
	a asker

	mu      sync.Mutex
	counts  counts
	wrongs  map[string]int
	silence time.Duration // the longest time without a reply since this value was last read
	last    time.Time     // of the last reply
	mark    uint32        // requests from this one on are counted separately
	marked  uint64        // replies to them
	first   time.Time     // time of the first such reply
	bears   bool          // frames may be corrupted in transit: wrong replies are not the responder's fault

	stop, done chan struct{}
	next       uint32
	state      [1 << 16]uint8
	slots      [window]struct {
		seq  uint32
		used bool
		sent time.Time
	}
}

func newTraffic(a asker) *traffic {
	t := &traffic{a: a, wrongs: map[string]int{}, last: time.Now(), stop: make(chan struct{}),
		done: make(chan struct{})}
	go t.run()
	return t
}

func (t *traffic) run() {
	defer close(t.done)
	looked := time.Now()
	for idle := 0; ; {
		select {
		case <-t.stop:
			return
		default:
		}
		now := time.Now()
		busy := t.collect(now)
		if t.fill(now) {
			busy = true
		}
		if busy {
			idle = 0
			continue
		}
		if idle++; idle > 50 {
			time.Sleep(20 * time.Microsecond)
		}
		t.mu.Lock()
		quiet := now.Sub(t.last) > silence
		t.mu.Unlock()
		if quiet && now.Sub(looked) > silence {
			t.a.silent()
			looked = time.Now()
		}
	}
}

// collect processes received replies.
func (t *traffic) collect(now time.Time) (any bool) {
	for range 2 * window {
		seq, wrong, came := t.a.take()
		if !came {
			break
		}
		any = true
		t.mu.Lock()
		t.judge(seq, wrong, now)
		t.mu.Unlock()
	}
	return any
}

func (t *traffic) judge(seq uint32, wrong string, now time.Time) {
	if wrong != "" {
		if !t.bears {
			if t.counts.Wrong++; len(t.wrongs) < 5 {
				t.wrongs[wrong]++
			}
		}
		return
	}
	s := &t.state[seq%uint32(len(t.state))]
	switch {
	case *s == open:
		*s = answered
		t.counts.Answered++
		for i := range t.slots {
			if t.slots[i].used && t.slots[i].seq == seq {
				t.slots[i].used = false
			}
		}
	case *s == lost:
		*s = answered
		t.counts.Lost--
		t.counts.Late++
	default:
		t.counts.Twice++
		return
	}
	t.silence = max(t.silence, now.Sub(t.last))
	t.last = now
	if int32(seq-t.mark) >= 0 {
		if t.marked++; t.marked == 1 {
			t.first = now
		}
	}
}

// fill sends requests while the window has room, and gives up on requests that are too old.
func (t *traffic) fill(now time.Time) (any bool) {
	for i := range t.slots {
		s := &t.slots[i]
		if s.used {
			if now.Sub(s.sent) < lostTime {
				continue
			}
			t.mu.Lock()
			t.counts.Lost++
			t.state[s.seq%uint32(len(t.state))] = lost
			s.used = false
			t.mu.Unlock()
		}
		if !t.a.ask(t.next) {
			return any
		}
		t.mu.Lock()
		s.seq, s.used, s.sent = t.next, true, now
		t.state[t.next%uint32(len(t.state))] = open
		t.counts.Sent++
		t.next++
		t.mu.Unlock()
		any = true
	}
	return any
}

// tell returns the counts, and the longest silence since the last call.
func (t *traffic) tell() (counts, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := max(t.silence, time.Since(t.last))
	t.silence = 0
	return t.counts, s
}

// enough is how many replies to requests sent after a fault show that it has been overcome.
const enough = 100

// back waits until enough requests sent after this call were answered, and returns the time to the first reply. An
// error from alive ends the wait early.
func (t *traffic) back(patience time.Duration, alive func() error) (time.Duration, error) {
	t.mu.Lock()
	began := time.Now()
	t.mark, t.marked = t.next, 0
	t.mu.Unlock()
	for {
		t.mu.Lock()
		n, first, last := t.marked, t.first, t.last
		t.mu.Unlock()
		if n >= enough {
			return first.Sub(began), nil
		}
		if err := alive(); err != nil {
			return 0, err
		}
		if waited := time.Since(began); waited > patience {
			return 0, fmt.Errorf("%d answers in %v, the last one %v ago", n, waited.Round(time.Second),
				time.Since(last).Round(time.Millisecond))
		}
		time.Sleep(time.Millisecond)
	}
}

func (t *traffic) end() {
	close(t.stop)
	<-t.done
}
