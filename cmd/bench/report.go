package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"rebound/latency"
)

const reportHelp = `usage: bench report DIR [...]

Prints saved reports and writes their report.html anew.

`

func reportCommand(e *env, args []string) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	if err := e.parse(fs, args, reportHelp); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usage("which report? Give its folder")
	}
	for _, dir := range fs.Args() {
		rep, err := latency.Read(dir)
		if err != nil {
			return err
		}
		if err := printReport(e.stdout, rep); err != nil {
			return err
		}
		page := filepath.Join(dir, "report.html")
		if err := writePage(page, rep); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "page %s\n", page)
	}
	return nil
}

// writePage replaces the page only by a whole one.
func writePage(page string, rep *latency.Report) error {
	f, err := os.CreateTemp(filepath.Dir(page), ".report-*.html")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = latency.WriteHTML(f, rep)
	if second := f.Close(); err == nil {
		err = second
	}
	if err == nil {
		err = os.Chmod(f.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(f.Name(), page)
	}
	if err != nil {
		return fmt.Errorf("%s is not written: %w", page, err)
	}
	return nil
}
