package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const historyHelp = `usage: rebound-bench history [flags] DIR|FILE [...]

Draws how results changed over many reports (of nights, commits, kernels), and finds where their level changed (E-divisive with a
permutation test). If nothing changed, at most 5 % of histories show any change. A DIR is a report, or is searched for reports; a FILE is
another tool's. They are in the order of their start times. Reports of different measurements are drawn in separate figures.

  rebound-bench history nightly/
  rebound-bench history -stat p99,p99.9 nightly/ -out tail.html

`

// falseHistories is the share of unchanged histories that may show a change.
const falseHistories = 0.05

func historyCommand(e *command.Env, args []string) error {
	fs := flag.NewFlagSet("history", flag.ContinueOnError)
	names := fs.String("stat", "p50,p99", "`NAMES` of statistics: min, max, mean, or percentiles like p99.9")
	out := fs.String("out", "history.html", "`FILE` for the page")
	options := foreign.Flags(fs)
	paths, err := e.ParseMixed(fs, args, historyHelp, "")
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return process.Usagef("which reports? Give the folder that they are in")
	}
	var stats []compare.Stat
	for _, name := range strings.Split(*names, ",") {
		st, err := compare.ParseStat(strings.TrimSpace(name))
		if err != nil {
			return process.Usagef("-stat: %w", err)
		}
		stats = append(stats, st)
	}
	h := compare.NewHistory(stats...)
	var unread []string
	n := 0
	for _, path := range paths {
		found, err := reportsIn(path)
		if err != nil {
			return err
		}
		for _, dir := range found {
			r, err := foreign.Open(dir, options)
			if err != nil && len(found) == 1 && dir == path {
				return err
			} else if err != nil {
				unread = append(unread, err.Error())
				continue
			}
			h.Add(inside(path, dir), r)
			n++
		}
	}
	if n == 0 {
		return fmt.Errorf("no report is in %s: want folders that rebound-bench run wrote (they hold %s), or files of other tools: %s", strings.Join(paths, ", "), report.ReportFile, strings.Join(unread, "; "))
	}
	drawn := &page.History{}
	drawn.Lines, drawn.Notes = h.Lines(falseHistories)
	drawn.Lost = h.Lost()
	for _, why := range unread {
		drawn.Notes = append(drawn.Notes, "left out: "+sanitize.Text(why))
	}
	failed := page.PrintHistory(e.Stdout, drawn)
	return errors.Join(failed, e.WritePage(*out, func(w io.Writer) error { return page.WriteHistory(w, drawn) }))
}

// inside is the history's name for a report found in a path.
func inside(path, dir string) string {
	if name, err := filepath.Rel(path, dir); err == nil && name != "." {
		return sanitize.Text(name)
	}
	return sanitize.Text(filepath.Base(dir))
}

// reportsIn returns the reports that a path names: itself, or the report folders below it, ordered by name, or, if
// there are none, its files, which may be other tools'. Hidden ones are left out.
func reportsIn(path string) (found []string, err error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return []string{path}, err
	}
	var files []string
	err = filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case at != path && strings.HasPrefix(d.Name(), "."): // temporary files of a bench that was killed
			if d.IsDir() {
				return filepath.SkipDir
			}
		case d.IsDir():
			if _, err := os.Stat(filepath.Join(at, report.ReportFile)); err == nil {
				found = append(found, at)
				return filepath.SkipDir
			}
		case d.Type().IsRegular() && filepath.Ext(at) != ".html":
			files = append(files, at)
		}
		return nil
	})
	if found == nil {
		found = files
	}
	return found, err
}
