// Package needs skips tests whose requirements are missing.
package needs

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Root skips a test if the user is not root, and under -short: make check runs without privileges everywhere.
func Root(t testing.TB, what string) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skipf("needs root for %s, which -short leaves out (make test runs it)", what)
	case os.Geteuid() != 0:
		t.Skipf("needs root for %s", what)
	}
}

// Mounts moves the test's thread to a mount namespace, whose mounts end with the test.
func Mounts(t testing.TB) {
	t.Helper()
	Root(t, "a mount namespace")
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
}

// Long skips a test under -short: make check leaves out tests that compute for more than a second.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, and -short leaves it out (make test runs it)")
	}
}

// Cases returns usual, or short under -short: how many cases a test has, or the step between two.
func Cases[T any](usual, short T) T {
	if testing.Short() {
		return short
	}
	return usual
}

// Each returns the cases of a table that a test runs: all, or under -short the first and each nth after it.
func Each[T any](n int, cases []T) []T {
	if !testing.Short() {
		return cases
	}
	var some []T
	for i := 0; i < len(cases); i += n {
		some = append(some, cases[i])
	}
	return some
}

// Programs skips a test if a program is missing.
func Programs(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s, which is not installed (run scripts/install-deps as root)", name)
		}
	}
}

// Tree makes every file of the module an input of the test: go test reuses a result (make check) only if nothing that
// the test process itself opened has changed. A test needs it if its child processes read the sources, such as go list.
func Tree(t testing.TB) {
	t.Helper()
	top := root()
	// the list of a folder has its files' times
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") ||
			path == filepath.Join(top, "out") || path == filepath.Join(top, "bin")) {
			return fs.SkipDir
		}
		if errors.Is(err, fs.ErrNotExist) { // a file of a test that runs beside this one
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// root is the module's folder, above the test's.
func root() string {
	dir, err := filepath.Abs(".")
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// NPM returns the folder of an npm package that scripts/install-deps installs, and skips the test if it is missing.
func NPM(t testing.TB, name string) string {
	t.Helper()
	at := filepath.Join(root(), ".cache", "npm", "node_modules", name)
	if _, err := os.Stat(at); err != nil {
		t.Skipf("needs the npm package %s, which is not installed (run scripts/install-deps)", name)
	}
	return at
}
