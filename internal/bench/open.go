package bench

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/latency/report"
)

// foreignFlags adds the flags for files of other tools.
func foreignFlags(flags *flag.FlagSet) *foreign.Options {
	o := new(foreign.Options)
	flags.StringVar(&o.Unit, "unit", "", "`UNIT` of values in other tools' files that do not state it: ns, us, ms or s")
	flags.StringVar(&o.Series, "series", "", "`NAME` of the column, target, tag or series to read, where another tool's file has several")
	return o
}

// openReport reads a report's folder, another tool's file, or a folder with one such file for each run.
func openReport(path string, o *foreign.Options) (*report.Report, error) {
	info, err := os.Stat(path)
	if err != nil || info.IsDir() && !holdsFiles(path) {
		return report.Read(path)
	}
	rep, err := foreign.Read(path, *o)
	if errors.Is(err, foreign.ErrUnit) {
		return nil, exit.Usagef("%w", err)
	}
	return rep, err
}

// holdsFiles reports whether a folder has files and none of them is a report's.
func holdsFiles(dir string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return false
	}
	for _, name := range []string{report.ReportFile, report.HlogFile, report.HTMLFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}
