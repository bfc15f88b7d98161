// Package check compares what a test got with what it expects. A check that fails does not end the test.
package check

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// Same is Equal for slices.
func Same[V comparable](t testing.TB, got, want []V, format string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf(format+", want "+verb.FindString(format), got, want)
	}
}

// Contains fails the test for each of wants that is not in text.
func Contains(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in:\n%s", want, text)
		}
	}
}

// OK fails the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Fails fails the test unless err is an error: is, if that is not nil, and one that contains each text of says. what
// says what has to fail.
func Fails(t testing.TB, what string, err, is error, says ...string) {
	t.Helper()
	good := err != nil && (is == nil || errors.Is(err, is))
	for _, s := range says {
		good = good && strings.Contains(err.Error(), s)
	}
	if want := "an error"; !good {
		if is != nil {
			want = strconv.Quote(is.Error())
		}
		t.Errorf("%s: %v, want %s with %q", what, err, want, says)
	}
}

// Err returns the error of a call that also returns a value.
func Err[V any](_ V, err error) error { return err }
