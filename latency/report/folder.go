package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Folder is a report's folder that was opened before the process dropped its privileges: writing to it needs no
// permission on the parent folder.
type Folder struct {
	root   *os.Root
	parent *os.Root // nil if the folder existed before
	name   string
}

// unfinished is the subfolder in which a Folder's files are written before they replace those of an earlier report.
const unfinished = ".unfinished"

// OpenFolder creates the folder dir, or opens it if it is empty or already a report, and changes its owner to the given
// user.
func OpenFolder(dir string, uid, gid int) (f *Folder, err error) {
	name := filepath.Clean(dir)
	defer func() {
		if err != nil {
			err = fmt.Errorf("report %s: the folder cannot be given to uid %d: %w", name, uid, err)
		}
	}()
	err = os.Mkdir(name, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	f = &Folder{name: name}
	if err == nil {
		if f.parent, err = os.OpenRoot(filepath.Dir(name)); err != nil {
			return nil, err
		}
	}
	// A symbolic link could lead to a folder whose owner must not change.
	named, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if f.root, err = os.OpenRoot(name); err != nil {
		return nil, err
	}
	if err := f.chown(named, uid, gid); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// chown gives the folder to a user, unless it is a symbolic link or has files that are not of a report.
func (f *Folder) chown(named os.FileInfo, uid, gid int) error {
	d, err := f.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	if opened, err := d.Stat(); err != nil || !os.SameFile(named, opened) {
		return errors.Join(err, errors.New("it is a symbolic link, or was replaced just now"))
	}
	if err := f.root.RemoveAll(unfinished); err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err == nil {
		err = ours(f.name, entries)
	}
	if err == nil {
		err = d.Chown(uid, gid)
	}
	if err == nil {
		err = d.Chmod(0o755)
	}
	return err
}

// Write saves rep in the folder, each file completely or not at all, and closes the folder. On an error before the
// first file is in place nothing changes, and a folder that OpenFolder created is removed if the parent is writable.
func (f *Folder) Write(rep *Report, page Page) error {
	defer f.close()
	err := f.write(rep.files(page))
	f.root.RemoveAll(unfinished)
	if err == nil {
		return nil
	}
	if f.parent != nil {
		f.parent.Remove(filepath.Base(f.name)) // fails if files are already in place
	}
	return fmt.Errorf("report %s is not written: %w", f.name, err)
}

func (f *Folder) close() {
	f.root.Close()
	if f.parent != nil {
		f.parent.Close()
	}
}

// write replaces the files of the report in the folder: it writes all of them to a subfolder, moves each to its
// place, and removes those of before that this report lacks.
func (f *Folder) write(files []file) error {
	if err := f.root.Mkdir(unfinished, 0o700); err != nil {
		return err
	}
	for _, file := range files {
		if err := writeSynced(f.root.Create, filepath.Join(unfinished, file.name), file.to); err != nil {
			return err
		}
	}
	for _, name := range names {
		var err error
		if slices.ContainsFunc(files, func(f file) bool { return f.name == name }) {
			err = f.root.Rename(filepath.Join(unfinished, name), name)
		} else if err = f.root.Remove(name); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return err
		}
	}
	d, err := f.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
