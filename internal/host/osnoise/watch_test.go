package osnoise

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

const threshold = 5 * time.Microsecond

// loop is a polling thread on a core, under a watch.
type loop struct {
	w   *Watcher
	cpu int
	tid int

	mu     sync.Mutex
	events []Event
	gaps   [][2]uint64 // in ticks, after the loop has ended
	last   uint64      // the tick at which it ended; the thread is watched a little longer
	stop   atomic.Bool
	ended  chan struct{}
}

// lastCPU is a CPU that this process may use.
func lastCPU(t *testing.T) int {
	var set unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &set))
	for cpu := 1023; cpu >= 0; cpu-- {
		if set.IsSet(cpu) {
			return cpu
		}
	}
	t.Fatal("no CPU")
	return 0
}

// poll starts a polling thread under the watch w.
func poll(t *testing.T, watch func([]int, time.Duration, func(Event)) (*Watcher, error)) *loop {
	t.Helper()
	l := &loop{cpu: lastCPU(t), ended: make(chan struct{})}
	l.w = must.Get(watch([]int{l.cpu}, threshold, func(e Event) {
		l.mu.Lock()
		l.events = append(l.events, e)
		l.mu.Unlock()
	}))(t)
	t.Log(l.w.How())
	ready := make(chan error)
	go func() {
		defer close(l.ended)
		runtime.LockOSThread() // never unlocked
		var set unix.CPUSet
		set.Set(l.cpu)
		l.tid = unix.Gettid()
		err := unix.SchedSetaffinity(0, &set)
		last := polling.TSC()
		if err == nil {
			err = l.w.Thread(l.cpu, l.tid)
		}
		if ready <- err; err != nil {
			return
		}
		for stop := false; !stop; {
			stop = l.stop.Load()
			now := polling.TSC()
			if now-last > 5000 {
				l.gaps = append(l.gaps, [2]uint64{last, now})
			}
			last = now
		}
		l.last = last
		l.w.Thread(l.cpu, 0)
	}()
	must.OK(t, <-ready)
	t.Cleanup(func() { l.end() })
	return l
}

// end ends loop and watch.
func (l *loop) end() {
	if !l.stop.Swap(true) {
		<-l.ended
		l.w.Close()
	}
}

// await waits until an event fits, ends the watch, and returns all events that fit.
func (l *loop) await(t *testing.T, what string, fits func(Event) bool) (out []Event) {
	t.Helper()
	await.Until(t, what+" among the causes", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.ContainsFunc(l.events, fits)
	}, func() string { return fmt.Sprint(l.w.Sorted()) })
	l.end()
	for _, e := range l.events {
		if fits(e) {
			out = append(out, e)
		}
	}
	t.Logf("%s: %d events, first %v, %v; %v", what, len(out), out[0], out[0].Took, l.w.Sorted())
	return out
}

// matched checks that each event is in a gap of the loop.
func (l *loop) matched(t *testing.T, events []Event) {
	t.Helper()
	const slack = 100_000 // ticks, tens of µs, by which the conversion may be wrong
	for _, e := range events {
		if e.To <= l.last && !slices.ContainsFunc(l.gaps, func(g [2]uint64) bool {
			return e.From+slack >= g[0] &&
				e.To <= g[1]+slack
		}) {
			t.Errorf("%v from tick %d to %d is in no gap of %d", e, e.From, e.To, len(l.gaps))
		}
	}
}

// While the loop runs undisturbed there are no causes: each is in a gap of the loop that is as long, whatever else this
// machine does.
func TestNoGapNoCause(t *testing.T) {
	tracing(t)
	l := poll(t, Watch)
	const enough = 400
	lasting := func(e Event) bool { return !e.Weak && e.Took >= threshold }
	await.Until(t, "causes", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.events) > enough
	})
	l.end()
	all := slices.DeleteFunc(l.events, func(e Event) bool { return !lasting(e) || e.To > l.last })
	within := func(slack uint64) (n int) {
		for _, e := range all {
			if slices.ContainsFunc(l.gaps, func(g [2]uint64) bool {
				return e.From+slack >= g[0] && e.To <= g[1]+slack && g[1]-g[0]+slack >= e.To-e.From
			}) {
				n++
			}
		}
		return n
	}
	const exact, disturbed = 1000, 10 // ticks; one in ten may be converted while this machine does something else
	if n := within(exact); len(all) == 0 || n < len(all)-len(all)/disturbed {
		t.Errorf("%d of %d causes are in a gap of the loop to %d ticks", n, len(all), exact)
	}
}

// hog starts a shell on the CPU that never sleeps, under that name.
func hog(t *testing.T, cpu int, name string) *os.Process {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.Symlink(must.Get(exec.LookPath("sh"))(t), path))
	c := exec.Command(path, "-c", "while :; do :; done")
	must.OK(t, c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	var set unix.CPUSet
	set.Set(cpu)
	must.OK(t, unix.SchedSetaffinity(c.Process.Pid, &set))
	return c.Process
}

func tracing(t *testing.T) {
	needs.Root(t, "BPF programs")
}

func TestHog(t *testing.T) {
	tracing(t)
	for _, fifo := range []bool{false, true} {
		t.Run(fmt.Sprintf("fifo=%v", fifo), func(t *testing.T) {
			l := poll(t, Watch)
			name := "plantedhog"
			p := hog(t, l.cpu, name)
			if fifo {
				must.OK(t, unix.SchedSetAttr(p.Pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO,
					Priority: 1}, 0))
			}
			l.matched(t, l.await(t, name, func(e Event) bool {
				return e.Cause == Descheduled && e.Name == name &&
					e.PID == p.Pid
			}))
		})
	}
}

// A stopped thread is named as stopped, and not what ran meanwhile.
func TestStopped(t *testing.T) {
	tracing(t)
	if os.Getenv("OSNOISE_STOP") != "" { // the process that is stopped
		l := poll(t, Watch)
		l.matched(t, l.await(t, "stopped", func(e Event) bool { return e.Cause == Stopped }))
		return
	}
	c := exec.Command(must.Get(os.Executable())(t), "-test.run=^TestStopped$", "-test.v")
	c.Env = append(os.Environ(), "OSNOISE_STOP=1")
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	must.OK(t, c.Start())
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	await.Until(t, "end of the process", func() bool {
		c.Process.Signal(unix.SIGSTOP)
		stops := await.Holds(func() bool { return stopped(c.Process.Pid) })
		c.Process.Signal(unix.SIGCONT)
		return !stops || len(done) > 0
	})
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Log(out.String())
}

// stopped reports whether all threads of a process are stopped, or it has ended.
func stopped(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if err == nil && !bytes.Contains(b, []byte(") T ")) && !bytes.Contains(b, []byte(") Z ")) {
			return false
		}
	}
	return true
}

// A flood through a veth pair whose frames the polling core receives (RPS) is named NET_RX: as a softirq, or as
// ksoftirqd when there are too many for that.
func TestNetRX(t *testing.T) {
	tracing(t)
	v := veth.New(t)
	l := poll(t, Watch)
	var other unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &other))
	if other.Count() < 2 {
		t.Skip("needs two CPUs")
	}
	other.Clear(l.cpu)
	stop, ended := make(chan struct{}), make(chan struct{})
	sys := t.TempDir()
	var err error
	// sysfs shows the interfaces of the namespace that mounts it; the thread ends, and the mount with it
	v.Host.Do(func() {
		err = errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("sysfs", sys, "sysfs", 0, ""),
			os.WriteFile(sys+"/class/net/"+v.Host.Name+"/queues/rx-0/rps_cpus", fmt.Appendf(nil, "%x", 1<<l.cpu), 0))
	})
	must.OK(t, err)
	go v.Peer.Do(func() {
		defer close(ended)
		unix.SchedSetaffinity(0, &other)
		conn, err := net.Dial("udp", net.JoinHostPort(v.Host.IPv4.Addr().String(), "9"))
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for {
			select {
			case <-stop:
				return
			default:
				conn.Write(make([]byte, 1000))
			}
		}
	})
	defer func() { close(stop); <-ended }()
	l.matched(t, l.await(t, "NET_RX", func(e Event) bool {
		return e.Cause == Softirq && e.Name == "NET_RX" &&
			!e.Weak
	}))
}

// Without rights there are counters, whose events are weak.
func TestCounters(t *testing.T) {
	counters := func(cpus []int, threshold time.Duration, each func(Event)) (*Watcher, error) {
		return newWatcher(threshold, each).without(unix.EPERM).start(cpus)
	}
	l := poll(t, counters)
	if how := l.w.How(); how != "counters only: no CAP_BPF and CAP_PERFMON" || l.w.Traced() {
		t.Error(how)
	}
	hog(t, l.cpu, "plantedhog")
	for _, e := range l.await(t, "another thread", func(e Event) bool { return e.Cause == Descheduled }) {
		if !e.Weak || e.Count == 0 || e.Name != "" || e.To <= e.From {
			t.Errorf("%+v", e)
		}
	}
}

// A thread that lost its capabilities gets counters, not an end of the process.
func TestAttachWithoutRights(t *testing.T) {
	k, err := attach(Threshold)
	if err != nil {
		t.Skipf("the programs cannot be attached with rights either: %v", err)
	}
	k.close()
	outcome := make(chan error)
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		var none [2]unix.CapUserData
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			outcome <- err
			return
		}
		w, err := Watch([]int{0}, Threshold, nil)
		if err == nil {
			if w.Traced() {
				err = errors.New("the programs were attached")
			}
			w.Close()
		}
		outcome <- err
	}()
	if err := <-outcome; err != nil {
		t.Error(err)
	}
}
