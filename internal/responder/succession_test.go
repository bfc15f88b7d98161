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
	"github.com/rebound-nic/rebound/proof/must"
)

// A responder takes the place of the one that runs, three times. Each request that arrives meanwhile is answered once, and the
// predecessors exit with status 0.
func TestTakeOver(t *testing.T) {
	for _, c := range [][2]string{{"afpacket", "0"}, {"afpacket", "[0, 1]"}, {"afxdp", "0"}} {
		t.Run(strings.Join(c[:], " "), func(t *testing.T) {
			driver, queues := c[0], c[1]
			online := must.Get(onlineCPUs())(t)
			if len(online) < 2 {
				t.Skip("two queues take two cores")
			}
			w := newWire(t)
			sets := []string{"nic.driver=" + driver, "cpu.cores=" + queues, "nic.take_over=true", "guard.rate=0"}
			p := w.start(t, nil, sets...)
			if !p.logs("nothing to take over") {
				t.Error("the first responder found another one")
			}
			var enough atomic.Bool
			ended := make(chan error)
			c := w.dial(t, ours4+":7")
			go func() { ended <- echoes(c, &enough) }()
			for range 3 {
				next := w.start(t, nil, sets...)
				if _, code := p.end(t); code != exitDone {
					t.Errorf("the one before: exit %d\n%s", code, p.Log)
				}
				if !strings.Contains(p.Log.String(), "another responder took over") {
					t.Errorf("the one before does not say why it ended:\n%s", p.Log)
				}
				p = next
			}
			enough.Store(true)
			check.OK(t, <-ended)
			if _, code := p.stop(t, unix.SIGTERM); code != exitDone {
				t.Errorf("exit %d\n%s", code, p.Log)
			}
		})
	}
}

// echoes sends one numbered datagram after the other until enough. It wants one reply to each.
func echoes(c *net.UDPConn, enough *atomic.Bool) error {
	for n := uint64(1); !enough.Load(); n++ {
		if err := echo(c, n); err != nil {
			return err
		}
	}
	return nil
}

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
				cmd := w.command(t, "nic.driver="+driver, "respond.udp_ports=[9]", "nic.take_over=true", c.set)
				var out []byte
				var err error
				w.here.do(t, func() { out, err = cmd.CombinedOutput() })
				if err == nil || !strings.Contains(string(out), c.want) {
					t.Errorf("%s: %v, %s; want %q", c.set, err, out, c.want)
				}
			}
			w.run(t, "ping", "-c", "3", "-i", "0.01", "-W", "60", ours4)
			for c, n := w.dial(t, ours4+":7"), uint64(1); n <= 3; n++ {
				check.OK(t, echo(c, n))
			}
			if _, code := p.stop(t, unix.SIGTERM); code != exitDone {
				t.Errorf("exit %d\n%s", code, p.Log)
			}
		})
	}
}
