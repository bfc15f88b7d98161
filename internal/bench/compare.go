package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/prom"
	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/whole"
)

const compareHelp = `usage: rebound-bench compare [flags] A B [C ...]

Prints by how much B is slower or faster than A in one sentence, and then the percentiles side by side, and how far the runs of each are
shifted from those of A, with a confidence interval. + is slower, - faster, ~ no change seen, and ? cannot tell: fewer than eight runs
of a side, or a shift that drift can explain because the two were measured one after the other and not alternately (rebound-bench
run -ab). If nothing changed, at most 5 % of tables show any + or -; rows that -fail-if names are tested at 1 % each. -v prints all
rows and notes; "smallest visible" is the smallest change that these runs could have shown. Reasons why reports cannot be compared are printed before any number.

A folder may also be a file that another tool wrote (ping, fping, HdrHistogram, wrk2, fortio, ...: docs/other-tools.md), or a folder that
has one such file for each run. What the file's format cannot support limits the verdicts, and a note says so.

In the place of a folder may stand prom:URL?target=TARGET&from=TIME&to=TIME: the native histograms that a Prometheus keeps of a watch.
TIME is RFC 3339, seconds since 1970, now, or now-2h. &windows=N cuts it into N runs (default 12); any other &LABEL=VALUE chooses among
several series of the target.

  rebound-bench compare out/before out/after
  rebound-bench compare 'prom:http://127.0.0.1:9090?target=icmp:10.0.0.2&from=now-25h&to=now-24h' \
                'prom:http://127.0.0.1:9090?target=icmp:10.0.0.2&from=now-1h&to=now'     what a Prometheus keeps of rebound-bench watch
  rebound-bench compare -fail-if 'p99>+5%+200ns' out/before out/after      exit status 3 if p99 is slower, by more
                                                                   than both; 1 if that cannot be told

`

func compareCommand(e *env, args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	html := fs.String("html", "", "also write the comparison as one self-contained page to `FILE`, with overlaid curves")
	limits := fs.String("fail-if", "", "exit with 3 if B, or any further report, is slower than A by more than `LIMITS` allow, like 'p99>+5%+200ns',\n"+
		"and with 1 if that cannot be determined; a relative and an absolute part must both be exceeded")
	verbose := fs.Bool("v", false, "print all percentiles and notes, how they were tested, and the counts of frames")
	options := foreignFlags(fs)
	dirs, err := e.parseMixed(fs, args, compareHelp, "")
	if err != nil {
		return err
	}
	if len(dirs) < 2 {
		return exit.Usagef("want at least two reports, got %d", len(dirs))
	}
	var bounds []compare.Limit
	if *limits != "" {
		var err error
		if bounds, err = compare.ParseLimits(*limits); err != nil {
			return exit.Usagef("-fail-if %q: %w", *limits, err)
		}
	}
	reports := make([]*report.Report, len(dirs))
	var remarks []string
	for i, d := range dirs {
		var err error
		if strings.HasPrefix(d, prom.Prefix) {
			reports[i], remarks, err = fromProm(d, remarks)
		} else {
			reports[i], err = openReport(d, options)
		}
		if err != nil {
			return err
		}
	}
	c := compare.Against(bounds, reports[0], reports[1:]...)
	c.Notes = append(c.Notes, remarks...)
	show := page.PrintSummary
	if *verbose {
		show = page.PrintComparison
	}
	failed := show(e.stdout, c)
	if *html != "" {
		failed = errors.Join(failed, whole.Write(*html, func(w io.Writer) error { return page.Comparison(w, c) }))
	}
	if bounds == nil {
		return failed
	}
	worse, err := c.Exceeded()
	if len(worse) > 0 {
		err = fmt.Errorf("%w: %s", exit.ErrWorse, strings.Join(worse, "; "))
	}
	return errors.Join(err, failed)
}

// fromProm loads a report from a Prometheus, and adds remarks about it.
func fromProm(text string, remarks []string) (*report.Report, []string, error) {
	s, err := prom.Parse(text, time.Now())
	if err != nil {
		return nil, remarks, exit.Usagef("%w", err)
	}
	l, err := prom.Load(context.Background(), &prom.Server{Base: s.Base}, s)
	if err != nil {
		return nil, remarks, err
	}
	remarks = append(remarks, prom.Advice(s, l.Resolution)...)
	for _, n := range l.Notes {
		remarks = append(remarks, s.Name()+": "+n)
	}
	return l.Report, remarks, nil
}
