package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"

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
