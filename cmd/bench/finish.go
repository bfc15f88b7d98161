package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rebound/cmd/bench/engine"
	"rebound/cmd/bench/probe"
	"rebound/latency"
	"rebound/latency/compare"
	"rebound/latency/host"
	"rebound/latency/page"
	"rebound/latency/report"
	"rebound/nic"
	"rebound/nic/bus/pci"
)

// errNoResult is a signal that came too early.
var errNoResult = errors.New("interrupted before there was a result: no report is written")

// finish writes and prints one report for each cell that measured something.
func (s *session) finish() error {
	facts := host.Collect(os.DirFS("/"), s.place.core)
	var all []*report.Report
	var failed error
	for _, c := range s.cells {
		if c.stream == nil || c.stream.Counts().Sent == 0 || c.silent() {
			continue
		}
		rep := s.report(c, facts)
		if err := report.Write(c.dir, rep, page.Report); err != nil {
			// What was measured is not to be had again: it is at least to be read.
			failed = errors.Join(failed, err, page.PrintReport(s.stdout, rep))
			continue
		}
		rep.Dir = c.dir
		all = append(all, rep)
		if s.paired || len(s.cells) == 1 {
			failed = errors.Join(failed, printReport(s.stdout, rep))
		}
	}
	switch {
	case len(all) == 0 && failed == nil && s.stop.Load():
		return errNoResult
	case len(s.cells) == 1 || len(all) == 0:
		return failed
	case s.paired && len(all) > 1:
		return errors.Join(failed, page.PrintComparison(s.stdout, compare.Reports(all[0], all[1:]...)))
	}
	return errors.Join(failed, sweepTable(s.stdout, all))
}

// printReport prints a report, its further series and its notes, and where it lies.
func printReport(w io.Writer, rep *report.Report) error {
	if err := page.PrintReport(w, rep); err != nil {
		return err
	}
	for _, s := range rep.Series {
		if s.Name == latency.MainSeries || s.Name == latency.UncorrectedSeries {
			continue
		}
		m := s.Summary
		fmt.Fprintf(w, "%s:  p50 %s  p99 %s  p99.9 %s  p99.99 %s  max %s  (%d)\n", s.Name, latency.FormatNS(float64(m.P50)),
			latency.FormatNS(float64(m.P99)), latency.FormatNS(float64(m.P999)), latency.FormatNS(float64(m.P9999)), latency.FormatNS(float64(m.Max)), m.Count)
	}
	for _, n := range rep.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	_, err := fmt.Fprintf(w, "report %s\n\n", rep.Dir)
	return err
}

// report makes a cell's report.
func (s *session) report(c *cell, facts host.Facts) *report.Report {
	rep := report.New("bench", report.RoundTrip)
	rep.Label = c.label()
	rep.Session = s.id
	rep.Host = facts
	n := c.stream.Counts()
	rep.Traffic = report.Traffic{Target: c.flow.Dst.String(), Protocol: c.proto.String(), IPVersion: 4, FrameSize: c.flow.Size,
		Mode: "closed", Outstanding: 1, Transport: c.transport}
	if c.flow.Dst.Is6() {
		rep.Traffic.IPVersion = 6
	}
	if c.proto != probe.ICMP {
		rep.Traffic.Target = netip.AddrPortFrom(c.flow.Dst, c.flow.DstPort).String()
	}
	if c.rates[0] > 0 {
		rep.Traffic.Mode, rep.Traffic.Rate, rep.Traffic.Outstanding = "open", c.rates[0], 0
	}
	rep.Counts = report.Counts{Sent: n.Sent, Received: n.Received, Lost: n.Lost(), Late: n.Late, Duplicates: n.Duplicates,
		Reordered: n.Reordered, Corrupt: n.Corrupt, SendFailed: n.Unsent}
	c.device(rep)
	rep.Fill(c.rec.Recording())
	rep.Series = dropEmpty(rep.Series)
	rep.Add(latency.GapSeries, latency.FromHot(&c.stream.Gap, s.clock))
	rep.Traffic.Warmup = c.stream.Warmup / int64(max(len(rep.Runs), 1))
	if s.jitter != nil {
		rep.Add(latency.JitterSeries, s.jitter)
	}
	rep.Notes = append(rep.Notes, c.notes...)
	if s.stop.Load() {
		rep.Notes = append(rep.Notes, "interrupted by a signal: what was measured until then is here")
	}
	rep.Notes = append(rep.Notes, c.remarks(n)...)
	if late := time.Duration(s.clock.Nanoseconds(c.stream.Behind)); late > slack(s.duration) {
		rep.Notes = append(rep.Notes, fmt.Sprintf("this host could not keep to the rate asked for: a run ended %v behind its schedule", late.Round(time.Microsecond)))
	}
	if st := c.stream.STAMP(); st != nil {
		stampRemarks(rep, st)
	}
	if s.anonymous {
		rep.Anonymize()
	}
	return rep
}

// dropEmpty leaves out series that no stamp came for.
func dropEmpty(all []*latency.Series) []*latency.Series {
	var out []*latency.Series
	for _, s := range all {
		if s.Summary.Count > 0 || s.Name == latency.MainSeries {
			out = append(out, s)
		}
	}
	return out
}

// device describes the interface. One of the kernel's that stands on a model is a model.
func (c *cell) device(rep *report.Report) {
	defer func() {
		if d := &rep.Device; d.Backend == string(nic.Socket) && pci.InterfaceIsModel(d.Device) {
			d.Backend = string(nic.Sim)
			d.Notes = append(d.Notes, "the interface is the kernel's driver on a device model: its timestamps are the model's, not a card's")
		}
	}()
	if c.port.device == nil {
		rep.Device = report.Device{Driver: "socket", Device: c.path.Interface, MTU: c.path.MTU, Backend: string(nic.Socket),
			Notes: []string{"through the kernel's own socket: both ways through its network stack are part of the round trip"}}
		return
	}
	i := c.port.device.Info()
	rep.Device = report.Device{Driver: i.Driver, Device: i.Device, Model: i.Model, MAC: i.MAC, MTU: i.MTU, Queues: i.Queues,
		Backend: string(i.Backend), Push: i.Push, Notes: i.Notes}
	if l, err := c.port.device.Link(); err == nil {
		rep.Device.Speed = l.Speed
	}
	var st nic.Stats
	if err := c.port.device.ReadStats(&st); err == nil {
		rep.Device.Counters = map[string]uint64{"rx_frames": st.RxFrames, "tx_frames": st.TxFrames, "rx_dropped": st.RxDropped,
			"rx_errors": st.RxErrors, "tx_dropped": st.TxDropped, "tx_errors": st.TxErrors, "resets": st.Resets}
		for k, v := range st.Extra {
			rep.Device.Counters[k] = v
		}
	}
}

// remarks puts into words what the counts alone do not say.
func (c *cell) remarks(n engine.Counts) []string {
	var out []string
	say := func(count int64, format string, args ...any) {
		if count > 0 {
			out = append(out, fmt.Sprintf("%d "+format, append([]any{count}, args...)...))
		}
	}
	say(n.Unsummed, "replies carried no finished UDP checksum (left to an offload, as on a veth pair); all else in them was right")
	var wrong []string
	for f, k := range c.stream.Fields {
		if k > 0 {
			wrong = append(wrong, fmt.Sprintf("%v %d", probe.Field(f), k))
		}
	}
	say(n.Corrupt, "corrupt replies, by the first thing wrong in each: %s", strings.Join(wrong, ", "))
	say(n.Spoiled, "probes were answered by corrupt replies only: neither received nor lost")
	say(n.Refused, "ICMP errors, the last %s", icmpError(c.stream.Error, c.flow.Dst.Is6()))
	if p := c.port.socket; p != nil {
		say(p.Refused, "errors that the kernel reported on the socket, the last: %v", p.LastRefusal)
	}
	say(n.Abandoned, "probes were not awaited to the end of their time-out because of the interruption: neither sent nor lost")
	say(n.Stray, "replies to probes older than the bench remembers: they count as lost")
	say(c.stream.Full, "times that the transmit ring was full and the bench had to wait")
	if c.port.stamper != nil {
		t := c.port.stamps
		out = append(out, fmt.Sprintf("timestamps asked for; in force: kernel receive %t, kernel send %t, card receive %t, card send %t",
			t.RxSoftware, t.TxSoftware, t.RxHardware, t.TxHardware))
	}
	return out
}

// stampRemarks says what the reflector's numbers and error estimate allow to be said.
func stampRemarks(rep *report.Report, st *engine.STAMP) {
	lost := rep.Counts.Lost
	switch {
	case st.Stateful:
		forward := min(st.LostForward, lost)
		backward := lost - forward
		rep.Counts.LostForward, rep.Counts.LostBackward = &forward, &backward
		rep.Notes = append(rep.Notes, "the reflector numbers its own packets: loss is told apart by direction")
	case lost > 0:
		rep.Notes = append(rep.Notes, "the reflector repeats the sender's numbers (stateless), or lost nothing on the way there: which direction lost the probes cannot be told")
	}
	clock := "not synchronised"
	if st.Synchronised {
		clock = "synchronised"
	}
	switch {
	case st.NoEstimate:
		rep.Notes = append(rep.Notes, "the reflector gives no usable error estimate (multiplier 0); it calls its clock "+clock)
	default:
		rep.Notes = append(rep.Notes, fmt.Sprintf("the reflector calls its clock %s, wrong by at most %s; residence is a difference on that one clock", clock, latency.FormatNS(st.WorstError)))
	}
	if st.Impossible > 0 {
		rep.Notes = append(rep.Notes, fmt.Sprintf("%d residence times were below zero or above the round trip: left out of residence and network", st.Impossible))
	}
	if st.TTL < 64 {
		rep.Notes = append(rep.Notes, fmt.Sprintf("probes reached the reflector with a hop limit of %d: %d routers on the way", st.TTL, 64-int(st.TTL)))
	}
}

// writable checks that a report can be written before time is spent on measuring.
func writable(dir string) error {
	parent := dir
	for {
		info, err := os.Stat(parent)
		if err == nil && !info.IsDir() {
			return usage("-out %s: %s is not a folder", dir, parent)
		}
		if err == nil {
			break
		}
		if parent == filepath.Dir(parent) {
			return fmt.Errorf("-out %s: %w", dir, err)
		}
		parent = filepath.Dir(parent)
	}
	f, err := os.CreateTemp(parent, ".bench-*")
	if err != nil {
		return fmt.Errorf("-out %s: %w", dir, err)
	}
	f.Close()
	return os.Remove(f.Name())
}
