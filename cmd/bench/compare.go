package main

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"rebound/cmd/internal/exit"
	"rebound/latency/compare"
	"rebound/latency/page"
	"rebound/latency/report"
)

const compareHelp = `usage: bench compare [flags] A B [C ...]

Prints the percentiles of report folders side by side, and by how much the runs of each are shifted against those of A, with
the interval at 99 %. + and - mark what is slower and faster, ~ what is within the noise, ? what cannot be told: fewer than
eight runs of a side, or a shift that may be drift, since the two were measured one after the other and not by turns
(bench run -ab). What makes reports not comparable is said before any number.

  bench compare out/before out/after
  bench compare -fail-if 'p99>+5%+200ns' out/before out/after      exit status 3 if p99 is slower, by more
                                                                   than both; 1 if that cannot be told

`

func compareCommand(e *env, args []string) error {
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	html := fs.String("html", "", "also write the comparison as one self-contained page to `FILE`, with the curves over each other")
	limits := fs.String("fail-if", "", "exit with 3 if B, or any further report, is slower than A by more than `LIMITS` allow, like 'p99>+5%+200ns',\n"+
		"and with 1 if that cannot be told; a relative and an absolute part must both be exceeded")
	var dirs []string
	for { // flags may stand after the folders, too
		if err := e.parse(fs, args, compareHelp); err != nil {
			return err
		}
		if fs.NArg() == 0 {
			break
		}
		dirs, args = append(dirs, fs.Arg(0)), fs.Args()[1:]
	}
	if len(dirs) < 2 {
		return exit.Usagef("want at least two report folders, got %d", len(dirs))
	}
	var bounds []compare.Limit
	if *limits != "" {
		var err error
		if bounds, err = compare.ParseLimits(*limits); err != nil {
			return exit.Usagef("-fail-if %q: %w", *limits, err)
		}
	}
	reports := make([]*report.Report, len(dirs))
	for i, d := range dirs {
		var err error
		if reports[i], err = report.Read(d); err != nil {
			return err
		}
	}
	c := compare.Reports(reports[0], reports[1:]...)
	if err := page.PrintComparison(e.stdout, c); err != nil {
		return err
	}
	if *html != "" {
		f, err := os.Create(*html)
		if err != nil {
			return err
		}
		err = page.Comparison(f, c)
		if second := f.Close(); err == nil {
			err = second
		}
		if err != nil {
			os.Remove(*html)
			return fmt.Errorf("%s is not written: %w", *html, err)
		}
	}
	if bounds == nil {
		return nil
	}
	worse, err := c.Exceeded(bounds)
	if len(worse) > 0 {
		return fmt.Errorf("%w: %s", exit.ErrWorse, strings.Join(worse, "; "))
	}
	return err
}
