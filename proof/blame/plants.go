package blame

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/attribution"
)

// pulse is a time in which a plant was at work: ns since the start of the episode in a schedule, ns since 1970 in a
// record.
type pulse struct {
	from, to int64
	sent     int64 // if it only concerns one probe: when that was sent
	side     attribution.Side
	name     string
}

// scene is what plants act on.
type scene struct {
	start            time.Time
	length           time.Duration
	responder, bench int // processes
	bed              *bed
	collect          func() (pulse, error) // has the bench collect garbage, and returns when it did
	end              chan struct{}         // closed when the bench has ended
}

// action causes latency at the times of a schedule until the scene's end, and returns when it was really at work.
type action func(*scene, []pulse, *rand.Rand) ([]pulse, error)

// plant is a cause of latency.
type plant struct {
	name string
	side attribution.Side
	do   action
	// causes is what a report may name as the cause: its text and name. Nil: the report names none.
	causes *regexp.Regexp
	takes  takes
}

// takes is what a plant takes besides the two processes.
type takes struct {
	link   bool     // the relay
	card   bool     // a card's model on the bench's host
	set    []string // settings of the responder
	no     string   // a driver of the responder that prevents it
	unique bool     // nothing but the plant has such causes
}

var (
	hogged    = regexp.MustCompile("^polling thread descheduled .* " + hogName + "$")
	softirqed = regexp.MustCompile("^softirq NET_RX|^polling thread descheduled .* ksoftirqd")
	ticked    = regexp.MustCompile("^timer tick")
	halted    = regexp.MustCompile("^polling thread stopped")
	throttled = regexp.MustCompile("^polling thread throttled")
	faulted   = regexp.MustCompile(
		// which takes the pages
		"^polling thread waiting in the kernel|^page fault|^polling thread descheduled .* prove$")
	collected = regexp.MustCompile(
		"^pause of Go's runtime|^polling thread waiting in the kernel|^polling thread descheduled .* (exe|prove|memfd:\\S*)$")
)

var plants = []plant{
	{nothing, attribution.Unknown, func(s *scene, _ []pulse, _ *rand.Rand) ([]pulse, error) { <-s.end; return nil, nil }, nil, takes{}},
	{"responder stopped", attribution.Responder, func(s *scene, p []pulse, _ *rand.Rand) ([]pulse, error) { return stopped(s, s.responder, p) }, halted, takes{unique: true}},
	{"bench stopped", attribution.Here, func(s *scene, p []pulse, _ *rand.Rand) ([]pulse, error) { return stopped(s, s.bench, p) }, halted, takes{unique: true}},
	{"hog on the responder's core", attribution.Responder, hog(responderCore, 0), hogged, takes{unique: true}},
	{"hog on the bench's core", attribution.Here, hog(benchCore, 0), hogged, takes{unique: true}},
	{"real-time hog on the responder's core", attribution.Responder, hog(responderCore, 30), hogged, takes{unique: true}},
	{"real-time hog on the bench's core", attribution.Here, hog(benchCore, 30), hogged, takes{unique: true}},
	{"interrupts on the responder's core", attribution.Responder, interrupts(responderCore), ticked, takes{}},
	{"interrupts on the bench's core", attribution.Here, interrupts(benchCore), ticked, takes{}},
	{"softirqs on the responder's core", attribution.Responder, softirqs(responderCore), softirqed, takes{}},
	{"softirqs on the bench's core", attribution.Here, softirqs(benchCore), softirqed, takes{}},
	{"slow XDP program on the responder's core", attribution.Responder, slowXDP, softirqed, takes{no: "afxdp"}},
	{"page faults of the responder", attribution.Responder, pageOut, faulted, takes{set: []string{"cpu.lock_memory=false"}}},
	{"CPU quota of the responder", attribution.Responder, quota, throttled, takes{unique: true}},
	{"garbage collections of the bench", attribution.Here, collections, collected, takes{}},
	{"transfers of the bench's card held up", attribution.Here, holdTransfers, nil, takes{card: true}},
	{"delay on the way there", attribution.Network, slow(0, false), nil, takes{link: true}},
	{"delay on the way back", attribution.Network, slow(1, false), nil, takes{link: true}},
	{"jitter on the way there", attribution.Network, slow(0, true), nil, takes{link: true}},
	{"jitter on the way back", attribution.Network, slow(1, true), nil, takes{link: true}},
	{"reordering on the way there", attribution.Network, reorder(0), nil, takes{link: true}},
	{"reordering on the way back", attribution.Network, reorder(1), nil, takes{link: true}},
	{"loss on the way there", attribution.Network, lose(0), nil, takes{link: true}},
	{"loss on the way back", attribution.Network, lose(1), nil, takes{link: true}},
}

// nothing is the plant of episodes without one.
const nothing = "nothing"

// pulses returns a schedule: pulses of 1 to 20 ms, and pauses that are 60 ms in the mean.
func pulses(r *rand.Rand, length time.Duration) (all []pulse) {
	for at := int64(0); at < int64(length); {
		at += int64(time.Millisecond) + int64(r.ExpFloat64()*60e6)
		p := pulse{from: at, to: at + int64(1e6*math.Pow(20, r.Float64()))}
		all, at = append(all, p), p.to
	}
	return all
}

// each calls on at the beginning of each pulse, and off at its end, and returns the times between.
func each(s *scene, schedule []pulse, on func(end time.Time) error, off func() error) (out []pulse, err error) {
	runtime.LockOSThread() // never unlocked: real-time priority ends with the thread
	_ = realtime(0, 50)
	for _, p := range schedule {
		sleepUntil(s.start.Add(time.Duration(p.from)))
		select {
		case <-s.end:
			return out, nil
		default:
		}
		from := time.Now().UnixNano()
		end := s.start.Add(time.Duration(p.to))
		if err := on(end); err != nil {
			return out, ended(err)
		}
		sleepUntil(end)
		if err := off(); err != nil {
			return out, ended(err)
		}
		out = append(out, pulse{from: from, to: time.Now().UnixNano()})
	}
	return out, nil
}

// ended is err, unless the process that it is about has just ended.
func ended(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

func sleepUntil(t time.Time) {
	if d := time.Until(t); d > 0 {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil)
	}
}

func stopped(s *scene, pid int, schedule []pulse) ([]pulse, error) {
	defer unix.Kill(pid, unix.SIGCONT)
	return each(s, schedule, func(time.Time) error { return unix.Kill(pid, unix.SIGSTOP) },
		func() error { return unix.Kill(pid, unix.SIGCONT) })
}

// hogName is the name of the thread that is a hog.
const hogName = "planted-hog"

// hog runs another process that keeps a core busy in pulses.
func hog(core, priority int) action {
	return func(s *scene, schedule []pulse, _ *rand.Rand) (out []pulse, err error) {
		c := child("hog", fmt.Sprint(core), fmt.Sprint(priority), fmt.Sprint(s.start.UnixNano()))
		c.Env = append(c.Env, "GOMAXPROCS=1")
		var in, text bytes.Buffer
		writePulses(&in, schedule)
		c.Stdin, c.Stdout, c.Stderr = &in, &text, os.Stderr
		runtime.LockOSThread() // Pdeathsig is sent when this thread ends
		defer runtime.UnlockOSThread()
		if err := c.Run(); err != nil {
			return nil, fmt.Errorf("the hog on core %d: %w", core, err)
		}
		return readPulses(&text)
	}
}

// beHog keeps a core busy in the pulses that it reads, and prints when it really had the core.
func beHog(core, priority int, start int64) error {
	schedule, err := readPulses(os.Stdin)
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(core)
	name, _ := unix.BytePtrFromString(hogName)
	err = errors.Join(err, unix.SchedSetaffinity(0, &set), unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)),
		0, 0, 0))
	if priority > 0 {
		err = errors.Join(err, realtime(0, priority))
	}
	if err != nil {
		return err
	}
	var ran []pulse
	for _, p := range schedule {
		sleepUntil(time.Unix(0, start+p.from))
		had := pulse{from: time.Now().UnixNano()}
		had.to = had.from
		for had.to < start+p.to {
			now := time.Now().UnixNano()
			if now-had.to > 30_000 { // it did not have the core
				ran = append(ran, had)
				had.from = now
			}
			had.to = now
		}
		ran = append(ran, had)
	}
	w := bufio.NewWriter(os.Stdout)
	writePulses(w, ran)
	return w.Flush()
}

// realtime gives a thread a real-time priority; 0 is this thread.
func realtime(tid, priority int) error {
	return unix.SchedSetAttr(tid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO,
		Priority: uint32(priority)}, 0)
}

func writePulses(w io.Writer, all []pulse) {
	for _, p := range all {
		fmt.Fprintln(w, p.from, p.to, p.sent, p.name)
	}
}

func readPulses(r io.Reader) (all []pulse, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var p pulse
		if _, err := fmt.Sscan(lines.Text(), &p.from, &p.to, &p.sent); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, lines.Err()
}

func savePulses(name string, all []pulse) error {
	var text bytes.Buffer
	for _, p := range all {
		fmt.Fprintf(&text, "%d %d %d %s: %s\n", p.from, p.to, p.sent, p.side, p.name)
	}
	return atomicfile.WriteFile(name, text.Bytes())
}
