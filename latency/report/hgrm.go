package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// ErrFormat is returned for a file that does not have the format that its name implies. The error names file and line.
var ErrFormat = errors.New("malformed")

// WriteHgrm writes h in the text format of HdrHistogram's outputPercentileDistribution, with five steps for each
// halving of the distance to 100 %. Values are in microseconds with three decimals, so they are exact to the
// nanosecond.
func WriteHgrm(w io.Writer, h *latency.Histogram) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")
	for p := range h.Percentiles(5) {
		if p.Quantile == 1 {
			fmt.Fprintf(b, "%12.3f %2.12f %10d\n", float64(p.Value)/1e3, p.Quantile, p.Count)
			break
		}
		fmt.Fprintf(b, "%12.3f %2.12f %10d %14.2f\n", float64(p.Value)/1e3, p.Quantile, p.Count, 1/(1-p.Quantile))
	}
	fmt.Fprintf(b, "#[Mean    = %12.3f, StdDeviation   = %12.3f]\n", h.Mean()/1e3, h.StdDev()/1e3)
	fmt.Fprintf(b, "#[Max     = %12.3f, Total count    = %12d]\n", float64(h.Max)/1e3, h.Count)
	fmt.Fprintf(b, "#[Buckets = %12d, SubBuckets     = %12d]\n", latency.HDRBuckets, latency.HDRSubBuckets)
	fmt.Fprintf(b, "#[Unit    = microseconds]\n")
	return b.Flush()
}

// ReadHgrm reads the output of WriteHgrm or another HdrHistogram implementation: the points in the file's own unit
// times unit nanoseconds (1000 for microseconds). name is for errors.
func ReadHgrm(r io.Reader, name string, unit float64) ([]latency.Percentile, error) {
	s := bufio.NewScanner(r)
	var out []latency.Percentile
	line, header, ended := 0, false, false
	bad := func(what string) error {
		return fmt.Errorf("%s:%d: %w percentile line: %s", name, line, ErrFormat, what)
	}
	for s.Scan() {
		line++
		text := strings.TrimSpace(s.Text())
		if text == "" || text[0] == '#' {
			continue
		}
		f := strings.Fields(text)
		if !header {
			if len(f) != 4 || f[0] != "Value" || f[1] != "Percentile" {
				return nil, bad("no header \"Value Percentile TotalCount 1/(1-Percentile)\"")
			}
			header = true
			continue
		}
		if ended {
			return nil, bad("more after percentile 1")
		}
		if len(f) != 3 && len(f) != 4 {
			return nil, bad(fmt.Sprintf("%d columns, expected 3 or 4", len(f)))
		}
		v, err := strconv.ParseFloat(f[0], 64)
		q, err2 := strconv.ParseFloat(f[1], 64)
		n, err3 := strconv.ParseInt(f[2], 10, 64)
		if err := errors.Join(err, err2, err3); err != nil {
			return nil, bad(strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		if !(v >= 0 && v*unit < math.MaxInt64) || !(q >= 0 && q <= 1) || n < 0 {
			return nil, bad("a number is out of range")
		}
		p := latency.Percentile{Quantile: q, Value: int64(math.Round(v * unit)), Count: n}
		if k := len(out); k > 0 && (p.Quantile < out[k-1].Quantile || p.Value < out[k-1].Value ||
			p.Count < out[k-1].Count) {
			return nil, bad("smaller than the line before")
		}
		out = append(out, p)
		ended = q == 1
	}
	if err := s.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, line+1, err)
	}
	if !header || len(out) > 0 && !ended {
		return nil, fmt.Errorf("%s:%d: %w: the file ends before percentile 1, it is cut off", name, line+1, ErrFormat)
	}
	return out, nil
}
