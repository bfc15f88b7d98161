package bench

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const reportHelp = `usage: rebound-bench report [-v] [-anonymous] [-json] [-responder DIR] DIR|FILE [...]

Prints saved reports and writes their report.html again. Of a DIR that holds several reports it writes index.html, which ranks them. A FILE is what another tool wrote (ping, fping, HdrHistogram, wrk2, fortio, ...:
docs/use/other-tools.md); -html writes its page. A page that git tracks, or in a read-only folder, is only written where -html says.

`

const anonymousHelp = "leave identifying data out of the report: host name, kernel command line, the kernel release " +
	"behind its\nversion, this command line, MAC addresses, and IP addresses that are not private. CPU, settings, times " +
	"and the names\nthat you gave remain"

func reportCommand(e *command.Env, args []string) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	anonymous := fs.Bool("anonymous", false, anonymousHelp+". It rewrites report.json, too")
	far := fs.String("responder", "",
		"`FOLDER` of the responder's own report of the same time (stats.report): how much of the tail its gaps can explain")
	asJSON := fs.Bool("json", false, "print the reports as JSON, and write nothing")
	verbose := fs.Bool("v", false, verboseHelp)
	html := fs.String("html", "", "write the page to `FILE` and not into the report's folder")
	options := foreign.Flags(fs)
	if err := e.Parse(fs, args, reportHelp); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return process.Usagef("which report? Give its folder")
	}
	if *asJSON {
		return reportJSON(e, fs.Args(), *anonymous, options)
	}
	if *html != "" && fs.NArg() > 1 {
		return process.Usagef("-html: one page for %d reports (give one, or use rebound-bench compare -html)",
			fs.NArg())
	}
	var responder *report.Report
	if *far != "" {
		var err error
		if responder, err = report.Read(*far); err != nil {
			return err
		}
		if responder.Metric != report.Turnaround {
			return process.Usagef("-responder %s: that is a report of %s, not of a responder", *far, responder.Metric)
		}
	}
	var failed error
	for _, dir := range fs.Args() {
		if all := reportFolders(dir); all != nil {
			if *anonymous || *far != "" {
				return process.Usagef("%s holds several reports: -anonymous and -responder are for one (name it)", dir)
			}
			if err := overview(e, dir, *html, all); err != nil {
				return err
			}
			continue
		}
		rep, err := foreign.Open(dir, options)
		if err != nil {
			return errors.Join(failed, err)
		}
		rewrite := rep.RewritePage
		if *anonymous {
			rep.Anonymize()
			rewrite = rep.Rewrite
		}
		failed = errors.Join(failed, printReport(e.Stdout, rep, *verbose))
		if responder != nil {
			said := rep.FarGaps(responder)
			if said == "" {
				said = "the responder's report has no gaps, or this one no tail"
			}
			fmt.Fprintf(e.Stdout, "%s\n", said)
		}
		if *html != "" {
			failed = errors.Join(failed, e.WritePage(*html, func(w io.Writer) error { return page.Report(w, rep) }))
			continue
		}
		if rep.Foreign != nil {
			continue
		}
		at := filepath.Join(dir, report.HTMLFile)
		write := func() error {
			err := rewrite(page.Report)
			if err == nil {
				fmt.Fprintf(e.Stdout, "page %s\n", sanitize.Text(at))
			}
			return err
		}
		if !*anonymous {
			write = ifWanted(e.Stdout, at, write)
		}
		failed = errors.Join(failed, write()) // the next ones may fit
	}
	return failed
}

// ifWanted returns a write of the page at path that leaves a page that git tracks, or a read-only folder, alone and
// prints that.
func ifWanted(w io.Writer, path string, write func() error) func() error {
	return func() (err error) {
		if tracked(path) {
			_, err = fmt.Fprintf(w, "page not written: git tracks %s (-html FILE writes it)\n", sanitize.Text(path))
		} else if err = write(); errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
			_, err = fmt.Fprintf(w, "page not written: %s is read-only (-html FILE writes it elsewhere)\n",
				sanitize.Text(filepath.Dir(path)))
		}
		return err
	}
}

// tracked reports whether git tracks a file.
func tracked(path string) bool {
	return exec.Command("git", "-C", filepath.Dir(path), "ls-files", "--error-unmatch", "--",
		filepath.Base(path)).Run() == nil
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

// overview writes the page that compares all reports below a folder: to html, or to index.html in the folder if html is
// empty. That links to the reports' pages if they exist.
func overview(e *command.Env, dir, html string, found []string) error {
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
	path := cmp.Or(html, filepath.Join(dir, "index.html"))
	fmt.Fprintln(e.Stdout, page.OverviewAnswer(items))
	write := func() error {
		return e.WritePage(path, func(w io.Writer) error {
			return page.Overview(w, sanitize.Count(len(items), "report"),
				items, nil)
		})
	}
	if html == "" {
		write = ifWanted(e.Stdout, path, write)
	}
	return write()
}

func reportJSON(e *command.Env, dirs []string, anonymous bool, options *foreign.Options) error {
	var all []*report.Report
	for _, dir := range dirs {
		rep, err := foreign.Open(dir, options)
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
	return writeJSON(e.Stdout, all, nil, nil)
}
