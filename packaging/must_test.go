package main

import (
	"fmt"
	"os/exec"
	"testing"
)

// must ends a test at an error that it is not about.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// value returns v, and ends the test if err is not nil: b := value(os.ReadFile(name))(t).
func value[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		must(t, err)
		return v
	}
}

// sh runs a script, which ends at the first command that fails.
func sh(script string) error {
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return nil
}
