package responder

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
)

// A responder takes the place of the one that runs, three times. Each request that arrives meanwhile is answered once, and the
// predecessors exit with status 0.
func TestTakeOver(t *testing.T) {
	for _, c := range [][2]string{{"afpacket", "0"}, {"afpacket", "[0, 1]"}, {"afxdp", "0"}} {
		t.Run(strings.Join(c[:], " "), func(t *testing.T) {
			lastOfTwoCPUs(t) // for two queues
			w := newWire(t)
			sets := []string{"nic.driver=" + c[0], "cpu.cores=" + c[1], "nic.take_over=true", "guard.rate=0"}
			c := w.dial(t, ours4+":7")
			takeOver(t, func() *process { return w.start(t, nil, sets...) }, func(n uint64) error { return echo(c, n) })
		})
	}
}

// takeOver starts a responder and three successors, one after the other, and meanwhile sends one request after the other.
func takeOver(t *testing.T, start func() *process, echo func(n uint64) error) {
	t.Helper()
	p := start()
	if !p.logs("nothing to take over") {
		t.Error("the first responder found another one")
	}
	var enough atomic.Bool
	ended := make(chan error)
	go func() {
		var err error
		for n := uint64(1); err == nil && !enough.Load(); n++ {
			err = echo(n)
		}
		ended <- err
	}()
	for range 3 {
		next := start()
		p.end(t, exitDone)
		if strings.Contains(next.Log.String(), "started again") || !strings.Contains(p.Log.String(), "another responder took over") {
			t.Errorf("the device was not handed over as it runs:\n%s\n%s", p.Log, next.Log)
		}
		p = next
	}
	enough.Store(true)
	check.OK(t, <-ended)
	p.stop(t, unix.SIGTERM)
}

// echo sends a numbered datagram, and wants its reply.
func echo(c *net.UDPConn, n uint64) error {
	b := make([]byte, 64)
	binary.BigEndian.PutUint64(b, n)
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := c.Write(b[:8]); err != nil {
		return err
	}
	if _, err := c.Read(b); err != nil {
		return fmt.Errorf("request %d is lost: %w", n, err)
	}
	if got := binary.BigEndian.Uint64(b); got != n {
		return fmt.Errorf("a reply to %d, and request %d was sent last", got, n)
	}
	return nil
}

// What does not fit is refused, by name, and the responder that runs continues, also after a successor that fails late.
func TestTakeOverRefused(t *testing.T) {
	for driver, size := range map[string]string{"afpacket": "these settings need 1 of 512 of 2048", "afxdp": "these settings need queues 0 to 0 with 512 of 2048"} {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			p := w.start(t, nil, "nic.driver="+driver)
			for _, c := range []struct{ set, want string }{
				{"nic.ring_size=512", size + ": stop the other responder first"},
				{"nic.take_over=false", "answers for it on port"},
				{"stats.listen=192.0.2.1:80", "192.0.2.1:80"},
			} {
				_, out, code := w.here.outcome(t, w.command(t, "nic.driver="+driver, "respond.udp_ports=[9]", "nic.take_over=true", c.set))
				if code == exitDone || !strings.Contains(out, c.want) {
					t.Errorf("%s: exit %d, %s; want %q", c.set, code, out, c.want)
				}
			}
			w.run(t, "ping", "-c", "3", "-i", "0.01", "-W", "60", ours4)
			for c, n := w.dial(t, ours4+":7"), uint64(1); n <= 3; n++ {
				check.OK(t, echo(c, n))
			}
			p.stop(t, unix.SIGTERM)
		})
	}
}
