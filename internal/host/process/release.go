package process

import (
	"bufio"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseMemory collects the garbage of the start, returns the memory to the kernel, and unmaps the pages of the
// program's file: most of them were needed at the start only. The kernel maps those that are needed again, from its
// page cache, at their next use.
func ReleaseMemory() {
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return // they stay mapped
	}
	defer f.Close()
	var m mapping
	for s := bufio.NewScanner(f); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), ":")
		switch {
		case name == "Anonymous" && strings.TrimSpace(value) == "0 kB" && m.perms[1] != 'w': // as it is in the file
			unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
		case strings.Contains(name, "-"):
			if all, err := parse(strings.NewReader(s.Text())); err == nil && len(all) == 1 {
				m = all[0]
			}
		}
	}
}
