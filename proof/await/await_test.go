package await

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestHoldsReturnsWhenTheConditionDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !Holds(func() bool { return time.Since(began) > time.Minute }) {
			t.Error("a condition that comes after a minute does not hold")
		}
		if Holds(func() bool { return false }) {
			t.Error("a condition that never comes holds")
		}
	})
}
