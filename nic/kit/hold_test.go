package kit_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/nic/kit"
)

// A holder that sleeps wakes up in virtual time although others wait for the lock.
func TestHoldOnVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l sync.RWMutex
		var over sync.WaitGroup
		began := time.Now()
		for _, side := range []struct {
			try    func() bool
			unlock func()
		}{{l.TryLock, l.Unlock}, {l.TryLock, l.Unlock}, {l.TryRLock, l.RUnlock}, {l.TryRLock, l.RUnlock}} {
			over.Go(func() {
				kit.Hold(side.try)
				time.Sleep(10 * time.Second)
				side.unlock()
			})
		}
		over.Wait()
		if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("two writers and two readers, 10 s each, took %v, want 30 s", took)
		}
	})
}
