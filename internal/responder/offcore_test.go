package responder

import (
	"fmt"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The page has each cause that the watcher of the cores counted, by name and source, with its time and number.
func TestOffcoreMetrics(t *testing.T) {
	var set unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &set))
	cpu := 0
	for !set.IsSet(cpu) {
		cpu++
	}
	w := must.Get(osnoise.Watch([]int{cpu}, osnoise.Threshold, nil))(t)
	defer w.Close()
	bound := make(chan error)
	done := make(chan struct{})
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		var one unix.CPUSet
		one.Set(cpu)
		err := unix.SchedSetaffinity(0, &one)
		if err == nil {
			err = w.Thread(cpu, unix.Gettid())
		}
		bound <- err
		for {
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	must.OK(t, <-bound)
	await.Until(t, "causes", func() bool { return len(w.Sorted()) > 0 })
	close(done)
	w.Close()

	page, shown := newPage(&pollingLoops{answering: &answering{}, engine: &engine{noise: w},
		clock: must.Get(latency.NewClock())(t)})
	r := httptest.NewRecorder()
	page.Handler(shown.causes).ServeHTTP(r, httptest.NewRequest("GET", "/metrics", nil))
	text := r.Body.String()
	totals := w.Sorted()
	for _, c := range totals {
		for metric, want := range map[string]string{"rebound_offcore_total": fmt.Sprint(float64(c.Count)),
			"rebound_offcore_seconds_total": fmt.Sprint(c.Seconds)} {
			line := fmt.Sprintf("%s{cause=%q,name=%q,source=%q} %s\n", metric, c.Cause, c.Name, c.Source(), want)
			if !strings.Contains(text, line) {
				t.Errorf("the page lacks %s", line)
			}
		}
	}
	check.Equal(t, strings.Count(text, "rebound_offcore_total{"), len(totals), "%d causes")
	check.Equal(t, strings.Contains(text, "rebound_offcore_dropped_total 0\n"), true, "dropped events: %t")
}

// The summary has the ten causes that took most, with their time if it is known.
func TestTotals(t *testing.T) {
	all := []osnoise.Total{{Cause: osnoise.Descheduled, Name: "hog\n", Seconds: 0.0015, Count: 1234},
		{Cause: osnoise.Interrupt, Name: "eth0", Seconds: 0.000002, Count: 1},
		{Cause: osnoise.Interrupt, Name: "timer", Weak: true, Count: 2}}
	for range 9 {
		all = append(all, osnoise.Total{Cause: osnoise.Interrupt, Name: "x", Weak: true, Count: 1})
	}
	var b strings.Builder
	printTotals(&b, all)
	check.Equal(t, b.String(), "  descheduled for hog\\n\t1,234 times, 1.500 ms\n  interrupt eth0\t1 time, 2.000 µs\n"+
		"  interrupt timer (by counters)\t2 times\n"+strings.Repeat("  interrupt x (by counters)\t1 time\n", 7), "%q")
}

// The sum of long values has those of at least the length, and no others.
func TestBeyond(t *testing.T) {
	var h polling.Histogram
	for range 1000 {
		h.Record(100)
	}
	h.Record(20_000)
	h.Record(40_000)
	var ts ticks
	ts.add(&h)
	seconds, n := ts.beyond(5e-6, 1e-9)
	if n != 2 || seconds < 59e-6 || seconds > 61e-6 {
		t.Errorf("%d of %v s, want 2 of 60 µs", n, seconds)
	}
}
