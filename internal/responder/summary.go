package responder

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// view reads the loops' counters while they run, without making them wait.
type view struct {
	*engine
	info  nic.Info
	clock *latency.Clock
	start time.Time
	end   time.Time // zero while running
	host  host.Facts

	before map[string]int64 // bus transactions of a device model at the start of serving
}

// stats returns the sum of all loops' counters.
func (v *view) stats() (sum fastpath.Stats) {
	for _, l := range v.loops {
		s := l.responder.Stats()
		sum.Add(&s)
	}
	return sum
}

// transactions returns a device model's bus transaction counts, nil for any other device.
func (v *view) transactions() (map[string]int64, error) {
	return cards.Transactions(v.dev)
}

// histogram merges one histogram of all loops.
func (v *view) histogram(of func(*polling.Loop) *polling.Histogram) *latency.Histogram {
	hs := make([]*latency.Histogram, len(v.loops))
	for i, l := range v.loops {
		hs[i] = latency.FromHot(of(&l.responder.Loop), v.clock)
	}
	return latency.Merge(hs...)
}

func turnaround(l *polling.Loop) *polling.Histogram { return &l.Turnaround }
func gap(l *polling.Loop) *polling.Histogram        { return &l.Gap }

// printSummaries prints a summary for each element of ask and logs one line each interval, until ctx is done.
func (v *view) printSummaries(ctx context.Context, ask <-chan os.Signal, interval time.Duration, w io.Writer, log *slog.Logger) {
	var tick <-chan time.Time
	if interval > 0 {
		t := time.NewTicker(interval)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-ask:
			v.print(w)
		case <-tick:
			var t, gaps ticks
			for _, l := range v.loops {
				t.add(&l.responder.Loop.Turnaround)
				gaps.add(&l.responder.Loop.Gap)
			}
			n := v.stats()
			attrs := []any{"answered", n.Answered(), "refused", n.Refused()}
			if t.n > 0 {
				attrs = append(attrs, "turnaround_p50_ns", v.clock.Nanoseconds(t.quantile(0.5)), "turnaround_p99_ns", v.clock.Nanoseconds(t.quantile(0.99)),
					"turnaround_max_ns", v.clock.Nanoseconds(t.greatest))
			}
			log.Info("so far", append(attrs, "wait_p99_ns", v.clock.Nanoseconds(gaps.wait(0.99)), "gap_max_ns", v.clock.Nanoseconds(gaps.greatest))...)
		}
	}
}

// printTable writes a table in one piece: a reader of the output never sees half a line.
func printTable(out io.Writer, rows func(w io.Writer) error) error {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	if err := rows(w); err != nil {
		return err
	}
	w.Flush()
	_, err := out.Write(b.Bytes())
	return err
}

// print writes the summary.
func (v *view) print(out io.Writer) {
	printTable(out, func(w io.Writer) error { v.rows(w); return nil })
}

func (v *view) rows(w io.Writer) {
	until := v.end
	if until.IsZero() {
		until = time.Now()
	}
	fmt.Fprintf(w, "summary\t%s on %s, %v\n", v.info.Driver, plain.Text(v.info.Device), until.Sub(v.start).Round(time.Millisecond))

	counts := v.stats()
	printCounts(w, &counts)
	var s nic.Stats
	if err := v.dev.ReadStats(&s); err != nil {
		fmt.Fprintf(w, "device\t%v\n", err)
	} else {
		printFrames(w, v.info, &s)
		if v.info.NoDropCounter {
			fmt.Fprintf(w, "  rx_dropped\tunknown: the device does not count it\n")
		}
		for _, c := range append(troubles(v.info, &s), own(v.info, &s)...) {
			if c.value > 0 {
				fmt.Fprintf(w, "  %s\t%d\n", c.name, c.value)
			}
		}
	}
	fmt.Fprintf(w, "collections\t%d\n", v.collections.Load())

	fmt.Fprintln(w, "wait: how long a frame that arrives at a random time waits for the loop. turnaround, gap: one value per loop iteration, not per frame")
	fmt.Fprintln(w, "ns\tcount\tp50\tp90\tp99\tp99.9\tp99.99\tmax")
	gaps := v.histogram(gap)
	for _, h := range []struct {
		name string
		latency.Summary
	}{{"wait", gaps.Wait()}, {"turnaround", v.histogram(turnaround).Summary()}, {"gap", gaps.Summary()}} {
		if h.Count == 0 {
			fmt.Fprintf(w, "%s\t0\t-\t-\t-\t-\t-\t-\n", h.name)
			continue
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", h.name, h.Count, h.P50, h.P90, h.P99, h.P999, h.P9999, h.Max)
	}
}

// printCounts writes the number of frames by kind and reason.
func printCounts(w io.Writer, counts *fastpath.Stats) {
	list := func(head string, total uint64, want bool) {
		fmt.Fprintf(w, "%s\t%d\n", head, total)
		for i, n := range counts {
			if verdict := fastpath.Verdict(i); n > 0 && verdict.Answered() == want {
				fmt.Fprintf(w, "  %v\t%d\n", verdict, n)
			}
		}
	}
	list("answered", counts.Answered(), true)
	list("refused", counts.Refused(), false)
}

// printFrames prints what a device received and sent.
func printFrames(w io.Writer, i nic.Info, s *nic.Stats) {
	if i.NoByteCounter {
		fmt.Fprintf(w, "device\treceived %d, sent %d\n", s.RxFrames, s.TxFrames)
		return
	}
	fmt.Fprintf(w, "device\treceived %d (%d bytes), sent %d (%d bytes)\n", s.RxFrames, s.RxBytes, s.TxFrames, s.TxBytes)
}

type counter struct {
	name  string
	value uint64
}

// troubles lists a device's error counters, with the same names for every driver. A counter that the device lacks is
// omitted rather than 0.
func troubles(i nic.Info, s *nic.Stats) []counter {
	all := [...]counter{{"rx_dropped", s.RxDropped}, {"rx_errors", s.RxErrors}, {"tx_dropped", s.TxDropped},
		{"tx_errors", s.TxErrors}, {"resets", s.Resets}}
	if i.NoDropCounter {
		return all[1:]
	}
	return all[:]
}

// own lists a device's own counters, each under its driver's name and its own.
func own(i nic.Info, s *nic.Stats) (out []counter) {
	for _, name := range slices.Sorted(maps.Keys(s.Extra)) {
		out = append(out, counter{i.Driver + "." + name, s.Extra[name]})
	}
	return out
}

// describe puts a port into a report.
func describe(r *report.Report, i nic.Info, p nic.Port) {
	r.Device = report.Device{Driver: i.Driver, Device: i.Device, Model: i.Model, MAC: i.MAC, MTU: i.MTU, Queues: i.Queues,
		Backend: string(i.Backend), Push: i.Push, Notes: i.Notes}
	if link, err := p.Link(); err == nil {
		r.Device.Speed = link.Speed
	}
	var s nic.Stats
	if p.ReadStats(&s) == nil {
		r.Device.Counters = map[string]uint64{"rx_frames": s.RxFrames, "tx_frames": s.TxFrames}
		if !i.NoByteCounter {
			r.Device.Counters["rx_bytes"], r.Device.Counters["tx_bytes"] = s.RxBytes, s.TxBytes
		}
		for _, c := range append(troubles(i, &s), own(i, &s)...) {
			r.Device.Counters[c.name] = c.value
		}
	}
}

// report is the loops' turnaround and gaps, as a report like any other.
func (v *view) report() *report.Report {
	r := report.New("responder", report.Turnaround)
	r.Start, r.End = v.start, v.end
	r.Runs = []latency.Run{{End: v.end.Sub(v.start).Nanoseconds()}}
	r.Clock = v.clock.Info()
	r.Host = v.host
	describe(r, v.info, v.dev)
	if now, err := v.transactions(); err == nil && now != nil {
		r.Transfers = map[string]int64{}
		for kind, n := range now {
			r.Transfers[kind] = n - v.before[kind]
		}
	}
	r.Add(latency.MainSeries, v.histogram(turnaround))
	r.Add(latency.GapSeries, v.histogram(gap))
	n := v.stats()
	r.Counts.Sent, r.Counts.Received = int64(n.Answered()), int64(n.Answered()+n.Refused())
	if n := v.collections.Load(); n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("the loops were stopped %d times for a garbage collection", n))
	}
	return r
}
