package atomicfile_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// The file has either the old or the new content, even if writing fails in the middle.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	broken := errors.New("broken")
	fails := func(w io.Writer) error {
		w.Write(bytes.Repeat([]byte("x"), 1<<20))
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), "x") {
			t.Error("a part of it is under its name")
		}
		return broken
	}
	is := func(want string) {
		t.Helper()
		b, err := os.ReadFile(path)
		entries, _ := os.ReadDir(dir)
		if want == "" && (err == nil || len(entries) != 0) || want != "" && (string(b) != want || len(entries) != 1) {
			t.Errorf("%q, %v, want %q; in the folder: %v", b, err, want, entries)
		}
	}
	check.Fails(t, "Write", atomicfile.Write(path, fails), broken, path+" is not written")
	is("")
	check.OK(t, atomicfile.Write(path, text("one")))
	is("one")
	must.OK(t, os.Chmod(path, 0o640))
	check.Fails(t, "a second Write", atomicfile.Write(path, fails), broken)
	is("one")
	check.OK(t, atomicfile.Write(path, text("two")))
	is("two")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v: another mode than before", info, err)
	}
	check.Fails(t, "a folder that is not there", atomicfile.Write(filepath.Join(dir, "none", "f"), text("")),
		os.ErrNotExist)
}

// A symbolic link stays one, and a pipe gets the text.
func TestWriteElsewhere(t *testing.T) {
	dir := t.TempDir()
	target, link, pipe := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	must.OK(t, errors.Join(os.WriteFile(target, []byte("old"), 0o644), os.Symlink(target, link),
		unix.Mkfifo(pipe, 0o600)))
	check.OK(t, atomicfile.Write(link, text("new")))
	check.Equal(t, string(must.Get(os.ReadFile(target))(t)), "new", "the target has %q")
	check.Equal(t, must.Get(os.Readlink(link))(t), target, "the link is to %q")
	read := make(chan string)
	go func() {
		b, _ := os.ReadFile(pipe)
		read <- string(b)
	}()
	check.OK(t, atomicfile.Write(pipe, text("through")))
	check.Equal(t, <-read, "through", "the pipe has %q")
	must.OK(t, os.Remove(pipe))
	must.OK(t, unix.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, dir, "/dev/zero"} {
		check.Fails(t, path, check.Err(atomicfile.Open(path)), nil, path+" is not a regular file")
	}
	if f, err := atomicfile.Open(link); err != nil || f.Close() != nil {
		t.Error(err)
	}
	check.Fails(t, "a full device", atomicfile.Write("/dev/full", text("x")), unix.ENOSPC)
}

// A named pipe without a writer is an error, and so is a writer without data; a pipe that has both is read, like any
// file.
func TestInput(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pipe")
	must.OK(t, unix.Mkfifo(path, 0o600))
	_, err := atomicfile.Read(path)
	check.Contains(t, err.Error(), "pipe is a pipe that no process writes to")

	w := must.Get(os.OpenFile(path, os.O_RDWR, 0))(t) // it does not wait for a reader
	atomicfile.Patience = 10 * time.Millisecond
	_, err = atomicfile.Read(path)
	check.Contains(t, err.Error(), "nothing came through it for 10ms")
	atomicfile.Patience = time.Minute
	_, err = w.WriteString("text")
	must.OK(t, err)
	in := must.Get(atomicfile.Input(path))(t)
	defer in.Close()
	must.OK(t, w.Close())
	check.Equal(t, string(must.Get(io.ReadAll(in))(t)), "text", "read %q")

	r, w, err := os.Pipe()
	must.OK(t, err)
	defer r.Close()
	must.OK(t, w.Close())
	got, err := atomicfile.Read(fmt.Sprint("/proc/self/fd/", r.Fd()))
	check.Equal(t, string(got), "", "an empty pipe without a name: %q")
	must.OK(t, err)
	for _, name := range []string{"/dev/null", filepath.Join(dir, "none")} {
		_, err := atomicfile.Read(name)
		check.Equal(t, err == nil, name == "/dev/null", name+": %t")
	}
}
