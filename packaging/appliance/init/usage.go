package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// uptime returns the time since the kernel started.
func uptime() time.Duration {
	b, _ := os.ReadFile("/proc/uptime")
	text, _, _ := strings.Cut(string(b), " ")
	s, _ := strconv.ParseFloat(text, 64)
	return time.Duration(s * float64(time.Second))
}

// memoryInUse returns the MB in use, without huge pages. Files are in memory here, and count.
func memoryInUse() float64 {
	b, _ := os.ReadFile("/proc/meminfo")
	values := map[string]float64{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 {
			values[f[0]], _ = strconv.ParseFloat(f[1], 64)
		}
	}
	return (values["MemTotal:"] - values["MemAvailable:"] -
		values["HugePages_Total:"]*values["Hugepagesize:"]) * 1024 / 1e6
}

// interference is what disturbed a core.
type interference struct {
	interrupts float64       // since the kernel started
	switches   float64       // times that the scheduler put a thread on the core, since the kernel started
	other      time.Duration // CPU time of threads other than the polling one, since the first call
}

// usage follows the threads of a core.
type usage struct {
	mu    sync.Mutex
	ran   map[string]time.Duration // by the thread's folder in /proc; nil before the first call
	other time.Duration
}

// on returns what disturbed a core. The thread that used it most is the polling one.
func (u *usage) on(core int) (i interference) {
	b, _ := os.ReadFile("/proc/interrupts")
	column := -1
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if column < 0 {
			column = slices.Index(f, fmt.Sprintf("CPU%d", core))
			continue
		}
		if column+1 < len(f) {
			n, _ := strconv.ParseFloat(f[column+1], 64)
			i.interrupts += n
		}
	}
	// The ninth value behind the name is the number of time slices (Linux's sched-stats.rst).
	b, _ = os.ReadFile("/proc/schedstat")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 9 && f[0] == fmt.Sprintf("cpu%d", core) {
			i.switches, _ = strconv.ParseFloat(f[9], 64)
		}
	}
	i.other = u.threads(core)
	return i
}

// threads returns the CPU time of the core's other threads. That of a thread counts while the core is the one on which
// it ran last: the kernel has no time of a thread for each CPU, and its time for each CPU excludes the thread that
// runs.
func (u *usage) threads(core int) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	ran, polling := map[string]time.Duration{}, ""
	tasks, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	var here []string
	for _, task := range tasks {
		b, _ := os.ReadFile(task + "/schedstat")
		f := strings.Fields(string(b))
		if len(f) == 0 {
			continue // it has ended
		}
		ns, _ := strconv.ParseInt(f[0], 10, 64)
		ran[task] = time.Duration(ns)
		stat, _ := os.ReadFile(task + "/stat")
		_, after, _ := strings.Cut(string(stat), ") ")
		// The 39th value of the line, the 37th behind the name, is the CPU on which the thread ran last
		// (proc_pid_stat(5)).
		if f := strings.Fields(after); len(f) > 36 && f[36] == strconv.Itoa(core) {
			here = append(here, task)
			if ran[task] > ran[polling] {
				polling = task
			}
		}
	}
	for _, task := range here {
		if task != polling && u.ran != nil {
			u.other += max(0, ran[task]-u.ran[task])
		}
	}
	u.ran = ran
	return u.other
}

// printInterference prints what disturbs a core during some seconds: `init interference CORE SECONDS`, for comparing
// with other systems.
func printInterference(args []string) int {
	core, err := strconv.Atoi(args[0])
	seconds, err2 := strconv.Atoi(args[1])
	if err := errors.Join(err, err2); err != nil {
		fmt.Fprintln(os.Stderr, "init interference:", err)
		return 2
	}
	var u usage
	a := u.on(core)
	time.Sleep(time.Duration(seconds) * time.Second)
	b := u.on(core)
	fmt.Printf("interference core=%d seconds=%d other=%v interrupts=%.0f slices=%.0f\n", core, seconds, b.other-a.other,
		b.interrupts-a.interrupts, b.switches-a.switches)
	return 0
}
