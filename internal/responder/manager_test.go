package responder

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/must"
)

// The responder notifies the service manager that it is ready, that it is alive, and that it exits.
func TestServiceManager(t *testing.T) {
	w := newWire(t)
	for _, driver := range []string{"afpacket", "xdp"} {
		t.Run(driver, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "notify")
			c := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"}))(t)
			defer c.Close()
			heard := func() string {
				t.Helper()
				c.SetReadDeadline(time.Now().Add(time.Minute))
				buf := make([]byte, 1000)
				return string(buf[:must.Get(c.Read(buf))(t)])
			}
			p := w.start(t, []string{"NOTIFY_SOCKET=" + name, "WATCHDOG_USEC=400000"}, "nic.driver="+driver,
				"nic.generic_xdp=true")
			must.Equal(t, heard(), "READY=1\nSTATUS="+strings.TrimSpace(p.Ready), "%q")
			must.Equal(t, heard(), "WATCHDOG=1", "%q")
			must.Equal(t, heard(), "WATCHDOG=1", "%q")
			must.OK(t, p.Process.Signal(syscall.SIGTERM))
			for heard() != "STOPPING=1" {
			}
			p.end(t, exitDone)
		})
	}
}

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
