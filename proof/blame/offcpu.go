package blame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// switches records when a thread has its core, by the kernel's records of context switches (perf_event_open(2),
// PERF_RECORD_SWITCH).
type switches struct {
	fd   int
	ring []byte
}

func newSwitches(tid int) (*switches, error) {
	const pages = 8192 // two million switches of 16 bytes: a card's model causes 20,000 per second
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY,
		Size:        unix.PERF_ATTR_SIZE_VER5,
		Sample_type: unix.PERF_SAMPLE_TIME, Bits: unix.PerfBitContextSwitch | unix.PerfBitSampleIDAll |
			unix.PerfBitUseClockID, Clockid: unix.CLOCK_REALTIME}
	fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("context switches of thread %d: %w", tid, err)
	}
	w := &switches{fd: fd}
	if w.ring, err = unix.Mmap(fd, 0, (1+pages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("context switches of thread %d: %w", tid, err)
	}
	return w, nil
}

// stop ends the record, and returns when the thread did not have its core.
func (w *switches) stop() ([]pulse, error) {
	const headAt = 1024 // data_head in struct perf_event_mmap_page
	unix.IoctlSetInt(w.fd, unix.PERF_EVENT_IOC_DISABLE, 0)
	defer unix.Close(w.fd)
	defer unix.Munmap(w.ring)
	return offCore(w.ring[os.Getpagesize():], binary.NativeEndian.Uint64(w.ring[headAt:]))
}

// offCore reads the records of context switches up to head. None has been overwritten: the kernel writes no more when
// the ring is full, which is an error, because the thread would seem to have had its core.
func offCore(ring []byte, head uint64) (off []pulse, err error) {
	out := int64(0)
	if head+64 > uint64(len(ring)) {
		return nil, fmt.Errorf("context switches fill %d bytes, and later ones are missing", len(ring))
	}
	for at := uint64(0); at+8 <= head && head <= uint64(len(ring)); {
		kind, misc, size := binary.NativeEndian.Uint32(ring[at:]), binary.NativeEndian.Uint16(ring[at+4:]),
			uint64(binary.NativeEndian.Uint16(ring[at+6:]))
		if size < 8 || at+size > head {
			break
		}
		if kind == unix.PERF_RECORD_SWITCH && size >= 16 {
			now := int64(binary.NativeEndian.Uint64(ring[at+8:]))
			if misc&unix.PERF_RECORD_MISC_SWITCH_OUT != 0 {
				out = now
			} else if out != 0 {
				off, out = append(off, pulse{from: out, to: now}), 0
			}
		}
		at += size
	}
	return off, nil
}

// pinned returns the thread of a process that is bound to one core, which is its polling thread.
func pinned(s *scene, pid, core int) (int, error) {
	for {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, name := range all {
			if b, err := os.ReadFile(name); err == nil && strings.Contains(string(b),
				fmt.Sprintf("\nCpus_allowed_list:\t%d\n", core)) {
				var tid int
				_, err := fmt.Sscanf(name, fmt.Sprintf("/proc/%d/task/%%d/status", pid), &tid)
				return tid, err
			}
		}
		select {
		case <-s.end:
			return 0, errors.New("no thread was bound to its core")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// within returns the parts of all that are in a span; spans and all are disjoint and by start.
func within(all, spans []pulse) (out []pulse) {
	for _, p := range all {
		for _, s := range spans {
			if from, to := max(p.from, s.from), min(p.to, s.to); from < to {
				out = append(out, pulse{from: from, to: to})
			}
		}
	}
	return out
}

// lost runs a plant, and returns when the polling thread of a process did not have its core meanwhile.
func lost(s *scene, pid, core int, plant func(tid int) ([]pulse, error)) ([]pulse, error) {
	tid, err := pinned(s, pid, core)
	if err != nil {
		return nil, err
	}
	w, err := newSwitches(tid)
	if err != nil {
		return nil, err
	}
	spans, err := plant(tid)
	off, serr := w.stop()
	return within(off, spans), errors.Join(err, serr)
}

// unplanted records when the polling thread of a process does not have its core, whatever the cause.
func unplanted(pid, core int) action {
	return func(s *scene, _ []pulse, _ *rand.Rand) ([]pulse, error) {
		return lost(s, pid, core, func(int) ([]pulse, error) {
			<-s.end
			return []pulse{{to: math.MaxInt64}}, nil
		})
	}
}
