package watch

import (
	"bytes"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

func target(t *testing.T, text string) targets.Target {
	t.Helper()
	return must.Get(targets.Defaults{}.Parse(text))(t)
}

func open(t *testing.T, dir string, bound int64) *hours {
	t.Helper()
	h := must.Get(openHours(dir, bound))(t)
	t.Cleanup(func() { h.close() })
	return h
}

// gone is a wire whose counters never changed, and whose readings cover all times.
var gone = func() *wire {
	w := new(wire)
	w.drops.list = []sample{{}, {tick: 1}}
	return w
}()

// logged is an archive of intervals of a minute, and its log.
func logged(h *hours) (*archive, *bytes.Buffer) {
	log := new(bytes.Buffer)
	return newArchive(time.Minute, h, 0, noon, slog.New(slog.NewTextHandler(log, nil))), log
}

// feed gives a target one interval with n round trips around a level, lostOf of them without a reply.
func feed(k *archive, s *state, r *rand.Rand, n, lostOf int, level float64) {
	for i := range n {
		k.record(&event{flow: s.id, kind: sent})
		if i < lostOf {
			k.record(&event{flow: s.id, kind: missed, probe: uint64(i), wire: gone})
			continue
		}
		k.record(&event{flow: s.id, kind: answered, ns: int64(level * (1 + 0.1*r.ExpFloat64()))})
	}
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// ReadHlog can read the log of an hour, by target, and a restarted watch continues with it; a line truncated by the end
// of the previous one is removed.
func TestHourContinues(t *testing.T) {
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	a, b := target(t, "10.0.0.2"), target(t, "udp:10.0.0.3")
	now := noon.Add(7 * time.Minute)
	run := func(minutes int) {
		k := newArchive(time.Minute, open(t, dir, 1<<30), 0, now, slog.New(slog.DiscardHandler))
		sa, sb := k.target(a, now), k.target(b, now)
		for range minutes {
			feed(k, sa, r, 60, 1, 20e3)
			feed(k, sb, r, 60, 0, 50e3)
			now = now.Add(time.Minute)
			k.turn(now, false)
		}
		feed(k, sa, r, 10, 0, 20e3) // an interval cut short by the end of the program
		now = now.Add(10 * time.Second)
		k.turn(now, true)
		k.dir.close()
	}
	run(3)
	file := filepath.Join(dir, "2026-11-22T12.hlog")
	f := must.Get(os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0))(t)
	f.WriteString("Tag=icmp-10-0-0-2,3.0,60.0,HIST") // a power cut
	f.Close()
	run(2)
	text := must.Get(os.ReadFile(file))(t)
	start, series, err := report.ReadHlog(bytes.NewReader(text), file)
	if err != nil || !start.Equal(noon) || len(series) != 2 {
		t.Fatalf("%v, %d series, %v\n%s", start, len(series), err, text)
	}
	for _, s := range series {
		want, parts := int64(5*59+2*10), 7
		if s.Name == b.Tag() {
			want, parts = 5*60, 5
		}
		if s.Total.Count != want || len(s.Intervals) != parts || s.Name != a.Tag() && s.Name != b.Tag() {
			t.Errorf("%s: %d values in %d intervals, want %d in %d", s.Name, s.Total.Count, len(s.Intervals), want,
				parts)
		}
		if first := s.Intervals[0]; first.Start != int64(7*time.Minute) || first.End != int64(8*time.Minute) {
			t.Errorf("%s begins with the interval %v to %v", s.Name, time.Duration(first.Start),
				time.Duration(first.End))
		}
	}
	for _, name := range []string{a.Name(), a.Tag()} {
		for _, path := range []string{file, dir} {
			rep := must.Get(foreign.Read(path, foreign.Options{Series: name}))(t)
			c := rep.Counts
			if rep.Metric != report.RoundTrip || rep.Traffic.Target != "10.0.0.2" || rep.Traffic.Protocol != "icmp" ||
				rep.Name() != "icmp:10.0.0.2 2026-11-22T12" ||
				c.Sent != 5*60+2*10 || c.Received != 5*59+2*10 || c.Lost != 5 || rep.Main().Total.Count != c.Received ||
				path == file && len(rep.Runs) != 7 {
				t.Errorf("%s of %s: %s, %+v, %+v, %d runs", name, path, rep.Name(), rep.Traffic, c, len(rep.Runs))
			}
		}
	}
	check.Fails(t, "without a target", check.Err(foreign.Read(file, foreign.Options{})), nil,
		"set -series to one of: icmp:10.0.0.2, udp:10.0.0.3:7")
	check.Equal(t, strings.Count(string(text), "#[Counts: "+a.Tag()+" "), 7, "%d lines of counts")
	if strings.Count(string(text), "#[Target: ") != 2 || !strings.Contains(string(text),
		"sent=60 received=59 lost=1 late=0") || strings.Contains(string(text), "HIST\n#") {
		t.Errorf("%s", text)
	}
}

// A watch that is killed at any byte of its log loses the intervals from there on and no others: the rest can be read,
// a restarted watch continues with it, and the counts match the round trips.
func TestHourCutOff(t *testing.T) {
	needs.Long(t)
	r := rand.New(rand.NewPCG(1, 2))
	a, b := target(t, "10.0.0.2"), target(t, "udp:10.0.0.3")
	log := func(dir string, now time.Time, minutes int) {
		k := newArchive(time.Minute, open(t, dir, 1<<30), 0, now, slog.New(slog.DiscardHandler))
		sa, sb := k.target(a, now), k.target(b, now)
		for i := range minutes {
			feed(k, sa, r, 3, i%2, 20e3)
			feed(k, sb, r, 2, 0, 50e3)
			now = now.Add(time.Minute)
			k.turn(now, false)
		}
		k.dir.close()
	}
	const name = "2026-11-22T12.hlog"
	dir := t.TempDir()
	log(dir, noon, 3)
	text := must.Get(os.ReadFile(filepath.Join(dir, name)))(t)
	// read returns the probes of a target and the intervals with round trips, -1 if it is not in the file.
	read := func(path string, x targets.Target) (sent int64, intervals int) {
		rep, err := foreign.Read(path, foreign.Options{Series: x.Tag()})
		if err != nil && !strings.Contains(err.Error(), "no intervals") &&
			!strings.Contains(err.Error(), "no latencies") && !strings.Contains(err.Error(), "no target") &&
			!strings.Contains(err.Error(), "the file is empty") {
			t.Fatalf("%s: %v", path, err)
		} else if err != nil {
			return 0, 0
		}
		if c := rep.Counts; rep.Main().Total.Count != c.Received || c.Sent != c.Received+c.Lost {
			t.Fatalf("%s has %d round trips and %+v", path, rep.Main().Total.Count, c)
		}
		return rep.Counts.Sent, len(rep.Runs)
	}
	cut := filepath.Join(t.TempDir(), name)
	for n := strings.Index(string(text), "#[Target: "); n <= len(text); n++ { // a file starts with its complete header
		if around := string(text[n-2 : min(n+2, len(text))]); n%13 != 0 && n < len(text)-3 &&
			!strings.ContainsAny(around, "\n#,=") {
			continue // within a value each byte is like the next
		}
		whole := strings.Count(string(text[:n]), "\nTag="+a.Tag()+",")
		if last := strings.LastIndex(string(text[:n]), "\n"); whole > 0 &&
			strings.HasPrefix(string(text[last+1:n]), "Tag="+a.Tag()+",") {
			whole-- // the line is not terminated
		}
		must.OK(t, os.WriteFile(cut, text[:n], 0o644))
		if sent, runs := read(cut, a); int(sent) != 3*whole || runs != whole {
			t.Fatalf("%d bytes: %d probes in %d intervals, want %d intervals", n, sent, runs, whole)
		}
		if n%13 == 0 || n > len(text)-3 {
			log(filepath.Dir(cut), noon.Add(10*time.Minute), 1)
			if sent, runs := read(cut, a); int(sent) != 3*whole+3 || runs != whole+1 {
				t.Fatalf("%d bytes, and started again: %d probes in %d intervals, want %d", n, sent, runs, whole+1)
			}
		}
	}
	empty := filepath.Join(filepath.Dir(cut), "2026-11-22T13.hlog")
	must.OK(t, os.WriteFile(empty, nil, 0o644))
	rep, err := foreign.Read(filepath.Dir(cut), foreign.Options{Series: a.Tag()})
	if err != nil || rep.Counts.Sent != 12 || len(rep.Warnings) != 1 || !strings.Contains(rep.Warnings[0], empty) {
		t.Errorf("a folder with an empty log: %v, %+v", err, rep)
	}
}

// A second watch does not write to the logs of a running one.
func TestFolderInUse(t *testing.T) {
	dir := t.TempDir()
	h := open(t, dir, 1<<30)
	check.Fails(t, "a second watch", check.Err(openHours(dir, 1<<30)), nil, "another watch writes to "+dir)
	h.close()
	open(t, dir, 1<<30)
}

// The folder stays within its bound: the oldest files are removed, never the one being written.
func TestBound(t *testing.T) {
	dir := t.TempDir()
	const bound = 60_000
	k, log := logged(open(t, dir, bound))
	r := rand.New(rand.NewPCG(1, 2))
	s := k.target(target(t, "10.0.0.2"), noon)
	now := noon
	for range 300 {
		feed(k, s, r, 60, 0, 20e3)
		now = now.Add(time.Minute)
		k.turn(now, false)
	}
	all := must.Get(k.dir.logs())(t)
	size := int64(0)
	for _, h := range all {
		info := must.Get(os.Stat(k.dir.file(h)))(t)
		size += info.Size()
	}
	if size > bound || size != k.bytes || k.removed == 0 || len(all)+int(k.removed) != 5 ||
		!all[len(all)-1].Equal(noon.Add(4*time.Hour)) {
		t.Errorf("%d bytes, said %d, in %d files, %d removed, the last %v", size, k.bytes, len(all), k.removed, all)
	}
	if n := strings.Count(log.String(), "removed the oldest log"); n != int(k.removed) {
		t.Errorf("%d removals were logged, there were %d", n, k.removed)
	}
}

// An hour that alone would exceed the bound is not written, and the watch says so at its end. What a watch that was
// killed has left is removed.
func TestSmallBound(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, atomicfile.Prefix+"x")
	must.OK(t, os.WriteFile(left, nil, 0o644))
	k, log := logged(open(t, dir, 400))
	check.Fails(t, "the file that was left", check.Err(os.Stat(left)), os.ErrNotExist)
	x := target(t, "10.0.0.2")
	x.Labels = map[string]string{"site": "ams", "a": `"`}
	s := k.target(x, noon)
	minute := func(n int) {
		feed(k, s, rand.New(rand.NewPCG(1, 2)), 5, 0, 20e3)
		k.turn(noon.Add(time.Duration(n)*time.Minute), false)
	}
	minute(1)
	check.Contains(t, log.String(), "alone would exceed keep.bytes, 400")
	check.Fails(t, "the end", k.unsaved(), nil, "1 interval could not be written to the logs; the last error: ", dir)
	k.dir.bound = 1 << 20
	minute(2)
	check.OK(t, k.unsaved())
	text := string(must.Get(os.ReadFile(k.dir.file(noon)))(t))
	check.Contains(t, text, ` is icmp:10.0.0.2 a="\"" site="ams"]`)
	check.Equal(t, strings.Count(text, "\nTag="), 1, "%d intervals")
}

// On a full disk measuring continues; the error is reported once and counted, and the earlier content of the file
// remains intact.
func TestFullDisk(t *testing.T) {
	needs.Root(t, "mounting a file system")
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("no tmpfs here: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	k, log := logged(open(t, dir, 1<<30))
	defer k.dir.close()
	r := rand.New(rand.NewPCG(1, 2))
	s := k.target(target(t, "10.0.0.2"), noon)
	now := noon
	minute := func() {
		feed(k, s, r, 600, 0, 20e3)
		now = now.Add(time.Minute)
		k.turn(now, false)
	}
	minute()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o644); err == nil {
		t.Fatal("the disk is not full")
	}
	for range 20 {
		minute()
	}
	if k.failures == 0 || k.unwritten != k.failures || strings.Count(log.String(), "cannot be written") != 1 {
		t.Errorf("%d failures, %d unwritten\n%s", k.failures, k.unwritten, log.String())
	}
	failures := k.failures
	must.OK(t, os.Remove(ballast))
	minute()
	if k.failures != failures || !strings.Contains(log.String(), "written again") {
		t.Errorf("%d failures, then %d\n%s", failures, k.failures, log.String())
	}
	text := must.Get(os.ReadFile(k.dir.file(noon)))(t)
	_, series, err := report.ReadHlog(bytes.NewReader(text), "x")
	if err != nil || len(series) != 1 || int64(len(series[0].Intervals)) != 22-failures {
		t.Errorf("%v, %d series, want %d intervals", err, len(series), 22-failures)
	}
	if s.all.Sent != 22*600 || s.rtt.Count() != 22*600 {
		t.Errorf("counted %d and %d", s.all.Sent, s.rtt.Count())
	}
}

// days writes the same hour of several days, each with its level, and returns the keeper's state for the last one.
func days(t *testing.T, levels []float64) (*state, string) {
	t.Helper()
	dir := t.TempDir()
	var log bytes.Buffer
	x := target(t, "10.0.0.2")
	r := rand.New(rand.NewPCG(3, 4))
	var s *state
	for i, level := range levels {
		now := noon.AddDate(0, 0, i)
		k := newArchive(5*time.Minute, open(t, dir, 1<<30), 7, now, slog.New(slog.NewTextHandler(&log, nil)))
		s = k.target(x, now)
		for range 12 {
			feed(k, s, r, 300, 0, level*(1+0.01*r.NormFloat64()))
			now = now.Add(5 * time.Minute)
			k.turn(now, false)
		}
		k.dir.close()
	}
	return s, log.String()
}

// An hour that is slower than the same hour of three earlier days is reported, one like them is not, and with fewer
// earlier days there is no verdict.
func TestChange(t *testing.T) {
	const base = 50e3
	for _, c := range []struct {
		name   string
		levels []float64
		want   compare.Verdict
		told   bool
	}{
		{"the same", []float64{base, base, base, base}, compare.Noise, true},
		{"half slower", []float64{base, base * 1.01, base * 0.99, base * 1.5}, compare.Slower, true},
		{"quicker", []float64{base, base * 1.01, base * 0.99, base * 0.5}, compare.Faster, true},
		{"two days before", []float64{base, base, base * 1.6}, compare.Unknown, false},
		{"no day before", []float64{base}, compare.Unknown, false},
	} {
		s, log := days(t, c.levels)
		j, told := s.verdicts["p50"]
		if told != c.told || j.verdict != c.want {
			t.Errorf("%s: %+v, told %t\n%s", c.name, j, told, log)
		}
		if want := base * (c.levels[len(c.levels)-1]/base - 1) * 1.07; told && c.want != compare.Noise &&
			math.Abs(j.shift-want) > 0.2*math.Abs(want) {
			t.Errorf("%s: shift %.0f ns, want about %.0f", c.name, j.shift, want)
		}
		if said := strings.Contains(log, `level=WARN msg="slower than at this hour on previous days"`); said != (c.want == compare.Slower) {
			t.Errorf("%s: the log:\n%s", c.name, log)
		}
		if _, told := s.verdicts["p99.9"]; told && s.verdicts["p99.9"].verdict != compare.Unknown {
			t.Errorf("%s: p99.9 of 300 probes an interval: %+v", c.name, s.verdicts["p99.9"])
		}
	}
}

func TestRing(t *testing.T) {
	r := newRing(8)
	n := int32(0)
	for range 5 {
		for range 8 {
			r.put(event{flow: n})
			n++
		}
		want := n - 8
		r.drain(func(e *event) {
			if e.flow != want {
				t.Errorf("%d, want %d", e.flow, want)
			}
			want++
		})
	}
	for range 10 {
		r.put(event{})
	}
	check.Equal(t, r.dropped.Load(), 2, "%d dropped")
	check.Equal(t, testing.AllocsPerRun(100, func() { r.put(event{}) }), 0, "%v allocations")
}

// A flood of foreign packets, as fast as possible between two passes of the keeper, takes no room from the events of
// the watch's own probes.
func TestFloodSparesProbes(t *testing.T) {
	codec := udpCodec(t)
	l, f := loopOf(t), newFlow(0, codec, 8)
	spoiled := spoil(codec.Build(0, 0))
	for range 2 * len(l.events.buf) {
		l.process(f, spoiled, polling.TSC(), 0, false, outcome.None)
	}
	seq := f.nextNumber()
	reply := bytes.Clone(codec.Build(uint32(seq), 0))
	f.slots[seq] = slot{seq: seq, sent: polling.TSC(), state: waiting}
	l.events.put(event{flow: f.id, kind: sent})
	l.process(f, reply, polling.TSC(), 0, false, outcome.None)
	count := [kinds]int{}
	l.events.drain(func(e *event) { count[e.kind]++ })
	if count[sent] != 1 || count[answered] != 1 || count[corrupt] == 0 ||
		uint64(count[corrupt])+l.events.dropped.Load() != uint64(2*len(l.events.buf)) {
		t.Errorf("%d sent, %d answered, %d corrupt, %d dropped; want the probe and its reply", count[sent],
			count[answered], count[corrupt], l.events.dropped.Load())
	}
}
