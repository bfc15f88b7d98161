package measure

import "github.com/rebound-nic/rebound/latency/report"

// Part returns what the last run adds to an unfinished report. It is called once after each run.
func (s *Series) Part(c Circumstances) report.Part {
	run, recorded := s.rec.LastRun()
	rep := s.newReport(c, false)
	if c.Anonymous {
		rep.Anonymize()
	}
	return report.Part{Run: run, Series: recorded, Counts: rep.Counts, Drops: rep.Drops, Rejected: rep.Rejected,
		Counters: rep.Device.Counters, Order: rep.Order,
		STAMP: rep.STAMP, Warnings: rep.Warnings, Notes: rep.Notes}
}

// Runs returns how many runs were recorded.
func (s *Series) Runs() int { return s.rec.Runs() }
