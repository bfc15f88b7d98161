package metrics

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// processFamilies has the metrics of this process, with client_golang's names. Those of the network are omitted,
// because they describe the host's network rather than the process.
type processFamilies struct {
	cpu, open, maxOpen, virtual, maxVirtual, resident, start *Family

	began float64 // Unix time in seconds
	text  [1024]byte
	names [4096]byte
}

func newProcess(p *Page) processFamilies {
	return processFamilies{
		cpu:        p.Counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds."),
		open:       p.gauge("process_open_fds", "Number of open file descriptors."),
		maxOpen:    p.gauge("process_max_fds", "Maximum number of open file descriptors."),
		virtual:    p.gauge("process_virtual_memory_bytes", "Virtual memory size in bytes."),
		maxVirtual: p.gauge("process_virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes."),
		resident:   p.gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
		start:      p.gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds."),
	}
}

// collect sets the metrics that can be read: without access to /proc there are fewer.
func (p *processFamilies) collect() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		p.maxOpen.Set(float64(limit.Cur))
	}
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) == nil {
		p.maxVirtual.Set(float64(limit.Cur))
	}
	if n, ok := p.descriptors(); ok {
		p.open.Set(float64(n))
	}
	stat, ok := p.read("/proc/self/stat")
	if !ok {
		return
	}
	const ticks = 100 // a second: USER_HZ, which is 100 on every architecture that Go has
	user, system, started, size, pages := statField(stat, 14), statField(stat, 15), statField(stat, 22),
		statField(stat, 23), statField(stat, 24)
	p.cpu.Set((user + system) / ticks)
	p.virtual.Set(size)
	p.resident.Set(pages * float64(os.Getpagesize()))
	if p.began == 0 {
		var up unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) == nil {
			booted := float64(time.Now().UnixNano()-up.Nano()) / 1e9
			p.began = booted + started/ticks
		}
	}
	p.start.Set(p.began)
}

// read reads a small file of /proc into a reused buffer.
func (p *processFamilies) read(path string) ([]byte, bool) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, p.text[:])
	return p.text[:max(n, 0)], err == nil
}

// descriptors counts this process's open files, except for the one that it uses to count.
func (p *processFamilies) descriptors() (n int, ok bool) {
	fd, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	for {
		got, err := unix.Getdents(fd, p.names[:])
		if err != nil {
			return 0, false
		}
		if got == 0 {
			return n - 1, true
		}
		for b := p.names[:got]; len(b) >= 20; { // linux_dirent64: inode, offset, length, type, name
			if b[19] != '.' {
				n++
			}
			length := int(b[16]) | int(b[17])<<8
			if length < 20 || length > len(b) {
				return 0, false
			}
			b = b[length:]
		}
	}
}

// statField returns field n of /proc/PID/stat, numbered as in proc(5), for n >= 3: the second may contain anything in
// its brackets.
func statField(stat []byte, n int) float64 {
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	for ; n > 2; n-- {
		rest = bytes.TrimLeft(rest, " ")
		end := bytes.IndexByte(rest, ' ')
		if end < 0 {
			end = len(rest)
		}
		if n == 3 {
			v, _ := strconv.ParseFloat(string(rest[:end]), 64)
			return v
		}
		rest = rest[end:]
	}
	return 0
}
