package whole_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/whole"
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
	check.Fails(t, "Write", whole.Write(path, fails), broken, path+" is not written")
	is("")
	check.OK(t, whole.Write(path, text("one")))
	is("one")
	must.OK(t, os.Chmod(path, 0o640))
	check.Fails(t, "a second Write", whole.Write(path, fails), broken)
	is("one")
	check.OK(t, whole.Write(path, text("two")))
	is("two")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v: another mode than before", info, err)
	}
	check.Fails(t, "a folder that is not there", whole.Write(filepath.Join(dir, "none", "f"), text("")), os.ErrNotExist)
}

// A symbolic link stays one, and a pipe gets the text.
func TestWriteElsewhere(t *testing.T) {
	dir := t.TempDir()
	target, link, pipe := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	must.OK(t, errors.Join(os.WriteFile(target, []byte("old"), 0o644), os.Symlink(target, link), unix.Mkfifo(pipe, 0o600)))
	check.OK(t, whole.Write(link, text("new")))
	check.Equal(t, string(must.Get(os.ReadFile(target))(t)), "new", "the target has %q")
	check.Equal(t, must.Get(os.Readlink(link))(t), target, "the link is to %q")
	read := make(chan string)
	go func() {
		b, _ := os.ReadFile(pipe)
		read <- string(b)
	}()
	check.OK(t, whole.Write(pipe, text("through")))
	check.Equal(t, <-read, "through", "the pipe has %q")
	must.OK(t, os.Remove(pipe))
	must.OK(t, unix.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, dir, "/dev/zero"} {
		check.Fails(t, path, check.Err(whole.Open(path)), nil, path+" is no regular file")
	}
	if f, err := whole.Open(link); err != nil || f.Close() != nil {
		t.Error(err)
	}
	check.Fails(t, "a full device", whole.Write("/dev/full", text("x")), unix.ENOSPC)
}
