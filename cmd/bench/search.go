package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"rebound/cmd/bench/engine"
	"rebound/latency/host"
	"rebound/latency/page"
	"rebound/latency/report"
)

// trial is one rate that the search tried.
type trial struct {
	rate   float64
	counts engine.Counts
	behind time.Duration // how late the sender was at the end
	passed bool
	why    string
}

// search looks for the highest rate without loss for each size (RFC 2544 §26.1): trials of one length, halving the interval
// between the highest rate that passed and the lowest that failed until they are 1 % apart.
func (s *session) search() error {
	facts := host.Collect(os.DirFS("/"), s.place.core)
	table := tabwriter.NewWriter(s.stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "size\toffered/s\tsent\tlost\tlate\tp50 ns\tp99 ns\tverdict\t")
	var best []*report.Report
	for _, c := range s.cells {
		rep, err := s.searchCell(c, facts, table)
		if rep != nil {
			if err := report.Write(c.dir, rep, page.Report); err != nil {
				return err
			}
			best = append(best, rep)
		}
		if err != nil {
			table.Flush()
			return err
		}
		if s.stop.Load() {
			break
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i, rep := range best {
		fmt.Fprintf(s.stdout, "\n%d bytes: %.0f probes per second without loss (%.1f Mbit/s on the wire with FCS, preamble and gap), report %s\n",
			rep.Traffic.FrameSize, rep.Traffic.Rate, rep.Traffic.Rate*float64(rep.Traffic.FrameSize+24)*8/1e6, s.cells[i].dir)
		if slices.Contains(rep.Notes, cutShort) {
			fmt.Fprintf(s.stdout, "note: %s\n", cutShort)
		}
	}
	return nil
}

const resolution = 0.01

const cutShort = "interrupted by a signal: the search was not over, and a higher rate may be without loss as well"

func (s *session) searchCell(c *cell, facts host.Facts, table io.Writer) (best *report.Report, err error) {
	if s.sizeSweep() {
		c.dir = filepath.Join(s.out, "size-"+strconv.Itoa(c.flow.Size))
	}
	low, high, rate := 0.0, s.lossless, s.lossless
	var history []string
	for rate >= 1 && !s.stop.Load() {
		t, err := s.try(c, rate)
		if err != nil {
			return best, err
		}
		trials := 1
		for ; trials <= s.verify && !t.passed && !s.stop.Load(); trials++ {
			if t, err = s.try(c, rate); err != nil {
				return best, err
			}
		}
		if s.stop.Load() {
			break // a trial that was cut short proves nothing
		}
		if trials > 1 {
			t.why += fmt.Sprintf(" (trial %d)", trials)
		}
		if low == 0 && c.silent() {
			return nil, c.noReply()
		}
		rep := s.report(c, facts)
		m := rep.Main().Summary
		fmt.Fprintf(table, "%d\t%.0f\t%d\t%d\t%d\t%d\t%d\t%s\t\n", c.flow.Size, rate, t.counts.Sent, t.counts.Lost(), t.counts.Late, m.P50, m.P99, t.why)
		history = append(history, fmt.Sprintf("%.0f/s: %s", rate, t.why))
		s.log.Info("trial", "size", c.flow.Size, "rate", fmt.Sprintf("%.0f", rate), "lost", t.counts.Lost(), "verdict", t.why)
		if t.passed {
			best, low = rep, rate
		} else {
			high = rate
		}
		if low == s.lossless || high-low <= resolution*high {
			break
		}
		rate = (low + high) / 2
	}
	if best == nil {
		if s.stop.Load() {
			return nil, errNoResult
		}
		return nil, fmt.Errorf("%s, %d bytes: no rate down to 1 per second went without loss", c.label(), c.flow.Size)
	}
	best.Notes = append(best.Notes, fmt.Sprintf("the highest of the rates tried that lost nothing in %v (RFC 2544 §26.1 wants 60 s), to %.0f %%", s.duration, 100*resolution))
	best.Notes = append(best.Notes, history...)
	if s.stop.Load() {
		best.Notes = append(best.Notes, cutShort)
	}
	return best, nil
}

func (s *session) sizeSweep() bool { return len(s.base.sizes) > 1 }

// try offers one rate. A sender that could not keep up has not offered it: the trial fails, and says whose fault it is.
func (s *session) try(c *cell, rate float64) (t trial, err error) {
	if err := c.prepare(s.clock, s.options, rate); err != nil {
		return t, err
	}
	runtime.GC()
	show := s.progress(1, engine.Limit{Warmup: s.warmup, Duration: s.duration})
	show.next(c)
	err = c.stream.Run(engine.Limit{Warmup: s.warmup, Duration: s.duration, Behind: max(s.duration/10, 100*time.Millisecond)}, &s.stop)
	show.end()
	t = trial{rate: rate, counts: c.stream.Counts(), behind: time.Duration(s.clock.Nanoseconds(c.stream.Behind))}
	switch n := &t.counts; {
	case errors.Is(err, engine.ErrSend), t.behind > slack(s.duration):
		t.why = fmt.Sprintf("not offered: this host fell %v behind", t.behind.Round(time.Microsecond))
		return t, nil
	case err != nil:
		return t, err
	case n.Lost() > 0 || n.Spoiled > 0:
		t.why = fmt.Sprintf("loss of %.3g %%", 100*float64(n.Sent-n.Received-n.Late)/float64(n.Sent))
	default:
		t.passed, t.why = true, "no loss"
	}
	return t, nil
}

// slack is how late a sender may end that is still said to have offered its rate for the time d.
func slack(d time.Duration) time.Duration { return max(d/1000, 100*time.Microsecond) }

// sweepTable prints one line for each point.
func sweepTable(w io.Writer, all []*report.Report) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "point\tsize\trate/s\tsent\tlost\tp50 ns\tp99 ns\tp99.9 ns\tmax ns\treport\t")
	for _, r := range all {
		m := r.Main().Summary
		rate := "closed"
		if r.Traffic.Rate > 0 {
			rate = fmt.Sprintf("%.0f", r.Traffic.Rate)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t\n", r.Label, r.Traffic.FrameSize, rate, r.Counts.Sent, r.Counts.Lost, m.P50, m.P99, m.P999, m.Max, r.Dir)
	}
	return table.Flush()
}
