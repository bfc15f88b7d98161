package latency

// Names of series. Any other name is a further histogram of the same run.
const (
	MainSeries        = "rtt"         // of the report's Metric; in open loop from the intended send
	UncorrectedSeries = "uncorrected" // open loop only: from the actual send
	GapSeries         = "gap"         // a polling loop's passes
	TurnaroundSeries  = "turnaround"  // a responder's own time for a reply
	JitterSeries      = "self-test"   // what SelfTest saw on the bench's own core
	LagSeries         = "send_lag"    // open loop only: actual minus intended sending, the bench's own part of a stall
	ResidenceSeries   = "residence"   // what a STAMP reflector says it took
	KernelSeries      = "kernel"      // between the kernel's own timestamps
	HardwareSeries    = "hardware"    // between the interface's own timestamps

	ThereSeries = "one_way_there" // from sending to a STAMP reflector's receipt, by both ends' clocks
	BackSeries  = "one_way_back"  // from its sending to receipt
)

// OneWay reports whether a series is of one-way delays, which are wrong by what two clocks are wrong by.
func OneWay(name string) bool { return name == ThereSeries || name == BackSeries }

// Run is one of the repeats in a report.
type Run struct {
	Start int64 `json:"start_ns"` // since the report's Start
	End   int64 `json:"end_ns"`
}

// Series is one quantity's distribution, whole and by interval.
type Series struct {
	Name      string     `json:"name"`
	Wait      *Summary   `json:"wait,omitempty"` // of gaps only: what a frame that arrives at a random moment waits, see Histogram.Wait
	Summary   Summary    `json:"summary"`        // of gaps: by passes
	Intervals []Interval `json:"-"`              // in rtt.hlog
	Total     *Histogram `json:"-"`
}

// Interval is the part of a Series between two moments, in ns since the report's Start.
type Interval struct {
	Start, End int64
	*Histogram
}

// Summary is a Series in numbers, all in ns. Min, Max and Mean are exact; the percentiles have three significant digits.
type Summary struct {
	Count  int64   `json:"count"`
	Min    int64   `json:"min_ns"`
	P50    int64   `json:"p50_ns"`
	P90    int64   `json:"p90_ns"`
	P99    int64   `json:"p99_ns"`
	P999   int64   `json:"p99.9_ns"`
	P9999  int64   `json:"p99.99_ns"`
	Max    int64   `json:"max_ns"`
	Mean   float64 `json:"mean_ns"`
	StdDev float64 `json:"stddev_ns"`
}

// Sum makes Total and Summary of the intervals.
func (s *Series) Sum() {
	hs := make([]*Histogram, len(s.Intervals))
	for i := range s.Intervals {
		hs[i] = s.Intervals[i].Histogram
	}
	total := *Merge(hs...) // a copy: a reader of a log puts exact extremes into it
	s.Total = &total
	s.Summary = s.Total.Summary()
	s.Gaps()
}

// Gaps fills in Wait if the series is one of gaps.
func (s *Series) Gaps() {
	if s.Name == GapSeries || s.Name == JitterSeries {
		w := s.Total.Wait()
		s.Wait = &w
	}
}

// Summary returns the histogram in numbers.
func (h *Histogram) Summary() Summary {
	return Summary{Count: h.Count, Min: h.Min, P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99),
		P999: h.Quantile(0.999), P9999: h.Quantile(0.9999), Max: h.Max, Mean: h.Mean(), StdDev: h.StdDev()}
}
