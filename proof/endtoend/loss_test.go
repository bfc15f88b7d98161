package endtoend

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
)

// impairer echoes UDP in the target's namespace, impairs some of the replies, and counts them.
type impairer struct {
	t    *testing.T
	n    *network
	conn *net.UDPConn

	got, lost, twice, swapped, corrupt int64
	held                               []reply
	done                               chan struct{}
}

type reply struct {
	b  []byte
	to netip.AddrPort
}

// newImpairer listens on a separate port, with a receive buffer large enough for everything that a bench sends.
func (n *network) newImpairer() *impairer {
	i := &impairer{t: n.t, n: n}
	n.must(n.far.Do(func() (err error) {
		if i.conn, err = net.ListenUDP("udp4", &net.UDPAddr{}); err != nil {
			return err
		}
		raw, err := i.conn.SyscallConn()
		if err != nil {
			return err
		}
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET,
				unix.SO_RCVBUFFORCE, 64<<20)
		}), err)
	}))
	n.t.Cleanup(func() { i.conn.Close() })
	return i
}

func (i *impairer) port() string { return fmt.Sprint(i.conn.LocalAddr().(*net.UDPAddr).Port) }

// probes are a bench's arguments for one run of count probes at a rate, with a report in dir.
func (i *impairer) probes(dir string, count, rate int, more ...string) []string {
	return quick(append([]string{"-target", far4, "-proto", "udp", "-port", i.port(), "-count", fmt.Sprint(count),
		"-runs", "1", "-rate", fmt.Sprint(rate),
		"-warmup", "0s", "-timeout", "2s", "-out", dir}, more...)...)
}

func (i *impairer) send(r reply) {
	if _, err := i.conn.WriteToUDPAddrPort(r.b, r.to); err != nil {
		i.t.Error(err)
	}
}

// serve answers until the connection is closed. Of every 100 probes one is lost, and if all is set, one is answered
// twice, one after the next, and one with a wrong bit; from the probe numbered hold on, each replies are held back
// until release is called.
func (i *impairer) serve(all bool, hold, each int64, release func()) {
	var swap *reply
	i.answer(func(r reply) {
		holding := hold > 0 && i.got > hold && int64(len(i.held)) < each
		switch kind := binary.BigEndian.Uint32(r.b[4:]) % 100; {
		case kind == 10:
			i.lost++
			return
		case holding:
			i.held = append(i.held, r)
			if int64(len(i.held)) == each {
				release()
			}
			return
		case all && kind == 20:
			i.twice++
			i.send(r)
		case all && kind == 30:
			i.swapped++
			swap = &r
			return
		case all && kind == 40:
			i.corrupt++
			r.b[len(r.b)-1] ^= 4
		}
		i.send(r)
		if swap != nil {
			i.send(*swap)
			swap = nil
		}
	})
}

// answer calls f with the reply to each probe until the connection is closed.
func (i *impairer) answer(f func(reply)) {
	i.done = make(chan struct{})
	go func() {
		defer close(i.done)
		buf := make([]byte, 1<<16)
		for {
			k, from, err := i.conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			i.got++
			f(reply{bytes.Clone(buf[:k]), from})
		}
	}()
}

// end closes the connection, and returns when the last probe has been answered.
func (i *impairer) end() {
	i.conn.Close()
	<-i.done
}

// The report matches the impairment of the replies, with every transport.
func TestImpairmentIsCounted(t *testing.T) {
	n := newNetwork(t)
	for _, how := range ways {
		t.Run(strings.Join(how, " "), func(t *testing.T) {
			var i *impairer
			var r result
			var c report.Counts
			// On a busy machine the bench may drop replies itself, which is TestDroppedHere's subject.
			for tries := 0; tries == 0 || c.DroppedHere > 0 && tries < 10; tries++ {
				i = n.newImpairer()
				i.serve(true, 0, 0, nil)
				dir := filepath.Join(t.TempDir(), "out")
				args := i.probes(dir, 1000, 2000, "-size", "100")
				if !slices.Contains(how, "socket") { // a kernel socket has no ring
					args = append(args, "-ring-size", "2048")
				}
				r = n.bench(slices.Concat(args, how)...)
				i.end()
				c = readReport(t, dir, r).Counts
			}
			spoiled := i.corrupt // answered by a corrupt reply only: not lost
			if c.Sent != 1000 || i.got != 1000 || c.Received+c.Late != 1000-i.lost-spoiled || c.Duplicates != i.twice ||
				c.Reordered != i.swapped || c.Corrupt != i.corrupt ||
				c.Lost != i.lost || c.LostLeast() != i.lost-min(i.lost, c.DroppedHere) || i.lost != 10 {
				t.Errorf("%+v; the truth is %d received, %d lost, %d twice, %d swapped, %d corrupt\n%s", c, i.got,
					i.lost, i.twice, i.swapped, i.corrupt, r.out)
			}
		})
	}
}

var ways = [][]string{{"-driver", "afpacket"}, {"-driver", "afxdp"}, {"-transport", "socket"}}

// Replies that this host drops, because the bench is stopped and its ring or socket overflows, are not lost between the
// hosts. Other frames of the host that arrive meanwhile count for neither, where the transport sees that they are other
// ones.
func TestDroppedHere(t *testing.T) {
	n := newNetwork(t)
	for _, how := range ways {
		t.Run(strings.Join(how, " "), func(t *testing.T) {
			i, other := n.newImpairer(), n.newImpairer()
			dir := filepath.Join(t.TempDir(), "out")
			ring := []string{"-ring-size", "64"}
			if how[0] == "-transport" {
				ring = nil // the kernel's default buffer has room for a few hundred datagrams
			}
			c := n.prepare(slices.Concat(i.probes(dir, 4000, 5000), how, ring)...)
			const held = 2000
			i.serve(false, 100, held, func() {
				check.OK(t, stopProcess(c.Process.Pid))
				before := n.arrived()
				for k, r := range i.held {
					i.send(r)
					if k%50 == 0 {
						other.send(reply{make([]byte, 99), netip.AddrPortFrom(r.to.Addr(), 9)})
					}
				}
				await.Holds(func() bool { return n.arrived() >= before+held+held/50 })
				check.OK(t, c.Process.Signal(syscall.SIGCONT))
			})
			r := c.begin().wait()
			i.end()
			n := readReport(t, dir, r).Counts
			if n.Sent != 4000 || i.got != 4000 || i.lost != 40 {
				t.Fatalf("%+v; %d arrived there, %d lost", n, i.got, i.lost)
			}
			// the kernel rejects the other frames before a socket or AF_XDP sees whose they are
			unseen := int64(held / 50)
			if slices.Contains(how, "afpacket") {
				unseen = 0
			}
			if missing := n.Sent - n.Received - n.Late; n.DroppedHere != missing-i.lost || n.DroppedHere < 500 ||
				n.Lost != i.lost || n.LostUncertain != unseen {
				t.Errorf("%+v: %d are missing, %d were lost\n%s", n, missing, i.lost, r.out)
			}
			dropped := n.AtText(report.DroppedHere)
			check.Contains(t, r.out, "lost "+n.LostText()+"  ", "dropped here "+dropped)
			check.Contains(t, content(t, filepath.Join(dir, report.HTMLFile)), "Dropped here: ")
		})
	}
}

func stopProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	var tasks []string
	var err error
	stopped := await.Holds(func() bool {
		tasks, err = filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if err != nil {
				continue
			}
			if _, rest, _ := strings.Cut(string(b), ") "); rest[0] != 'T' {
				return false
			}
		}
		return true
	})
	if !stopped || err != nil || len(tasks) == 0 {
		return fmt.Errorf("process %d with %d tasks does not stop: %v", pid, len(tasks), err)
	}
	return nil
}

// Probes that the target's host refuses, because nothing listens at the port any more, are not counted as certainly
// lost between the hosts.
func TestRefusedThere(t *testing.T) {
	n := newNetwork(t)
	for _, how := range ways {
		t.Run(strings.Join(how, " "), func(t *testing.T) {
			i := n.newImpairer()
			before := n.noPorts(n.far)
			i.serve(false, 500, 1, func() { i.conn.Close() })
			dir := filepath.Join(t.TempDir(), "out")
			r := n.bench(i.probes(dir, 1000, 2000, how...)...)
			i.end()
			refused := n.noPorts(n.far) - before // fewer than 505 if some waited in the socket when it was closed
			c := readReport(t, dir, r).Counts
			if answered := c.Received + c.Late; answered > 495 || answered+c.DroppedHere < 495 {
				t.Errorf("495 were answered: %+v\n%s", c, r.out)
			}
			if how[1] == "afxdp" { // its program passes ICMP errors to the kernel
				return
			}
			if c.LostLeast() > 505-refused || c.RefusedThere > refused+c.LostUncertain ||
				strings.Contains(r.out, "refused there") != (c.RefusedThere > 0) ||
				refused == 505 && c.DroppedHere == 0 && (c.RefusedThere != 505 || c.LostLeast() != 0) {
				t.Errorf("%d were refused: %+v\n%s", refused, c, r.out)
			}
		})
	}
}
