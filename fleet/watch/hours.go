package watch

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/report"
)

// part is one interval of a target.
type part struct {
	targets.Target
	from, to time.Time
	tally
	*latency.Histogram
}

// hours is a folder with one HdrHistogram log for each hour (UTC), for all targets: 2026-11-22T10.hlog. A target's
// intervals have its tag, and a comment before each has its counts, which other readers of such logs skip. A restarted
// program continues with the hour's file. One goroutine uses it.
type hours struct {
	path  string
	bound int64    // bytes of all files
	lock  *os.File // the folder

	open  *os.File // of the hour
	hour  time.Time
	size  int64           // of its complete lines
	named map[string]bool // the targets whose names are in the file
}

const hourFormat = "2006-01-02T15"

// openHours creates the folder, if it does not exist, locks it, and checks that it is writable.
func openHours(path string, bound int64) (*hours, error) {
	h := &hours{path: path, bound: bound}
	if err := h.claim(); err != nil {
		return nil, fmt.Errorf("keep.dir: %w", errors.Join(err, h.close()))
	}
	return h, nil
}

// claim creates and locks the folder, and removes unfinished files of a watch that was killed. It fails if another
// watch has the lock, or if no file can be created.
func (h *hours) claim() (err error) {
	if err := os.MkdirAll(h.path, 0o755); err != nil {
		return err
	}
	if h.lock, err = os.Open(h.path); err != nil {
		return err
	}
	// other errors: a file system without locks
	if unix.Flock(int(h.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) == unix.EWOULDBLOCK {
		return fmt.Errorf("another watch writes to %s: give each its own folder", h.path)
	}
	entries, err := os.ReadDir(h.path)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), atomicfile.Prefix) { // left by a watch that was killed
			err = errors.Join(err, os.Remove(filepath.Join(h.path, e.Name())))
		}
	}
	f, failed := os.CreateTemp(h.path, atomicfile.Prefix)
	if failed == nil {
		f.Close()
		failed = os.Remove(f.Name())
	}
	return errors.Join(err, failed)
}

func (h *hours) file(hour time.Time) string {
	return filepath.Join(h.path, hour.UTC().Format(hourFormat)+".hlog")
}

// begin opens the file of an hour: a new one, or an existing one from before a restart, from which a truncated line is
// removed.
func (h *hours) begin(hour time.Time) error {
	h.closeFile()
	if info, err := os.Stat(h.file(hour)); errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		if err := atomicfile.Write(h.file(hour), func(w io.Writer) error {
			return report.WriteHlogHead(w, hour)
		}); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(h.file(hour), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	size, named, err := wholeLines(f)
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	h.open, h.hour, h.size, h.named = f, hour, size, named
	return nil
}

// close releases the folder for another watch.
func (h *hours) close() error {
	err := h.closeFile()
	if h.lock != nil {
		err = errors.Join(err, h.lock.Close())
	}
	return err
}

func (h *hours) closeFile() error {
	if h.open == nil {
		return nil
	}
	err := h.open.Close()
	h.open = nil
	return err
}

// wholeLines returns how many bytes of f have complete intervals, and which tags have a name in it.
func wholeLines(f io.Reader) (size int64, named map[string]bool, err error) {
	named = map[string]bool{}
	r := bufio.NewReaderSize(f, 1<<16)
	var line []byte
	var last string
	for {
		piece, err := r.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF):
			return foreign.WholeWatch(last, size), named, nil
		case err != nil:
			return 0, nil, err
		}
		size += int64(len(line))
		if last = ""; line[0] == '#' {
			last = string(line)
		}
		if tag, ok := bytes.CutPrefix(line, []byte(targetComment)); ok {
			t, _, _ := bytes.Cut(tag, []byte(" "))
			named[string(t)] = true
		}
		line = line[:0]
	}
}

// The comments, which start with a tag.
const (
	targetComment = "#[Target: "
	countsComment = "#[Counts: "
)

// write appends the parts to the files of their hours, and keeps the folder within its bound. It returns the files that
// it removed, and the total size. On an error (a full disk) the file is unchanged.
func (h *hours) write(parts []part) (removed []string, size int64, err error) {
	for len(parts) > 0 && err == nil {
		hour := parts[0].from.UTC().Truncate(time.Hour)
		n := 1
		for n < len(parts) && parts[n].from.UTC().Truncate(time.Hour).Equal(hour) {
			n++
		}
		err = h.append(hour, parts[:n])
		parts = parts[n:]
	}
	removed, size, trimmed := h.trim()
	return removed, size, errors.Join(err, trimmed)
}

// append writes the intervals of all targets to the log of their hour, and begins a new log if the hour is another
// one. A target's name and labels precede its first interval.
func (h *hours) append(hour time.Time, parts []part) error {
	if h.open == nil || !h.hour.Equal(hour) {
		if err := h.begin(hour); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	fresh := map[string]bool{}
	for _, p := range parts {
		tag := p.Tag()
		if !h.named[tag] && !fresh[tag] {
			fresh[tag] = true
			fmt.Fprintf(&b, "%s%s is %s%s]\n", targetComment, tag, p.Name(), labelText(p.Labels))
		}
		from, to := p.from.Sub(hour), p.to.Sub(hour)
		fmt.Fprintf(&b, "%s%s from=%.3f to=%.3f sent=%d received=%d lost=%d late=%d duplicates=%d reordered=%d corrupt=%d refused=%d send_failed=%d untimed=%d lost_uncertain=%d too_late=%d dropped_here=%d refused_there=%d corrupt_only=%d]\n",
			countsComment, tag, from.Seconds(), to.Seconds(), p.Sent, p.Received, p.Lost, p.Late, p.Duplicates,
			p.Reordered, p.Corrupt, p.refused,
			p.SendFailed, p.untimed, p.LostUncertain, p.tooLate, p.DroppedHere, p.RefusedThere, p.CorruptOnly)
		if p.Count > 0 {
			if err := report.WriteHlogLine(&b, tag, latency.Interval{Start: int64(from), End: int64(to),
				Histogram: p.Histogram}); err != nil {
				return err
			}
		}
	}
	if h.size+int64(b.Len()) > h.bound {
		return fmt.Errorf("%s alone would exceed keep.bytes, %d", h.file(hour), h.bound)
	}
	n, err := h.open.WriteAt(b.Bytes(), h.size)
	if err == nil {
		err = h.open.Sync()
	}
	if err != nil {
		return errors.Join(err, h.open.Truncate(h.size))
	}
	h.size += int64(n)
	for tag := range fresh {
		h.named[tag] = true
	}
	return nil
}

func labelText(labels map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, " %s=%q", k, labels[k])
	}
	return b.String()
}

// logs returns the hours that have a file, ascending.
func (h *hours) logs() (all []time.Time, err error) {
	entries, err := os.ReadDir(h.path)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".hlog")
		if t, err := time.Parse(hourFormat, name); ok && err == nil {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all, nil
}

// trim removes the oldest files, except for the one being written, until the total is within the bound.
func (h *hours) trim() (removed []string, size int64, err error) {
	all, err := h.logs()
	if err != nil {
		return nil, 0, err
	}
	sizes := make([]int64, len(all))
	for i, t := range all {
		if info, err := os.Stat(h.file(t)); err == nil {
			sizes[i] = info.Size()
			size += sizes[i]
		}
	}
	for i, t := range all {
		if size <= h.bound || h.open != nil && t.Equal(h.hour) {
			break
		}
		if err := os.Remove(h.file(t)); err != nil {
			return removed, size, err
		}
		removed = append(removed, h.file(t))
		size -= sizes[i]
	}
	return removed, size, nil
}

// lines has the lines of each target in the log of an hour.
type lines struct {
	hour time.Time
	text map[string][]byte // by tag
}

// read loads the log of an hour, by tag; nil if there is none.
func (h *hours) read(hour time.Time) (*lines, error) {
	f, err := os.Open(h.file(hour))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	out := &lines{hour, map[string][]byte{}}
	r := bufio.NewReaderSize(f, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // a truncated line is ignored
			return out, nil
		} else if err != nil {
			return nil, err
		}
		if rest, ok := bytes.CutPrefix(line, []byte("Tag=")); ok {
			tag, _, _ := bytes.Cut(rest, []byte(","))
			out.text[string(tag)] = append(out.text[string(tag)], line...)
		}
	}
}

// series decodes a target's intervals; nil if it has none.
func (l *lines) series(tag, file string) (*latency.Series, error) {
	text := l.text[tag]
	if len(text) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	report.WriteHlogHead(&b, l.hour)
	b.Write(text)
	_, all, err := report.ReadHlog(&b, file)
	if err != nil || len(all) != 1 {
		return nil, err
	}
	return all[0], nil
}
