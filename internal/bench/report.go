package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/plain"
	"github.com/rebound-nic/rebound/latency/report"
)

const reportHelp = `usage: rebound-bench report [-v] [-anonymous] [-json] [-responder DIR] DIR|FILE [...]

Prints saved reports and writes their report.html again. Of a DIR that holds several reports it writes index.html, which ranks them. A FILE is what another tool wrote (ping, fping, HdrHistogram, wrk2, fortio, ...:
docs/other-tools.md); -html writes its page.

`

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
		if all := reportFolders(dir); all != nil {
			if *anonymous || *html != "" || *far != "" {
				return exit.Usagef("%s holds several reports: -anonymous, -html and -responder are for one (name it)", dir)
			}
			if err := e.overview(dir, all); err != nil {
				return err
			}
			continue
		}
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

// reportFolders returns the folders of reports below dir, nil if it is itself a report, or has none.
func reportFolders(dir string) []string {
	if _, err := os.Stat(filepath.Join(dir, report.ReportFile)); err == nil {
		return nil
	}
	found, err := reportsIn(dir)
	if err != nil || len(found) == 0 {
		return nil
	}
	if _, err := os.Stat(filepath.Join(found[0], report.ReportFile)); err != nil { // files, which may be other tools'
		return nil
	}
	return found
}

// overview writes the page that compares all reports below a folder, index.html in it. It links to the reports' pages
// if they exist.
func (e *env) overview(dir string, found []string) error {
	var items []page.Item
	for _, at := range found {
		rep, err := report.Read(at)
		if err != nil {
			return err
		}
		name, href := inside(dir, at), ""
		if _, err := os.Stat(filepath.Join(at, report.HTMLFile)); err == nil {
			href = (&url.URL{Path: filepath.ToSlash(name) + "/" + report.HTMLFile}).String()
		}
		items = append(items, page.Item{Link: page.Link{Name: name, Href: href}, R: rep})
	}
	path := filepath.Join(dir, "index.html")
	fmt.Fprintln(e.stdout, page.OverviewAnswer(items))
	return e.writePage(path, func(w io.Writer) error { return page.Overview(w, plain.Count(len(items), "report"), items, nil) })
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
