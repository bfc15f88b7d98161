// Package latency measures time and keeps what was measured: a clock over the cycle counter, a recorder, the report
// that a run leaves behind, the comparison of reports, and their pictures.
//
// A run goes like this:
//
//	clock, err := latency.NewClock()
//	rec, err := latency.NewRecorder(clock, latency.RecorderOptions{OpenLoop: true})
//	rec.Begin(polling.TSC())                        // the warm-up is over
//	rec.Record(intended, sent, received)        // for each reply; ticks
//	rec.End(polling.TSC())                          // Begin and End again for each further run
//	rep := latency.NewReport("bench", latency.RoundTrip)
//	rep.Host = host.Collect(os.DirFS("/"), core)
//	rep.Device = ...; rep.Traffic = ...; rep.Counts = ...
//	rec.Fill(rep)
//	err = latency.Write(dir, rep)               // report.json, rtt.hgrm, rtt.hlog, raw.csv.zst, report.html
//
// and a comparison like this:
//
//	a, err := latency.Read(dirA)
//	b, err := latency.Read(dirB)
//	c := latency.Compare(a, b)
//	err = c.Print(os.Stdout)
//	limits, err := latency.ParseLimits("p99>+5%+200ns")
//	for _, worse := range c.Exceeded(limits) { ... } // exit 3
//
// Every duration in this package is in nanoseconds unless it is a time.Duration or is called ticks. Nothing here knows
// of a NIC: what a report says of a device is plain data, Device.
package latency
