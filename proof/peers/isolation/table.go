package isolation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
)

// bootOf returns the words of a kernel's command line that isolate CPUs.
func bootOf(cmdline string) string {
	var kept []string
	for _, w := range strings.Fields(cmdline) {
		key, _, _ := strings.Cut(w, "=")
		if slices.Contains([]string{"isolcpus", "nohz_full", "rcu_nocbs", "irqaffinity", "nohz"}, key) {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, " ")
}

const roundTrip = "Round trip"

// Markdown formats the two tables, followed by the notes of each row's steps.
func Markdown(results []Result) string {
	var b strings.Builder
	for _, t := range []struct {
		name string
		of   func(Result) []latency.Summary
	}{
		{"Wait of a random arrival", func(r Result) []latency.Summary { return r.Wait }},
		{roundTrip, func(r Result) []latency.Summary { return r.Trip }},
	} {
		questions, line := "", ""
		if t.name == roundTrip {
			questions, line = " questions a round |", "--:|"
		}
		fmt.Fprintf(&b, "| %s | p50 | p99 | p99.9 | p99.99 |%s\n|---|--:|--:|--:|--:|%s\n", t.name, questions, line)
		for _, r := range results {
			fmt.Fprintf(&b, "| %s |", r.Name)
			if r.Why != "" {
				fmt.Fprintf(&b, " not measured: %s | | | |%s\n", r.Why,
					strings.Repeat(" |", strings.Count(questions, "|")))
				continue
			}
			for _, p := range []struct {
				least int64 // one in this number of requests takes longer
				of    func(latency.Summary) int64
			}{
				{2, func(s latency.Summary) int64 { return s.P50 }}, {100, func(s latency.Summary) int64 { return s.P99 }},
				{1000, func(s latency.Summary) int64 { return s.P999 }}, {10000, func(s latency.Summary) int64 { return s.P9999 }},
			} {
				var v []int64
				for _, s := range t.of(r) {
					if t.name != roundTrip || s.Count >= p.least {
						v = append(v, p.of(s))
					}
				}
				// some rounds have too few requests, and a median of the others would not be comparable
				if len(v) < len(t.of(r)) {
					b.WriteString(" – |")
					continue
				}
				slices.Sort(v)
				fmt.Fprintf(&b, " %s (%s to %s) |", ns(v[len(v)/2]), ns(v[0]), ns(v[len(v)-1]))
			}
			if questions != "" {
				var n []float64
				for _, s := range r.Trip {
					n = append(n, float64(s.Count))
				}
				fmt.Fprintf(&b, " %s |", spread(n, 0, ""))
			}
			b.WriteByte('\n')
		}
		b.WriteByte('\n')
	}
	b.WriteString("| The loop's CPU | others had it, times a second | part of the time | interrupts a second |\n|---|--:|--:|--:|\n")
	for _, r := range results {
		if r.Why == "" {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", r.Name, spread(r.Off, 1, ""),
				spread(scaled(r.Away, 100), 1, " %"), spread(r.Interrupts, 0, ""))
		}
	}
	b.WriteByte('\n')
	for _, r := range results {
		for _, n := range r.Notes {
			fmt.Fprintf(&b, "- %s: %s\n", r.Name, n)
		}
	}
	return b.String()
}

// ns formats nanoseconds with three digits and a suitable unit.
func ns(v int64) string {
	d := time.Duration(v)
	switch {
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%d ms", v/1e6)
	case d >= 100*time.Microsecond:
		return fmt.Sprintf("%.3g ms", float64(v)/1e6)
	case d >= time.Microsecond:
		return fmt.Sprintf("%.3g µs", float64(v)/1e3)
	}
	return fmt.Sprintf("%d ns", v)
}

func scaled(v []float64, by float64) []float64 {
	v = slices.Clone(v)
	for i := range v {
		v[i] *= by
	}
	return v
}

// spread formats the median of v, with the minimum and the maximum.
func spread(v []float64, digits int, unit string) string {
	v = slices.Sorted(slices.Values(v))
	return fmt.Sprintf("%.*f%s (%.*f to %.*f)", digits, v[len(v)/2], unit, digits, v[0], digits, v[len(v)-1])
}

// interruptsOf sums a CPU's column of /proc/interrupts. Lines with fewer columns are totals for all CPUs.
func interruptsOf(text string, cpu int) (sum uint64, err error) {
	head, rest, _ := strings.Cut(text, "\n")
	at := slices.Index(strings.Fields(head), fmt.Sprintf("CPU%d", cpu))
	if at < 0 {
		return 0, fmt.Errorf("/proc/interrupts has no column CPU%d: %q", cpu, head)
	}
	for line := range strings.Lines(rest) {
		_, counts, _ := strings.Cut(line, ":")
		f := strings.Fields(counts)
		if len(f) < len(strings.Fields(head)) {
			continue
		}
		n, err := strconv.ParseUint(f[at], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/interrupts: %q: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}
