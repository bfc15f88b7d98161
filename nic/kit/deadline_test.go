package kit

import (
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
)

// A deadline whose time has passed is over after its minimum number of polls; one whose time has not passed is never
// over.
func TestDeadline(t *testing.T) {
	past, ahead := NewDeadline(-time.Hour, 3), NewDeadline(time.Hour, 3)
	for look := 1; look <= 5; look++ {
		check.Equal(t, past.Over(), look > 3, "after the time: over is %v")
		check.Equal(t, ahead.Over(), false, "an hour ahead of the time: over is %v")
	}
}
