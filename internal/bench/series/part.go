package series

import "github.com/rebound-nic/rebound/latency/report"

// Part returns what the last run adds to an unfinished report. It is called once after each run.
func (s *Series) Part() report.Part {
	run, recorded := s.rec.LastRun()
	counts, drops := s.Counts()
	return report.Part{Run: run, Series: recorded, Counts: counts, Drops: drops}
}

// Runs returns how many runs were recorded.
func (s *Series) Runs() int { return s.rec.Runs() }
