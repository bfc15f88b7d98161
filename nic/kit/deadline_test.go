package kit

import (
	"testing"
	"time"
)

// A deadline whose time has passed is over after its minimum number of polls; one whose time has not passed is never
// over.
func TestDeadline(t *testing.T) {
	past, ahead := NewDeadline(-time.Hour, 3), NewDeadline(time.Hour, 3)
	for look := 1; look <= 5; look++ {
		if got, want := past.Over(), look > 3; got != want {
			t.Errorf("look %d after the time: over is %v", look, got)
		}
		if ahead.Over() {
			t.Errorf("look %d is the last, an hour ahead of the time", look)
		}
	}
}
