package foreign

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/report"
)

// Flags adds the flags for files of other tools.
func Flags(flags *flag.FlagSet) *Options {
	o := new(Options)
	flags.StringVar(&o.Unit, "unit", "", "`UNIT` of values in other tools' files that do not state it: ns, us, ms or s")
	flags.StringVar(&o.Series, "series", "",
		"`NAME` of the column, target, tag or series to read, where another tool's file has several")
	return o
}

// Open reads a report's folder, another tool's file or pipe, standard input for "-", or a folder with one such file for
// each run.
func Open(path string, o *Options) (*report.Report, error) {
	info, err := os.Stat(path)
	if path != "-" && (err != nil || info.IsDir() && !holdsFiles(path)) {
		return report.Read(path)
	}
	rep, err := Read(path, *o)
	if errors.Is(err, ErrUnit) {
		return nil, process.Usagef("%w", err)
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
