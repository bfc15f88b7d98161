package report_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
	"golang.org/x/sys/unix"
)

func parts(n int) []report.Part {
	var out []report.Part
	for i := range n {
		run := latency.Run{Start: int64(i) * 2e9, End: int64(i)*2e9 + 1e9}
		var series []*latency.Series
		for k, name := range []string{latency.MainSeries, latency.UncorrectedSeries} {
			h := latency.FromValues([]int64{4000 + int64(i), 5000 + int64(k), 90_000})
			series = append(series, &latency.Series{Name: name,
				Intervals: []latency.Interval{{Start: run.Start, End: run.End, Histogram: h}}})
		}
		p := report.Part{Run: run, Place: &i, Series: series,
			Counts:   report.Counts{Sent: 4 * int64(i+1), Received: 3 * int64(i+1), Lost: int64(i + 1)},
			Drops:    []report.Drop{{Place: report.DroppedHere, By: "ring", Frames: int64(i)}},
			Rejected: []report.Rejection{{Reason: "wrong source", Frames: int64(i)}}, Order: &report.Order{Extent: int64(i)}}
		if i == 1 { // later parts leave out what is as before
			p.Counters, p.STAMP = map[string]uint64{"rx": 1}, &report.STAMP{SSID: 1}
			p.Warnings, p.Notes = []string{"w"}, []string{"n"}
		}
		out = append(out, p)
	}
	return out
}

func unfinished(runs int) *report.Report {
	rep := synthetic.Link{Seed: 9, Median: 4000, Seconds: 1, Rate: 10}.Report()
	rep.Schedule = &report.Schedule{Seed: "5"}
	rep.Unfinished = &report.Unfinished{Runs: runs, Run: 1e9}
	return rep
}

// Wherever a log was truncated, the report has all parts that were written completely, and says how many there are.
func TestJournal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	head := unfinished(7)
	head.Order, head.Rejected, head.Drops = &report.Order{}, parts(1)[0].Rejected, parts(1)[0].Drops
	head.Tail, head.Warnings = &report.Tail{}, []string{"of the head"}
	j := must.Get(report.NewJournal(dir, head))(t)
	defer j.Close()
	log := filepath.Join(dir, report.HlogFile)
	all := parts(4)
	sizes := []int64{0}
	for _, step := range [][]report.Part{all[:1], all[1:3], all[3:]} {
		must.OK(t, j.Add(step...))
	}
	whole := must.Get(os.ReadFile(log))(t)
	for at, line := 0, ""; at < len(whole); at += len(line) {
		line = string(whole[at : at+bytes.IndexByte(whole[at:], '\n')+1])
		if strings.HasPrefix(line, "#[Part: ") {
			sizes = append(sizes, int64(at+len(line)))
		}
	}
	must.Equal(t, len(sizes)-1, 4, "%d parts in the log")
	for cut := range len(whole) + 1 {
		if cut%61 != 0 && !slices.ContainsFunc(sizes, func(n int64) bool {
			return max(n-int64(cut), int64(cut)-n) < 3
		}) {
			continue
		}
		must.OK(t, os.WriteFile(log, whole[:cut], 0o644))
		rep, err := report.Read(dir)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		n := 0
		for n < 4 && int64(cut) >= sizes[n+1] {
			n++
		}
		want := report.Counts{}
		if n > 0 {
			want = all[n-1].Counts
		}
		if len(rep.Runs) != n || rep.Counts != want || len(rep.Schedule.Places) != n || n > 0 &&
			rep.Main().Total.Count != want.Received {
			t.Fatalf("cut at %d of %d: %d runs, %+v, want those of %d parts", cut, len(whole), len(rep.Runs),
				rep.Counts, n)
		}
		latest := fmt.Sprint(rep.Drops, rep.Rejected, rep.Order, rep.STAMP, rep.Warnings, rep.Notes,
			rep.Device.Counters)
		p := report.Part{Warnings: head.Warnings, Notes: head.Notes, Counters: head.Device.Counters, STAMP: head.STAMP}
		if n > 1 {
			p = all[1]
		}
		if n > 0 {
			last := all[n-1]
			p.Drops, p.Rejected, p.Order = last.Drops, last.Rejected, last.Order
		}
		must.Equal(t, latest, fmt.Sprint(p.Drops, p.Rejected, p.Order, p.STAMP, p.Warnings, p.Notes, p.Counters), "%s")
		if n == 4 && (len(rep.Series) != 2 || !strings.HasPrefix(rep.UnfinishedText(),
			"unfinished: 4 of 7 planned runs were measured (4.000 s of 7.000 s)")) {
			t.Errorf("%d series, %q", len(rep.Series), rep.UnfinishedText())
		}
	}
	rep := unfinished(0)
	rep.Unfinished.Run = 0
	check.Equal(t, rep.UnfinishedText(), "unfinished: 1 of 0 planned runs were measured; the bench is still measuring, "+
		"or was ended before it wrote the whole report", "%s")
	rep.Unfinished = nil
	must.OK(t, report.Write(dir, rep, page)) // the complete report replaces it
	got := must.Get(report.Read(dir))(t)
	check.Equal(t, got.UnfinishedText(), "", "the complete report says %q")
	check.Equal(t, got.Main().Total.Count, rep.Main().Total.Count, "%d round trips")
}

func TestJournalFullDisk(t *testing.T) {
	needs.Root(t, "a small tmpfs")
	dir := filepath.Join(smallDisk(t, "size=48k"), "r")
	j := must.Get(report.NewJournal(dir, unfinished(1000)))(t)
	t.Cleanup(func() { j.Close() })
	all := parts(1000)
	n, err := 0, error(nil)
	for ; n < len(all); n++ {
		if err = j.Add(all[n]); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) || n == 0 {
		t.Fatalf("after %d parts: %v", n, err)
	}
	rep, err := report.Read(dir)
	if err != nil || len(rep.Runs) != n || rep.Counts != all[n-1].Counts ||
		rep.Main().Total.Count != rep.Counts.Received {
		t.Errorf("%d runs, want %d: %v", len(rep.Runs), n, err)
	}
}
