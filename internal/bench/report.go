package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
)

const reportHelp = `usage: rebound-bench report [-v] [-anonymous] [-json] [-responder DIR] DIR|FILE [...]

Prints saved reports and writes their report.html again. A FILE is what another tool wrote (ping, fping, HdrHistogram, wrk2, fortio, ...:
docs/other-tools.md); -html writes its page.

`

// anonymousHelp is the text of every -anonymous.
const anonymousHelp = "leave identifying data out of the report: host name, kernel command line, the kernel release " +
	"behind its\nversion, this command line, MAC addresses, and IP addresses that are not private. CPU, settings, times " +
	"and the names\nthat you gave remain"

func reportCommand(e *env, args []string) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	anonymous := fs.Bool("anonymous", false, anonymousHelp+". It rewrites report.json, too")
	far := fs.String("responder", "", "`FOLDER` of the responder's own report of the same time (stats.report): how much of the tail its gaps can explain")
	asJSON := fs.Bool("json", false, "print the reports as JSON, and write nothing")
	verbose := fs.Bool("v", false, verboseHelp)
	html := fs.String("html", "", "write the page to `FILE` and not into the report's folder")
	options := foreignFlags(fs)
	if err := e.parse(fs, args, reportHelp); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return exit.Usagef("which report? Give its folder")
	}
	if *asJSON {
		return e.reportJSON(fs.Args(), *anonymous, options)
	}
	if *html != "" && fs.NArg() > 1 {
		return exit.Usagef("-html: one page for %d reports (give one, or use rebound-bench compare -html)", fs.NArg())
	}
	var responder *report.Report
	if *far != "" {
		var err error
		if responder, err = report.Read(*far); err != nil {
			return err
		}
		if responder.Metric != report.Turnaround {
			return exit.Usagef("-responder %s: that is a report of %s, not of a responder", *far, responder.Metric)
		}
	}
	var failed error
	for _, dir := range fs.Args() {
		rep, err := openReport(dir, options)
		if err != nil {
			return errors.Join(failed, err)
		}
		rewrite := rep.RewritePage
		if *anonymous {
			rep.Anonymize()
			rewrite = rep.Rewrite
		}
		failed = errors.Join(failed, printReport(e.stdout, rep, *verbose))
		if responder != nil {
			said := rep.FarGaps(responder)
			if said == "" {
				said = "the responder's report has no gaps, or this one no tail"
			}
			fmt.Fprintf(e.stdout, "%s\n", said)
		}
		if *html != "" {
			failed = errors.Join(failed, e.writePage(*html, func(w io.Writer) error { return page.Report(w, rep) }))
			continue
		}
		if rep.Foreign != nil {
			continue
		}
		if err := rewrite(page.Report); err != nil { // the next ones may fit
			failed = errors.Join(failed, err)
			continue
		}
		fmt.Fprintf(e.stdout, "page %s\n", plain.Text(filepath.Join(dir, "report.html")))
	}
	return failed
}

func (e *env) reportJSON(dirs []string, anonymous bool, options *foreign.Options) error {
	var all []*report.Report
	for _, dir := range dirs {
		rep, err := openReport(dir, options)
		if err != nil {
			return err
		}
		if rep.Foreign.Partial() {
			return fmt.Errorf("%s: -json needs a whole distribution, and the file has a part of it only", dir)
		}
		if anonymous {
			rep.Anonymize()
		}
		all = append(all, rep)
	}
	return writeJSON(e.stdout, all, nil)
}
