// Package check compares what a test got with what it expects. A check that fails does not end the test.
package check

import (
	"regexp"
	"testing"
)

var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z]`)

// Equal fails the test if got is not want. format has one verb, for got: check.Equal(t, len(replies), 1, "%d replies").
func Equal[V comparable](t testing.TB, got, want V, format string) {
	t.Helper()
	if got != want {
		t.Errorf(format+", want "+verb.FindString(format), got, want)
	}
}

// OK fails the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}
