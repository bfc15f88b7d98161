package kit

import "sync"

// Lock is a sync.RWMutex for control paths that sleep while they hold it. A goroutine that waits for a sync.RWMutex
// stops the clock of testing/synctest, so that a sleeping holder would never wake up. One that waits for a Lock does
// not. The zero Lock is unlocked.
type Lock struct {
	mu      sync.Mutex
	changed *sync.Cond
	readers int
	writer  bool
	long    bool // the writer keeps it for long
	waiting int  // writers, which go before new readers
}

// Lock waits until nobody holds l, and takes it.
func (l *Lock) Lock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting++
	l.until(func() bool { return !l.writer && l.readers == 0 })
	l.waiting--
	l.writer = true
}

// Unlock undoes Lock.
func (l *Lock) Unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writer, l.long = false, false
	l.wake()
}

// rLock waits until only readers hold l.
func (l *Lock) rLock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until(func() bool { return !l.writer && l.waiting == 0 })
	l.readers++
}

// Lengthen is called by the holder: rLockUnlessLong no longer waits for it.
func (l *Lock) Lengthen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.long = true
	l.wake()
}

// rLockUnlessLong is rLock, or returns false if the holder keeps l for long.
func (l *Lock) rLockUnlessLong() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until(func() bool { return l.long || !l.writer && l.waiting == 0 })
	if l.long {
		return false
	}
	l.readers++
	return true
}

// rUnlock undoes rLock.
func (l *Lock) rUnlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers--
	l.wake()
}

func (l *Lock) until(ok func() bool) {
	for !ok() {
		if l.changed == nil {
			l.changed = sync.NewCond(&l.mu)
		}
		l.changed.Wait()
	}
}

func (l *Lock) wake() {
	if l.changed != nil {
		l.changed.Broadcast()
	}
}
