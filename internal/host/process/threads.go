package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bind binds all threads of this process to CPUs. Threads that they start later inherit that.
func Bind(cpus *unix.CPUSet) error {
	return EachThread(func(tid int) error { return unix.SchedSetaffinity(tid, cpus) })
}

// EachThread calls do for each thread of this process.
func EachThread(do func(tid int) error) error {
	// A thread that starts while the list is being read appears in the next reading.
	for done := map[int]bool{}; ; {
		all, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		again := false
		for _, t := range all {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[tid] {
				continue
			}
			done[tid], again = true, true
			if err := do(tid); err != nil && !errors.Is(err, unix.ESRCH) { // it may have ended
				return fmt.Errorf("thread %d: %w", tid, err)
			}
		}
		if !again {
			return nil
		}
	}
}
