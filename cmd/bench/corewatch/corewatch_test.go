package corewatch

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rebound/polling"
)

func TestField(t *testing.T) {
	line := []byte("         12  0\t 345   IO-APIC   4-edge      ttyS0")
	for i, want := range []uint64{12, 0, 345, 0, 0} {
		if got := field(line, i); got != want {
			t.Errorf("field %d is %d, want %d", i, got, want)
		}
	}
}

// A thread that shares its core with another one is seen to lose it and to wait; the core's timer is seen to run.
func TestWatch(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	core := 0
	for !all.IsSet(core) {
		core++
	}
	one.Set(core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	w, err := Start(core, unix.Gettid())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { // the other one
		runtime.LockOSThread()
		_ = unix.SchedSetaffinity(0, &one)
		for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); {
		}
		close(done)
	}()
	from := polling.TSC()
	for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); {
	}
	to := polling.TSC()
	<-done
	samples := w.Stop()
	d, n := Around(samples, from, to)
	if n < 1 || d.Waited < 20e6 || d.Preempted == 0 || d.Timer+d.Interrupts == 0 {
		t.Errorf("%d stretches: %+v", n, d)
	}
	b, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(unix.Gettid()) + "/schedstat")
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := strconv.ParseUint(strings.Fields(string(b))[1], 10, 64); samples[len(samples)-1].Waited > now {
		t.Errorf("waited %d ns, the kernel says %d", samples[len(samples)-1].Waited, now)
	}
}

func TestAround(t *testing.T) {
	all := []Sample{{At: 100, Softirqs: 1}, {At: 200, Softirqs: 2}, {At: 300, Softirqs: 4}, {At: 400, Softirqs: 8}}
	for _, c := range []struct {
		from, to, softirqs uint64
		n                  int
	}{{150, 160, 1, 1}, {150, 250, 3, 2}, {200, 300, 2, 1}, {100, 400, 7, 3}, {50, 150, 0, 0}, {350, 450, 0, 0}} {
		if d, n := Around(all, c.from, c.to); d.Softirqs != c.softirqs || n != c.n {
			t.Errorf("%d to %d: %d softirqs in %d stretches, want %d in %d", c.from, c.to, d.Softirqs, n, c.softirqs, c.n)
		}
	}
}
