package responder

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
)

// polled is an engine with two loops that do not run, and a function that makes a pass of some.
func polled() (e *engine, pass func(loops ...int)) {
	e = &engine{loops: []*loop{{responder: new(fastpath.Responder)}, {responder: new(fastpath.Responder)}}}
	return e, func(loops ...int) {
		for _, l := range loops {
			e.loops[l].responder.Loop.Pass(0, 0)
		}
	}
}

// A loop that made no pass between two checks is not healthy, and the page is not either.
func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, pass := polled()
		for i, c := range []struct {
			passes []int
			want   string
		}{{nil, "has not started"}, {[]int{0, 1}, "<nil>"}, {[]int{0}, "loop 1 is stalled"}, {[]int{0, 1}, "<nil>"}} {
			pass(c.passes...)
			if err := fmt.Sprint(e.healthy()); !strings.Contains(err, c.want) {
				t.Errorf("step %d: %v, want %s", i, err, c.want)
			}
			time.Sleep(20 * time.Second)
		}
	})
}

func TestTurned(t *testing.T) {
	e, pass := polled()
	for i, c := range []struct {
		passes []int
		want   bool
	}{{nil, false}, {[]int{0, 1}, true}, {nil, false}, {[]int{0}, false}, {[]int{1}, false}, {[]int{1, 0, 1}, true}} {
		pass(c.passes...)
		if got := e.turned(); got != c.want {
			t.Errorf("step %d: %v, want %v", i, got, c.want)
		}
	}
}
