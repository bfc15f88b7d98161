package engine

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// While no reply comes for longer than the timeout, a request is sent before each probe from the fourth without a reply
// on.
func TestUnanswered(t *testing.T) {
	var calls []bool
	request := []byte{1}
	probes, alive := 0, true
	f := &fake{}
	f.onSend = func(_ int, frame []byte) {
		if slices.Equal(frame, request) {
			alive = len(calls)%3 == 0 // the third request finds the next hop
			return
		}
		if probes++; probes == 10 || probes == 30 {
			alive = false
		}
		if alive {
			f.reply(frame, 0)
		}
	}
	s, _ := stream(t, f, 0, time.Millisecond, func(o *Options) {
		o.Unanswered = func(first bool) []byte {
			calls = append(calls, first)
			return request
		}
	})
	must.OK(t, s.Run(Limit{Count: 60}, new(atomic.Bool)))
	if want := []bool{true, false, false, true, false, false}; !slices.Equal(calls, want) {
		t.Errorf("%v, want %v", calls, want)
	}
	c := s.Counts()
	check.Equal(t, c.Unanswered(), 10, "%d probes lost") // twice three, and two more while it is asked for
}
