// Package needs skips tests where something that they need is missing.
package needs

import (
	"os"
	"os/exec"
	"testing"
)

// Root skips a test where the user is not root, and under -short: make check runs without privileges wherever it runs.
func Root(t testing.TB, what string) {
	t.Helper()
	switch {
	case testing.Short():
		t.Skipf("needs root for %s, which -short leaves out (make test runs it)", what)
	case os.Geteuid() != 0:
		t.Skipf("needs root for %s", what)
	}
}

// Programs skips a test where a program is missing.
func Programs(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s, which is not installed (run scripts/install-deps as root)", name)
		}
	}
}
