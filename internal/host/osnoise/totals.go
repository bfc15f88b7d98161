package osnoise

import (
	"cmp"
	"slices"
	"strings"
)

// keptTotals bounds the number of different names.
const keptTotals = 64

// Total is the sum of all events with the same cause and name. In names of threads, numbers of CPUs and workers are
// left out.
type Total struct {
	Cause   Cause
	Name    string
	Weak    bool // see Event
	Seconds float64
	Count   uint64
}

// Source is the label of metrics for where the sum comes from.
func (t Total) Source() string {
	if t.Weak {
		return "counter"
	}
	return "trace"
}

func (t Total) String() string {
	s := Event{Cause: t.Cause, Name: t.Name, Weak: t.Weak}.what()
	if t.Cause == Interrupt { // without the number, which several may have
		s = strings.TrimSpace("interrupt " + t.Name)
	}
	if t.Weak {
		s += " (by counters)"
	}
	return s
}

// Totals calls f with the sums so far.
func (w *Watcher) Totals(f func(Total)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.totals {
		f(t)
	}
}

// emit passes an event on, and adds it to the totals.
func (w *Watcher) emit(e Event) {
	e.From, e.To = w.clocks.ticks(e.Start), w.clocks.ticks(e.End)
	name := e.Name
	if e.Cause == Descheduled {
		name = kindOf(name)
	}
	same := func(t Total) bool { return t.Cause == e.Cause && t.Name == name && t.Weak == e.Weak }
	i := slices.IndexFunc(w.totals, same)
	if i < 0 && len(w.totals) >= keptTotals {
		name = "other"
		i = slices.IndexFunc(w.totals, same)
	}
	if i < 0 {
		w.totals = append(w.totals, Total{Cause: e.Cause, Name: name, Weak: e.Weak})
		i = len(w.totals) - 1
	}
	w.totals[i].Seconds += e.Took.Seconds()
	w.totals[i].Count += e.Count
	if w.each != nil {
		w.each(e)
	}
}

// kindOf removes numbers from the name of a thread: kworker/3:1H is kworker.
func kindOf(comm string) string {
	if i := strings.IndexByte(comm, '/'); i > 0 {
		return comm[:i]
	}
	if s := strings.TrimRight(comm, "0123456789"); s != "" {
		return s
	}
	return comm
}

// Sorted returns the totals, those that took most time first, then by count.
func (w *Watcher) Sorted() (all []Total) {
	w.Totals(func(t Total) { all = append(all, t) })
	slices.SortFunc(all, func(a, b Total) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds),
			cmp.Compare(b.Count, a.Count))
	})
	return all
}
