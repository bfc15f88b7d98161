package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// shared is a folder that several tests use, removed at the end.
var shared string

func TestMain(m *testing.M) {
	var err error
	if shared, err = os.MkdirTemp("", "rebound-packaging-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(shared)
	os.Exit(code)
}

func git(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@localhost",
		"GIT_COMMITTER_NAME=t",
		"GIT_COMMITTER_EMAIL=t@localhost", "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z",
		"GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
	return cmd.Output()
}

// clone makes a clone of this repository's work tree, uncommitted changes included, as one commit. The commit is always
// the same for the same content.
func clone(to string) error {
	if _, err := git(".", "clone", "-q", "--no-checkout", "--depth=1", "--no-local", "..", to); err != nil {
		return err
	}
	list, err := git("..", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join("..", name))
		if os.IsNotExist(err) {
			continue // deleted, but not committed yet
		} else if err != nil {
			return err
		}
		file := filepath.Join(to, name)
		b, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, b, info.Mode().Perm()); err != nil {
			return err
		}
	}
	if _, err := git(to, "add", "-A"); err != nil {
		return err
	}
	_, err = git(to, "commit", "-q", "--allow-empty", "-m", "as it stands")
	return err
}

// whole is for make discovery. make test, which could not compile rebound-discover in its time, packages a small
// program in its place.
var whole = flag.Bool("discover", false, "package the real rebound-discover, which compiles for minutes at first")

// discovery is where the sources of the packaged rebound-discover are.
func discovery() string {
	if *whole {
		return ""
	}
	return "packaging/testdata/discover"
}

// made is the output of make package for the current work tree.
var made = sync.OnceValues(func() (o options, err error) {
	o = options{root: filepath.Join(shared, "clone"), out: filepath.Join(shared, "out"), arch: "amd64", discover: true,
		discovery: discovery()}
	if err := clone(o.root); err != nil {
		return o, err
	}
	here, err := os.Getwd()
	if err != nil {
		return o, err
	}
	relative := o // as in the Makefile
	if relative.root, err = filepath.Rel(here, o.root); err != nil {
		return o, err
	}
	_, err = relative.make()
	return o, err
})

func packaged(t *testing.T) options {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("needs git: the version of a package is that of a commit")
	}
	return value(made())(t)
}

func deb(t *testing.T, o options) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(o.out, "rebound_*_"+o.arch+".deb"))
	if err != nil || len(all) != 1 {
		t.Fatalf("%q, %v: want one package", all, err)
	}
	return all[0]
}
