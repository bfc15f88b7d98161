// Package needs skips tests whose requirements are missing.
package needs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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

// Long skips a test under -short: make check takes a minute and a half, and leaves out tests that take many seconds.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long, and -short leaves it out (make test runs it)")
	}
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

// NPM returns the folder of an npm package that scripts/install-deps installs, and skips the test if it is missing.
func NPM(t testing.TB, name string) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	at := filepath.Join(dir, ".cache", "npm", "node_modules", name)
	if _, err := os.Stat(at); err != nil {
		t.Skipf("needs the npm package %s, which is not installed (run scripts/install-deps)", name)
	}
	return at
}
