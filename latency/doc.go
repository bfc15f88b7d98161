// Package latency measures time and keeps the measurements: a clock over the cycle counter, a recorder, histograms.
//
// A run looks like this:
//
//	clock, err := latency.NewClock()
//	rec, err := latency.NewRecorder(clock, latency.RecorderOptions{OpenLoop: true})
//	rec.Begin(polling.TSC())                    // the warm-up is over
//	rec.Record(intended, sent, received)        // for each reply; ticks
//	rec.End(polling.TSC())                      // Begin and End again for each further run
//	rep := report.New("bench", report.RoundTrip)
//	rep.Host = host.Collect(os.DirFS("/"), core)
//	rep.Device = ...; rep.Traffic = ...; rep.Counts = ...
//	rep.Fill(rec.Recording())
//	err = report.Write(dir, rep, page.Report)   // report.json, rtt.hgrm, rtt.hlog, raw.csv.zst, report.html
//
// and a comparison like this:
//
//	a, err := report.Read(dirA)
//	b, err := report.Read(dirB)
//	c := compare.Reports(a, b)
//	err = page.PrintComparison(os.Stdout, c)
//	limits, err := compare.ParseLimits("p99>+5%+200ns")
//	worse, err := c.Exceeded(limits)            // any: exit 3
//
// The packages below this one build on each other in this order: report (the folder that a run writes), compare
// (statistics of two reports), page (text, HTML and figures). Package host finds host settings that increase latency.
//
// Every duration is in nanoseconds unless it is a time.Duration or its name says ticks. Nothing here depends on a NIC:
// a report describes its device as plain data, report.Device.
package latency
