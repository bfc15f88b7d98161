// Package comparison is the command compare of rebound-bench and rebound-watch.
package comparison

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
)

// Help explains the table and the flags of the command; both programs print it.
const Help = `Prints by how much B is slower or faster than A in one sentence, and then the percentiles side by side, and how far the runs of each are
shifted from those of A, with a confidence interval. + is slower, - faster, ~ no change seen, and ? cannot tell: fewer than eight runs
of a side, or a shift that drift can explain because the two were measured one after the other and not alternately (rebound-bench
run -ab). If nothing changed, at most 5 % of tables show any + or -; rows that -fail-if names are tested at 1 % each. -v prints all
rows and notes; "smallest visible" is the smallest change that these runs could have shown. Reasons why reports cannot be compared are printed before any number.

A folder may also be a file that another tool wrote (ping, fping, HdrHistogram, wrk2, fortio, ...: docs/use/other-tools.md), or a folder that
has one such file for each run. What the file's format cannot support limits the verdicts, and a note says so.

`

// Open reads the report that an argument names. Its remarks become notes of the comparison.
type Open func(name string, o *foreign.Options) (rep *report.Report, remarks []string, err error)

// Command compares the reports that args name, which open reads. help is the whole help of the program's command.
func Command(e *command.Env, args []string, help string, open Open) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	html := fs.String("html", "",
		"also write the comparison as one self-contained page to `FILE`, with overlaid curves")
	limits := fs.String("fail-if", "",
		"exit with 3 if B, or any further report, is slower than A by more than `LIMITS` allow, like 'p99>+5%+200ns',\n"+
			"and with 1 if that cannot be determined; a relative and an absolute part must both be exceeded")
	verbose := fs.Bool("v", false, "print all percentiles and notes, how they were tested, and the counts of frames")
	asJSON := fs.Bool("json", false, "print the comparison as JSON: answer, verdicts, shifts and intervals in ns")
	markdown := fs.Bool("markdown", false, "print the answer and the table as Markdown, for a ticket")
	options := foreign.Flags(fs)
	dirs, err := e.ParseMixed(fs, args, help, "")
	if err != nil {
		return err
	}
	if len(dirs) < 2 {
		return process.Usagef("want at least two reports, got %d", len(dirs))
	}
	if *asJSON && *markdown {
		return process.Usagef("-json and -markdown: give one of them")
	}
	var bounds []compare.Limit
	if *limits != "" {
		var err error
		if bounds, err = compare.ParseLimits(*limits); err != nil {
			return process.Usagef("-fail-if %q: %w", *limits, err)
		}
	}
	reports := make([]*report.Report, len(dirs))
	var remarks []string
	for i, d := range dirs {
		var more []string
		if reports[i], more, err = open(d, options); err != nil {
			return err
		}
		remarks = append(remarks, more...)
	}
	c := compare.Against(bounds, reports[0], reports[1:]...)
	c.Notes = append(c.Notes, remarks...)
	show := page.PrintSummary
	if *verbose {
		show = page.PrintComparison
	}
	switch {
	case *asJSON:
		show = page.PrintJSON
	case *markdown:
		show = page.PrintMarkdown
	}
	failed := show(e.Stdout, c)
	if *html != "" {
		failed = errors.Join(failed, atomicfile.Write(*html, func(w io.Writer) error { return page.Comparison(w, c) }))
	}
	if bounds == nil {
		return failed
	}
	worse, err := c.Exceeded()
	if len(worse) > 0 {
		err = fmt.Errorf("%w: %s", process.ErrWorse, strings.Join(worse, "; "))
	}
	return errors.Join(err, failed)
}
