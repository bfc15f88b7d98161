package latency

// Names of series. Any other name is an additional histogram of the same run.
const (
	MainSeries        = "rtt"         // of the report's Metric; in an open loop from the intended send
	UncorrectedSeries = "uncorrected" // open loop only: from the actual send
	GapSeries         = "gap"         // iterations of a polling loop
	TurnaroundSeries  = "turnaround"  // a responder's own time for a reply
	JitterSeries      = "self-test"   // gaps that SelfTest saw on the bench's own core
	LagSeries         = "send_lag"    // open loop only: actual minus intended send, the bench's own part of a delay
	ResidenceSeries   = "residence"   // residence time reported by a STAMP reflector
	KernelSeries      = "kernel"      // between the kernel's own timestamps
	HardwareSeries    = "hardware"    // between the interface's own timestamps

	ThereSeries = "one_way_there" // from sending to receipt by the STAMP reflector, by both hosts' clocks
	BackSeries  = "one_way_back"  // from sending by the reflector to receipt, by both hosts' clocks
)

// OneWay reports whether a series has one-way delays, whose error includes the errors of both clocks.
func OneWay(name string) bool { return name == ThereSeries || name == BackSeries }

// Run is one of a report's runs.
type Run struct {
	Start int64 `json:"start_ns"` // since the report's Start
	End   int64 `json:"end_ns"`
}

// Series is the distribution of one quantity, as a whole and by interval.
type Series struct {
	Name string `json:"name"`
	// gaps only: how long a frame that arrives at a random moment waits, see Histogram.Wait
	Wait      *Summary   `json:"wait,omitempty"`
	Summary   Summary    `json:"summary"` // of gaps: per iteration
	Intervals []Interval `json:"-"`       // in rtt.hlog
	Total     *Histogram `json:"-"`
}

// Interval is the part of a Series between two moments, in ns since the report's Start.
type Interval struct {
	Start, End int64
	*Histogram
}

// Summary has the key figures of a Series, all in ns. Min, Max and Mean are exact; the percentiles have three
// significant digits.
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

// Sum computes Total and Summary from the intervals.
func (s *Series) Sum() {
	hs := make([]*Histogram, len(s.Intervals))
	for i := range s.Intervals {
		hs[i] = s.Intervals[i].Histogram
	}
	total := *Merge(hs...) // a copy: a reader of a log stores exact extremes in it
	s.Total = &total
	s.Summary = s.Total.Summary()
	s.Gaps()
}

// Gaps fills in Wait if the series has gaps.
func (s *Series) Gaps() {
	if s.Name == GapSeries || s.Name == JitterSeries {
		w := s.Total.Wait()
		s.Wait = &w
	}
}

// Summary returns the key figures of the histogram.
func (h *Histogram) Summary() Summary {
	return Summary{Count: h.Count, Min: h.Min, P50: h.Quantile(0.5), P90: h.Quantile(0.9), P99: h.Quantile(0.99),
		P999: h.Quantile(0.999), P9999: h.Quantile(0.9999), Max: h.Max, Mean: h.Mean(), StdDev: h.StdDev()}
}
