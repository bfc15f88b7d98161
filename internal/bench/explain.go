package bench

import (
	"flag"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const explainHelp = `usage: rebound-bench explain [flags] DIR RESPONDER-DIR

Attributes the slowest round trips of a report with the help of the responder's own report of the same time (stats.report): ICMP and UDP, too,
are then divided between the responder's host and the network, and the responder's causes are named. The clocks of the hosts are aligned by
the round trips themselves. Writes report.json and report.html of DIR again.

`

func explainCommand(e *command.Env, args []string) error {
	fs := flag.NewFlagSet("explain", flag.ContinueOnError)
	clockError := fs.Duration("clock-error", -1,
		"how far the hosts' clocks differ at most, such as 100us; needed only if the round trips do not show it")
	if err := e.Parse(fs, args, explainHelp); err != nil {
		return err
	}
	if fs.NArg() != 2 {
		return process.Usagef("which two reports? Give the folder of the bench's, and that of the responder's")
	}
	dir := fs.Arg(0)
	rep, err := report.Read(dir)
	if err != nil {
		return err
	}
	responder, err := report.Read(fs.Arg(1))
	if err != nil {
		return err
	}
	if err := explain(rep, responder, *clockError); err != nil {
		return fmt.Errorf("%s and %s: %w", dir, fs.Arg(1), err)
	}
	for _, line := range rep.Attribution.Lines() {
		fmt.Fprintln(e.Stdout, line)
	}
	fmt.Fprintf(e.Stdout, "Clocks %s.\n", rep.Attribution.Aligned)
	at := filepath.Join(dir, report.HTMLFile)
	return ifWanted(e.Stdout, at, func() error {
		err := rep.Rewrite(page.Report)
		if err == nil {
			fmt.Fprintf(e.Stdout, "page %s\n", sanitize.Text(at))
		}
		return err
	})()
}

// explain adds what a responder recorded to a report's attribution. clockError is negative if it is unknown.
func explain(rep, responder *report.Report, clockError time.Duration) error {
	switch {
	case rep.Attribution == nil:
		return process.Usagef("the first has no attributed round trips (measure with -explain, the default)")
	case responder.Metric != report.Turnaround:
		return process.Usagef("the second is a report of %s, not of a responder", responder.Metric)
	case responder.Gaps == nil && responder.Device.Driver == "xdp":
		return process.Usagef("the responder's driver xdp answers in the kernel, and has no loop whose gaps it could record")
	case responder.Gaps == nil:
		return process.Usagef("the responder's report has no times of its polling gaps: an older version wrote it")
	}
	if err := responder.ReadGaps(); err != nil {
		return err
	}
	loop := &attribution.Loop{From: responder.Gaps.From, Missed: responder.Gaps.Missed,
		Start: responder.Start.UnixNano(), End: responder.End.UnixNano(), How: responder.Gaps.How}
	loop.Doubt = misfit(rep, responder)
	loop.Same = loop.Doubt == "" && len(responder.Addresses) > 0
	for _, g := range responder.Gaps.All {
		loop.Intervals = append(loop.Intervals, attribution.Interval{Start: g.Start, End: g.Start + g.Duration,
			Core: g.Core, Text: g.Text, Name: g.Name, Weak: g.Weak})
	}
	return rep.Attribution.AddResponder(loop, rep.Main().Total.Count, int64(clockError))
}

// misfit returns why a responder's report is not of the one that answered, or "".
func misfit(rep, responder *report.Report) string {
	target, err := netip.ParseAddr(rep.Traffic.Target)
	if with, bad := netip.ParseAddrPort(rep.Traffic.Target); bad == nil {
		target, err = with.Addr(), nil
	}
	if target = target.WithZone("").Unmap(); err == nil && len(responder.Addresses) > 0 &&
		!slices.Contains(responder.Addresses, target.String()) {
		return fmt.Sprintf("the probes went to %v, and it answers for %s", target,
			strings.Join(responder.Addresses, ", "))
	}
	replies := rep.Counts.Received + rep.Counts.Late
	if n := responder.Counts.Sent; n < replies && !responder.Start.After(rep.Start) && !responder.End.Before(rep.End) {
		return fmt.Sprintf("%s came, and it answered %s", sanitize.Count(replies, "reply"),
			sanitize.Count(n, "request"))
	}
	return ""
}
