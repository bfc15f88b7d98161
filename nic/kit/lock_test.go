package kit

import (
	"testing"
	"testing/synctest"
	"time"
)

// A sleeping holder wakes up in virtual time although others wait for the lock. Readers share it, and a waiting writer
// goes before new readers.
func TestLockOnVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Lock
		order := make(chan string, 6)
		began := time.Now()
		hold := func(after, during time.Duration, who string, lock, unlock func()) {
			go func() {
				time.Sleep(after)
				lock()
				order <- who
				time.Sleep(during)
				unlock()
			}()
		}
		hold(0, 10*time.Second, "r", l.rLock, l.rUnlock)
		hold(1*time.Second, 10*time.Second, "r", l.rLock, l.rUnlock) // to 11 s, with the first
		hold(2*time.Second, 10*time.Second, "w", l.Lock, l.Unlock)   // to 21 s
		hold(3*time.Second, 10*time.Second, "r", l.rLock, l.rUnlock) // to 31 s, after the writer
		hold(22*time.Second, 10*time.Second, "w", l.Lock, l.Unlock)  // to 41 s
		time.Sleep(40 * time.Second)
		l.rLock()
		order <- "r"
		l.rUnlock()
		close(order)
		got := ""
		for who := range order {
			got += who
		}
		if took := time.Since(began); got != "rrwrwr" || took != 41*time.Second {
			t.Errorf("%q in %v, want rrwrwr in 41s", got, took)
		}
	})
}
