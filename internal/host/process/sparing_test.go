package process

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A message that repeats without end is logged a bounded number of times, with the number suppressed; others are not
// affected.
func TestFloodOfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := new(Log).New(&out)
		lines := func(of string) int { return strings.Count(out.String(), of) }
		const each = 10_000
		for range each {
			l.With("client", "a").Warn("a client is turned away", "n", 1)
		}
		l.Warn("another message")
		if n := lines("turned away"); n != messageBurst || lines("another message") != 1 {
			t.Errorf("%d lines of the flood, %d of another message; want %d and 1", n, lines("another message"),
				messageBurst)
		}
		for range 10 {
			time.Sleep(messageEvery)
			for range each {
				l.Warn("a client is turned away")
			}
		}
		if n := lines("turned away"); n != messageBurst+10 {
			t.Errorf("%d lines after ten seconds more, want %d", n, messageBurst+10)
		}
		if lines("left_out_before=9500") != 1 || lines("left_out_before=9999") != 9 {
			t.Errorf("what was left out is not counted:\n%s", out.String()[out.Len()-1000:])
		}
		time.Sleep(time.Hour)
		out.Reset()
		for range each {
			l.Warn("a client is turned away")
		}
		if n := lines("turned away"); n != messageBurst {
			t.Errorf("%d lines after an hour, want %d", n, messageBurst)
		}
		for i := range mostMessages - 2 { // two others were before
			l.Warn(strconv.Itoa(i))
		}
		for range each {
			l.WithGroup("more").Warn("a message without a budget")
			l.WithGroup("more").Warn("another message")
		}
		if n := lines("without a budget"); n != each || lines("another message") != messageBurst {
			t.Errorf("%d lines without a budget, %d with one", n, lines("another message"))
		}
	})
}
