package process

import (
	"bytes"
	"sync"
)

// Tail is an io.Writer that keeps the end of what is written.
type Tail struct {
	mu  sync.Mutex
	end []byte
}

func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 4 << 10
	t.end = append(t.end, b...)
	if cut := len(t.end) - most; cut > 0 {
		t.end = bytes.Clone(t.end[cut:])
	}
	return len(b), nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
