package report

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/atomicfile"
)

// The files of a report's folder.
const (
	ReportFile = "report.json"
	HgrmFile   = "rtt.hgrm"
	HlogFile   = "rtt.hlog"
	RawFile    = "raw.csv.zst"
	GapsFile   = "gaps.csv.zst" // of a responder
	HTMLFile   = "report.html"
)

var names = []string{ReportFile, HgrmFile, HlogFile, RawFile, GapsFile, HTMLFile}

// ErrExists is returned if a report's folder contains something other than a report.
var ErrExists = errors.New("folder holds something else")

// Page writes a report as report.html.
type Page func(io.Writer, *Report) error

// Write saves rep as the folder dir, which it creates, or replaces if dir is already a report. The folder appears
// completely or not at all: all files are written and synced in a temporary folder next to it, which is then renamed.
// On an error (a full disk), the temporary folder is removed and an existing report is unchanged.
func Write(dir string, rep *Report, page Page) error { return writeFolder(dir, rep.files(page)) }

// files are the files of the report's folder. Without samples there is no percentile file; raw samples and gaps are
// optional.
func (rep *Report) files(page Page) []file {
	files := []file{{ReportFile, func(w io.Writer) error { return WriteJSON(w, rep) }}}
	if rep.Main() != nil {
		files = append(files, file{HgrmFile, func(w io.Writer) error { return WriteHgrm(w, rep.Main().Total) }})
	}
	files = append(files, file{HlogFile, func(w io.Writer) error { return WriteHlog(w, rep.Start, rep.Series) }})
	if len(rep.Raw) > 0 {
		files = append(files, file{RawFile, rep.writeRaw})
	}
	if rep.Gaps != nil {
		files = append(files, file{GapsFile, rep.writeGaps})
	}
	return append(files, file{HTMLFile, func(w io.Writer) error { return page(w, rep) }})
}

type file struct {
	name string
	to   func(io.Writer) error
}

// writeFolder writes the files to a temporary folder beside dir and then renames it, so that dir has all files or
// those of before. It replaces a report, and nothing else.
func writeFolder(dir string, files []file) (err error) {
	dir = filepath.Clean(dir)
	replace, err := replaceable(dir)
	if err != nil {
		return err
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("report %s: %w", dir, err)
	}
	tmp, err := os.MkdirTemp(parent, "."+filepath.Base(dir)+".")
	if err != nil {
		return fmt.Errorf("report %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
			err = fmt.Errorf("report %s is not written: %w", dir, err)
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := writeSynced(os.Create, filepath.Join(tmp, f.name), f.to); err != nil {
			return err
		}
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	if replace {
		// The exchange is atomic; the old report, now under the temporary name, is removed afterwards.
		if err := unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE); err != nil {
			return &os.LinkError{Op: "exchange", Old: tmp, New: dir, Err: err}
		}
		os.RemoveAll(tmp)
	} else if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	return syncDir(parent)
}

// Rewrite writes report.json and report.html again for a report that was read from its folder, each completely or not
// at all. The logs in the folder contain only numbers and are unchanged.
func (r *Report) Rewrite(page Page) error {
	if err := r.replaceFile(ReportFile, func(w io.Writer) error { return WriteJSON(w, r) }); err != nil {
		return err
	}
	if r.Gaps != nil && r.Anonymous {
		if err := r.ReadGaps(); err != nil {
			return err
		}
		if err := r.replaceFile(GapsFile, r.writeGaps); err != nil {
			return err
		}
	}
	return r.RewritePage(page)
}

// RewritePage writes report.html again in the folder that the report was read from.
func (r *Report) RewritePage(page Page) error {
	return r.replaceFile(HTMLFile, func(w io.Writer) error { return page(w, r) })
}

// replaceFile does not touch a file that already has the new content, so that a report under version control stays
// unchanged.
func (r *Report) replaceFile(name string, to func(io.Writer) error) error {
	path := filepath.Join(r.Dir, name)
	var b bytes.Buffer
	if err := to(&b); err != nil {
		return fmt.Errorf("%s is not written: %w", path, err)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b.Bytes()) {
		return nil
	}
	return atomicfile.WriteFile(path, b.Bytes())
}

// replaceable reports whether dir exists and may be replaced: it may if it is empty or contains a report.
func replaceable(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("report %s: %w", dir, err)
	}
	return true, ours(dir, entries)
}

// ours returns an error if a folder contains anything that is not part of a report. A killed program may have left a
// file that it was writing.
func ours(dir string, entries []os.DirEntry) error {
	for _, e := range entries {
		if !slices.Contains(names, e.Name()) && e.Name() != unfinished &&
			!strings.HasPrefix(e.Name(), atomicfile.Prefix) {
			return fmt.Errorf("report %s: %w: %s", dir, ErrExists, e.Name())
		}
	}
	return nil
}

// writeSynced writes a file and waits until the disk has it.
func writeSynced(create func(string) (*os.File, error), path string, to func(io.Writer) error) error {
	f, err := create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	err = to(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// WriteJSON writes r in the format of report.json.
func WriteJSON(w io.Writer, r *Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// writeRaw writes the single samples, in ns, as CSV compressed by zstd.
func (r *Report) writeRaw(w io.Writer) error {
	z, err := zstd.NewWriter(w)
	if err != nil {
		return err
	}
	c := csv.NewWriter(z)
	if err := c.Write([]string{"at_ns", "from_intended_ns", "from_sent_ns"}); err != nil {
		return err
	}
	for _, s := range r.Raw {
		if err := c.Write([]string{strconv.FormatInt(s.At, 10), strconv.FormatInt(s.FromIntended, 10),
			strconv.FormatInt(s.FromSent, 10)}); err != nil {
			return err
		}
	}
	c.Flush()
	return errors.Join(c.Error(), z.Close())
}
