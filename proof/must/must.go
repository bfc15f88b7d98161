// Package must ends a test at an error that the test is not about.
package must

import (
	"io"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// OK ends the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Equal is check.Equal, and ends the test if got is not want.
func Equal[V comparable](t testing.TB, got, want V, format string) {
	t.Helper()
	if check.Equal(t, got, want, format); got != want {
		t.FailNow()
	}
}

// Get returns v, and ends the test if err is not nil: f := must.Get(os.Open(name))(t).
func Get[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Close closes c. The test fails if that returns an error, but goes on: Close is for the end of a test, and for
// cleanup.
func Close(t testing.TB, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
