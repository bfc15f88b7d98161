// Package atomicfile writes files atomically, so that they appear completely or not at all, and opens files without
// blocking forever.
package atomicfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

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
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Input opens a file that somebody wrote for this program: a regular file, or a pipe such as the shell's <(...).
// Neither opening nor reading it blocks forever: a named pipe needs a process that writes to it, and data has to come
// within Patience.
func Input(path string) (io.ReadCloser, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if info.Mode()&fs.ModeNamedPipe == 0 {
		return f, nil
	}
	return &pipe{File: f}, nil
}

// Read reads a file as Input opens it.
func Read(path string) ([]byte, error) {
	f, err := Input(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// Patience is how long a pipe may be silent.
var Patience = 30 * time.Second

// pipe is a pipe, named or not.
type pipe struct {
	*os.File
	begun bool
}

// Read implements io.Reader.
func (p *pipe) Read(b []byte) (int, error) {
	if err := p.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return 0, err
	}
	n, err := p.File.Read(b)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%s is a pipe, and nothing came through it for %v", p.Name(), Patience)
	case err == io.EOF && !p.begun && p.named():
		err = fmt.Errorf("%s is a pipe that no process writes to", p.Name())
	}
	p.begun = p.begun || n > 0
	return n, err
}

// named reports whether the pipe is in a folder, so that its first writer may be missing: one without a name had its
// writer before its reader.
func (p *pipe) named() bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(int(p.Fd()), &fs) == nil && fs.Type != unix.PIPEFS_MAGIC
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
