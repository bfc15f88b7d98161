// Package whole writes files atomically, so that they appear completely or not at all, and opens only regular files.
package whole

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Prefix starts the names of files that are being written. A file left with such a name belongs to a process that was
// killed.
const Prefix = ".rebound-"

// Write writes the file at path with the output of to. The file appears, or replaces an earlier one, when all of it is
// on the disk; on an error (a full disk) the earlier one is unchanged. If path is not a regular file (a pipe,
// /dev/stdout), or if no file can be created in its folder, Write writes to path directly.
func Write(path string, to func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s is not written: %w", path, err)
		}
	}()
	at, err := filepath.EvalSymlinks(path)
	if err != nil {
		at = path // os.OpenFile returns the error, or creates the file
	}
	info, err := os.Stat(at)
	exists := err == nil
	if exists && !info.Mode().IsRegular() {
		return fill(at, os.O_WRONLY, 0, to)
	}
	mode := fs.FileMode(0o666)
	if exists {
		mode = info.Mode().Perm()
	}
	part := filepath.Join(filepath.Dir(at), fmt.Sprintf("%s%016x", Prefix, rand.Uint64()))
	err = fill(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode, to)
	if exists && errors.Is(err, fs.ErrPermission) {
		return fill(at, os.O_WRONLY|os.O_TRUNC, 0, to)
	}
	if err == nil && exists { // the umask may have removed some of the mode bits
		err = os.Chmod(part, mode)
	}
	if err == nil {
		err = os.Rename(part, at)
	}
	if err != nil {
		os.Remove(part)
	}
	return err
}

// WriteFile is Write with the file's content as an argument.
func WriteFile(path string, b []byte) error {
	return Write(path, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// Open opens a regular file for reading. Opening a pipe without a writer would block indefinitely.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fill writes one file, and returns when it is on the disk.
func fill(path string, flags int, mode fs.FileMode, to func(io.Writer) error) error {
	f, err := os.OpenFile(path, flags, mode)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	if err = to(w); err == nil {
		err = w.Flush()
	}
	if err == nil && flags&(os.O_CREATE|os.O_TRUNC) != 0 {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
