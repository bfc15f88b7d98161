package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// place is where the measuring thread runs, and what it has to undo.
type place struct {
	core    int
	allowed unix.CPUSet
}

// choose checks core against what the process may use; -1 takes the last CPU of those.
func choose(core int) (*place, error) {
	p := &place{core: core}
	if err := unix.SchedGetaffinity(0, &p.allowed); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	if core < -1 || core >= len(p.allowed)*64 || core >= 0 && !p.allowed.IsSet(core) {
		return nil, usage("-core %d: this process may use CPU %s", core, list(&p.allowed))
	}
	for i := 0; core == -1 && i < len(p.allowed)*64; i++ {
		if p.allowed.IsSet(i) {
			p.core = i
		}
	}
	return p, nil
}

func list(s *unix.CPUSet) string {
	out := ""
	for i := range len(s) * 64 {
		if !s.IsSet(i) {
			continue
		}
		if out != "" {
			out += ","
		}
		out += strconv.Itoa(i)
	}
	return out
}

// take binds the calling thread, which is locked, to the core and moves the process's other threads off it.
func (p *place) take() error {
	var one, rest unix.CPUSet
	one.Set(p.core)
	rest = p.allowed
	rest.Clear(p.core)
	if rest.Count() > 0 {
		others(&rest)
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("bind to CPU %d: %w", p.core, err)
	}
	return nil
}

// leave undoes take.
func (p *place) leave() {
	others(&p.allowed)
	_ = unix.SchedSetaffinity(0, &p.allowed)
}

// others binds all threads of the process but the calling one. A thread that ends meanwhile is no error.
func others(s *unix.CPUSet) {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		if id, err := strconv.Atoi(t.Name()); err == nil && id != unix.Gettid() {
			_ = unix.SchedSetaffinity(id, s)
		}
	}
}

// quiet keeps the runtime from stopping the world while a thread polls: that would wait for the thread, and everything else
// with it, the progress line and the handler of Ctrl-C included. The collector is off, whatever the environment says, and
// GOMAXPROCS is fixed: the runtime else adapts it to the CPUs that place.take leaves to the other threads.
func quiet() (restore func()) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	limit := debug.SetMemoryLimit(math.MaxInt64)
	percent := debug.SetGCPercent(-1)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}
