package blame

import (
	"fmt"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/sys/unix"
)

// autogroupFile has the priority of this session's autogroup (sched(7)). Where there is one, a process's own nice value
// counts only among the processes of its session.
const autogroupFile = "/proc/self/autogroup"

// raise gives the autogroup in a file a nice value, and returns what it was, and what restores it. Nothing changes
// without an autogroup: the file is missing if the kernel has none, and empty in a session that began before any
// setsid(2), as one that process 1 has.
func raise(file string, nice int) (before int, restore func(), err error) {
	b, err := os.ReadFile(file)
	if err != nil || len(b) == 0 {
		return nice, func() {}, nil
	}
	_, text, _ := strings.Cut(string(b), " nice ")
	if _, err := fmt.Sscan(text, &before); err != nil {
		return 0, nil, fmt.Errorf("%s: %q: %w", file, b, err)
	}
	if before == nice {
		return before, func() {}, nil
	}
	set := func(n int) error { return os.WriteFile(file, fmt.Append(nil, n), 0) }
	if err := set(nice); err != nil {
		return before, nil, fmt.Errorf("%s: %w", file, err)
	}
	return before, func() { set(before) }, nil
}

// withPriority calls f while this session's autogroup has this process's nice value, and restores the autogroup's own,
// also when a signal ends the process.
func withPriority(f func() error) error {
	const highest = 20 // getpriority(2): the system call returns 20 - nice
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return fmt.Errorf("getpriority: %w", err)
	}
	_, restore, err := raise(autogroupFile, highest-n)
	if err != nil {
		return err
	}
	defer restore()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer close(signals)
	defer signal.Stop(signals)
	go func() {
		if s, ok := <-signals; ok {
			restore()
			signal.Reset()
			unix.Kill(unix.Getpid(), s.(unix.Signal))
		}
	}()
	return f()
}
