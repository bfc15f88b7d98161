// Package await waits for conditions in tests. A test that waits for a condition, and not for a time, passes on a machine of any
// speed.
package await

import (
	"testing"
	"time"
)

// limit is how long Holds waits: far longer than anything that a test waits for takes, even on a busy machine.
const limit = 2 * time.Minute

// Holds calls ok until it returns true, and reports whether it did within Limit. Between two calls it sleeps, for a
// millisecond initially and for up to 50 later.
func Holds(ok func() bool) bool {
	end := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(pause+pause/8, 50*time.Millisecond) {
		last := time.Now().After(end) // before the look: a test that was descheduled looks once more
		if ok() {
			return true
		}
		if last {
			return false
		}
		time.Sleep(pause)
	}
}

// Until is Holds for a condition that has to come: it fails the test with what was waited for, and with details, if given, that
// explain why it did not.
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
