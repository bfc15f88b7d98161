package kit

import "time"

// Hold takes a lock whose holder may sleep, as one that waits for a command does. try is its TryLock or TryRLock. A
// goroutine that waits in sync.Mutex.Lock stops the clock of testing/synctest, so that the holder would never wake up;
// one that sleeps between tries does not.
func Hold(try func() bool) {
	for !try() {
		time.Sleep(100 * time.Microsecond)
	}
}
