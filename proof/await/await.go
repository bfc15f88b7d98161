// Package await waits for conditions in tests. A test that waits for a condition, and not for a time, passes on a
// machine of any speed.
package await

import (
	"testing"
	"time"
)

// limit is how long Holds waits: far longer than any awaited condition takes, even on a busy machine.
const limit = 2 * time.Minute

// Holds calls ok until it returns true, and reports whether it did so within limit. Between two calls it sleeps for an
// eighth of the time so far, a millisecond at least and 200 at most.
func Holds(ok func() bool) bool {
	end := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(pause+pause/8, 200*time.Millisecond) {
		// determined before the call, so that a test that was descheduled checks once more
		last := time.Now().After(end)
		if ok() {
			return true
		}
		if last {
			return false
		}
		time.Sleep(pause)
	}
}

// Until is Holds for a condition that must become true: otherwise it fails the test, naming the condition and, if
// given, details that explain the failure.
func Until(t testing.TB, what string, ok func() bool, details ...func() string) {
	t.Helper()
	if Holds(ok) {
		return
	}
	for _, d := range details {
		what += "\n" + d()
	}
	t.Fatalf("not within %v: %s", limit, what)
}
