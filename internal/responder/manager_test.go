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
			hear := func(want string) {
				t.Helper()
				c.SetReadDeadline(time.Now().Add(time.Minute))
				buf := make([]byte, 1000)
				n, err := c.Read(buf)
				if err != nil || !strings.HasPrefix(string(buf[:n]), want) {
					t.Fatalf("heard %q, %v; want %q", buf[:n], err, want)
				}
			}
			p := w.start(t, []string{"NOTIFY_SOCKET=" + name, "WATCHDOG_USEC=400000"}, "nic.driver="+driver, "nic.generic_xdp=true")
			hear("READY=1\nSTATUS=" + strings.TrimSpace(p.Ready))
			hear("WATCHDOG=1")
			hear("WATCHDOG=1")
			must.OK(t, p.Process.Signal(syscall.SIGTERM))
			for {
				c.SetReadDeadline(time.Now().Add(time.Minute))
				buf := make([]byte, 1000)
				n, err := c.Read(buf)
				if err != nil {
					t.Fatalf("no STOPPING=1: %v", err)
				}
				if string(buf[:n]) == "STOPPING=1" {
					break
				}
			}
			if _, code := p.end(t); code != 0 {
				t.Errorf("exit code %d\n%s", code, p.Log)
			}
		})
	}
}

// A loop that made no pass between two checks is not healthy, and the page is not either.
func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{loops: []*loop{{responder: new(fastpath.Responder)}, {responder: new(fastpath.Responder)}}}
		for i, c := range []struct {
			passes []int
			want   string
		}{{nil, "has not started"}, {[]int{0, 1}, "<nil>"}, {[]int{0}, "loop 1 is stalled"}, {[]int{0, 1}, "<nil>"}} {
			for _, l := range c.passes {
				e.loops[l].responder.Loop.Pass(0, 0)
			}
			if err := fmt.Sprint(e.healthy()); !strings.Contains(err, c.want) {
				t.Errorf("step %d: %v, want %s", i, err, c.want)
			}
			time.Sleep(20 * time.Second)
		}
	})
}

func TestTurned(t *testing.T) {
	e := &engine{loops: []*loop{{responder: new(fastpath.Responder)}, {responder: new(fastpath.Responder)}}}
	pass := func(i int) { e.loops[i].responder.Loop.Pass(0, 0) }
	for i, c := range []struct {
		passes []int
		want   bool
	}{{nil, false}, {[]int{0, 1}, true}, {nil, false}, {[]int{0}, false}, {[]int{1}, false}, {[]int{1, 0, 1}, true}} {
		for _, l := range c.passes {
			pass(l)
		}
		if got := e.turned(); got != c.want {
			t.Errorf("step %d: %v, want %v", i, got, c.want)
		}
	}
}
