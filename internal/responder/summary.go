package responder

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

// attrs are the turnaround's attributes of the periodic log line; none without a value.
func (t *ticks) attrs(nanoseconds func(uint64) int64) []any {
	if t.n == 0 {
		return nil
	}
	return []any{"turnaround_p50_ns", nanoseconds(t.quantile(0.5)), "turnaround_p99_ns", nanoseconds(t.quantile(0.99)),
		"turnaround_max_ns", nanoseconds(t.greatest)}
}

// printSummaries prints a summary for each element of ask and logs one line each interval, until ctx is done.
func (a *answering) printSummaries(ctx context.Context, ask <-chan os.Signal, interval time.Duration, w io.Writer) {
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
			a.print(w)
		case <-tick:
			n := a.answerer.stats()
			a.log.Log(ctx, nic.Notice, "so far", append([]any{"answered", n.Answered(), "refused", n.Refused()},
				a.answerer.latest()...)...)
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
func (a *answering) print(out io.Writer) {
	until := a.end
	if until.IsZero() {
		until = time.Now()
	}
	printTable(out, func(w io.Writer) error {
		fmt.Fprintf(w, "summary\t%s on %s, %s\n", a.info.Driver, sanitize.Text(a.info.Device),
			latency.FormatNS(float64(until.Sub(a.start))))
		if pin := a.settings.nic.Pin; pin != "" {
			fmt.Fprintf(w, "pin\t%s; all counts are since %v\n", sanitize.Text(pin), a.since.Format(time.DateTime))
		}
		counts := a.answerer.stats()
		printCounts(w, &counts)
		printDevice(w, a.info, a.port)
		a.answerer.details(w)
		fmt.Fprintln(w, a.answerer.explain())
		page.PrintTimings(w, a.answerer.timings())
		return nil
	})
}

// printCounts writes the number of frames by kind and reason.
func printCounts(w io.Writer, counts *fastpath.Stats) {
	list := func(head string, total uint64, want bool) {
		fmt.Fprintf(w, "%s\t%s\n", head, latency.FormatCount(total))
		for i, n := range counts {
			if verdict := fastpath.Verdict(i); n > 0 && verdict.Answered() == want {
				fmt.Fprintf(w, "  %v\t%s\n", verdict, latency.FormatCount(n))
			}
		}
	}
	list("answered", counts.Answered(), true)
	list("refused", counts.Refused(), false)
}

// printDevice prints what a device received, sent and lost.
func printDevice(w io.Writer, i nic.Info, p nic.Port) {
	var s nic.Stats
	if err := p.ReadStats(&s); err != nil {
		fmt.Fprintf(w, "device\t%v\n", err)
		return
	}
	rx, tx := latency.FormatCount(s.RxFrames), latency.FormatCount(s.TxFrames)
	if !i.NoByteCounter {
		rx, tx = rx+" ("+latency.FormatCount(s.RxBytes)+" bytes)", tx+" ("+latency.FormatCount(s.TxBytes)+" bytes)"
	}
	fmt.Fprintf(w, "device\treceived %s, sent %s\n", rx, tx)
	if i.NoDropCounter {
		fmt.Fprintf(w, "  rx_dropped\tunknown: the device does not count it\n")
	}
	for _, c := range append(troubles(i, &s), own(i, &s)...) {
		if c.value > 0 {
			fmt.Fprintf(w, "  %s\t%s\n", c.name, latency.FormatCount(c.value))
		}
	}
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
	r.Device = report.Device{Driver: i.Driver, Device: i.Device, Model: i.Model, MAC: i.MAC, MTU: i.MTU,
		Queues:  i.Queues,
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

// report is what answered, as a report like any other.
func (a *answering) report() *report.Report {
	r := report.New("responder", report.Turnaround)
	r.Start, r.End = a.since, a.end
	r.Runs = []latency.Run{{End: r.End.Sub(r.Start).Nanoseconds()}}
	r.Host = a.host
	for _, p := range a.settings.respond.addresses {
		r.Addresses = append(r.Addresses, p.Addr().String())
	}
	describe(r, a.info, a.port)
	n := a.answerer.stats()
	r.Counts.Sent, r.Counts.Received = int64(n.Answered()), int64(n.Answered()+n.Refused())
	a.answerer.fill(r)
	return r
}
