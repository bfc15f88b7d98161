package efa_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// TestRecovers breaks the device in one way at a time: the driver resets it for the right reason, counts the reset, and
// answers again.
func TestRecovers(t *testing.T) {
	needs.Long(t)
	for _, c := range []struct {
		name, extra string
		reason      int
		broken      func(x *pair)
	}{
		{"admin queue stalled", "resets_admin_timeout", 2, func(x *pair) {
			x.m.StallAdmin(true)
			check.Fails(x, "statistics", x.dev.ReadStats(new(nic.Stats)), nic.ErrTimeout)
			x.m.StallAdmin(false)
		}},
		{"admin completion of another command", "resets_admin_timeout", 2, func(x *pair) {
			x.m.TamperAdmin(func(b []byte) { b[1] ^= 8 })
			check.Fails(x, "statistics", x.dev.ReadStats(new(nic.Stats)), nil, "not outstanding")
		}},
		{"receive request ID", "resets_invalid_rx_req_id", 8, func(x *pair) {
			x.m.TamperCompletion(false, func(b []byte) { binary.LittleEndian.PutUint16(b, 0xfff0) })
			x.echo()
		}},
		{"receive completion twice", "resets_invalid_rx_req_id", 8, func(x *pair) { x.m.DuplicateCompletion(false, 1); x.echo() }},
		{"send request ID", "resets_invalid_tx_req_id", 8, func(x *pair) {
			x.m.TamperCompletion(true, func(b []byte) { binary.LittleEndian.PutUint16(b, 0xfff0) })
			x.echo()
		}},
		{"send completion twice", "resets_invalid_tx_req_id", 8, func(x *pair) { x.m.DuplicateCompletion(true, 1); x.echo() }},
		{"receive flushed", "resets_queue_pair_error", 8, func(x *pair) {
			x.m.TamperCompletion(false, func(b []byte) { b[2] = 1 })
			x.echo()
		}},
		{"fatal error", "resets_fatal_error", 8, func(x *pair) { x.m.Fail() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := start(virtual{t}, efasim.Options{}, nic.EchoUD).serve()
				x.until("echo", x.echo)
				before := x.stats()
				c.broken(x)
				x.until("reset", func() bool { return slices.Contains(x.m.Resets(), c.reason) })
				x.until("echo after the reset", x.again)
				if s := x.stats(); s.Resets == 0 || s.Extra[c.extra] == 0 || s.RxFrames < before.RxFrames {
					t.Errorf("statistics: %+v", s)
				}
			})
		})
	}
}

func TestClientRecovers(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoSRD).serve()
	x.until("echo", x.echo)
	x.client.m.Fail()
	x.until("echo after the reset", func() bool { return x.echo() && len(x.client.m.Resets()) > 1 })
	check.Equal(t, x.client.stats().Resets > 0, true, "the reset is counted: %v")
}

func TestEvents(t *testing.T) {
	needs.Long(t)
	x := start(t, efasim.Options{}, nic.EchoUD).serve()
	x.m.Post(amazon.Event{Group: amazon.GroupWarning, Syndrome: 3})
	x.m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: 4})
	x.until("the warning", func() bool { return strings.Contains(x.log.String(), "the device warns") })
	for n := range uint64(40) { // more than the queue has entries
		x.m.Post(amazon.Event{Group: amazon.GroupKeepAlive})
		x.until("the keep-alive", func() bool { return x.stats().Extra["keep_alives"] > n })
	}
	x.until("echo", x.echo)
	check.Equal(t, x.stats().Resets, 0, "%d resets")
}

func TestUnplugged(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoUD)
	x.port.Start()
	x.client.port.Start()
	defer x.client.port.Stop()
	var never atomic.Bool
	done := make(chan error, 1)
	go func() { done <- x.dev.Serve(0, &never, x.resp) }()
	x.serving = true
	x.until("echo", x.echo)
	x.port.Unplug()
	select {
	case err := <-done:
		if !errors.Is(err, nic.ErrGone) || !nic.Lost(err) {
			t.Errorf("the loop ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the loop goes on")
	}
	check.Fails(t, "statistics", x.dev.ReadStats(new(nic.Stats)), nic.ErrGone)
	must.Close(t, x.dev)
	must.Close(t, x.client.dev)
	x.port.Stop()
}

// A peer that disappears while replies to it are in flight holds only its own buffers, and for a bounded time: until
// the device gives up or, if the device does not, until the driver takes them back.
func TestDeadPeer(t *testing.T) {
	needs.Long(t)
	for _, c := range []struct {
		name    string
		timeout time.Duration
		extra   []string
	}{
		{"the device gives up", 100 * time.Millisecond, []string{"send_unresponsive_remote", "send_unreachable_remote"}},
		{"the device never does", time.Hour, []string{"send_flushed"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := start(t, efasim.Options{Timeout: c.timeout}, nic.EchoSRD).serve()
			x.until("echo", x.echo)
			back := func() (n uint64) {
				s := x.stats()
				for _, name := range c.extra {
					n += s.Extra[name]
				}
				return n
			}
			first, before := back(), x.stats()
			x.client.m.DropReceives(true) // it accepts nothing and acknowledges nothing
			for range 5 {
				x.send(message(1, 16))
			}
			x.until("the buffers to come back", func() bool { return back() >= first+5 })
			if s := x.stats(); s.Resets != 0 || s.TxErrors != before.TxErrors+5 {
				t.Errorf("statistics: %+v, before %+v", s, before)
			}
			x.client.m.DropReceives(false)
			x.until("echo", x.echo)
		})
	}
}

// A client that has no receive buffers loses its replies, and delays no other one's.
func TestClientWithoutReceives(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoSRD)
	x.until("echo", x.echo)
	const rings = 64 // receive buffers of the client
	for n := range uint64(2 * rings) {
		x.send(message(n, 16))
		x.turn()
	}
	for range 1000 {
		x.turn()
	}
	if s := x.stats(); s.Extra["send_remote_rnr"] < rings || s.Resets != 0 {
		t.Errorf("%d requests: %+v", 2*rings, s)
	}
	for x.recv(100) != nil {
	}
	x.until("echo", x.echo)
}

// A device that reports every sender as unknown still answers all of them.
func TestForgetful(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoSRD)
	x.m.Forget(true)
	for range 20 {
		x.until("echo", x.echo)
	}
	check.Equal(t, x.m.Objects().AHs, 1, "%d address handles for one peer")
}

// fail has the device refuse a command.
func fail(command string) func(*efasim.Model) {
	return func(m *efasim.Model) {
		m.FailAdmin(func(c string) uint8 {
			if c == command {
				return 1
			}
			return 0
		})
	}
}

// A message is refused and counted if the device refuses an address handle for its sender.
func TestUnknownSenderRefused(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoSRD)
	fail("CREATE_AH")(x.m)
	x.send(message(1, 16))
	x.until("the refusal", func() bool { return x.resp.Stats()[fastpath.RefusedSender] == 1 })
	x.m.FailAdmin(nil)
	x.until("echo", x.echo)
}

// TestOpenRefuses lists unsupported devices and invalid options, each with the expected part of the error.
func TestOpenRefuses(t *testing.T) {
	bare := efasim.EFA1
	bare.SubCQs = 9
	for _, c := range []struct {
		o    efasim.Options
		set  func(*efasim.Model)
		open nic.Options
		own  efa.Options
		text string
	}{
		{o: efasim.Options{NotReady: true}, text: "not ready"},
		{o: efasim.Options{Width: 31}, text: "31 address bits"},
		{o: efasim.Options{Profile: bare}, text: "completion queues of 9 rings"},
		{set: fail("ALLOC_PD"), text: "allocate protection domain: resource allocation failure"},
		{set: fail("ALLOC_UAR"), text: "allocate doorbell pages"},
		{set: fail("REG_MR"), text: "register memory"},
		{set: fail("CREATE_CQ"), text: "create receive CQ"},
		{set: fail("CREATE_QP"), text: "create queue pair"},
		{set: fail("MODIFY_QP"), text: "modify queue pair"},
		{set: fail("GET_FEATURE DEVICE_ATTR"), text: "get device attributes"},
		{open: nic.Options{MTU: 10000}, text: "messages of up to 10000 bytes"},
		{open: nic.Options{Queues: 65}, text: "65"},
		{open: nic.Options{RingSize: 48}, text: "power of two"},
		{open: nic.Options{MAC: [6]byte{2}}, text: "no MAC address"},
		{open: nic.Options{Steer: &nic.Steer{}}, text: "no frames to steer"},
		{own: efa.Options{Push: "llq"}, text: `push mode "llq": want one of auto, off`},
		{own: efa.Options{MaxInline: -1}, text: "-1 bytes"},
		{own: efa.Options{Services: []nic.Service{nic.EchoUD, nic.EchoUD}}, text: "there twice"},
		{own: efa.Options{Services: []nic.Service{}}, text: "0 services"},
	} {
		x := adapter(t, c.o, 1, nil)
		if c.set != nil {
			c.set(x.m)
		}
		err := x.tryOpen(c.open, c.own)
		if check.Fails(t, "Open", err, nil, c.text); err == nil {
			x.close()
		}
		if c.o.Width != 0 {
			x.port.ForgetViolations() // it needs the response address before it can report its DMA width
		}
		if n := x.port.Mappings(); n != 0 || x.port.BusMaster() {
			t.Errorf("%q: %d mappings and bus master %v are left", c.text, n, x.port.BusMaster())
		}
	}
	x := adapter(t, efasim.Options{}, 1, nil)
	x.m.Mute(true)
	check.Fails(t, "a device that answers no register read", x.tryOpen(nic.Options{}, efa.Options{}), nic.ErrTimeout,
		"register")
}

// TestCommandFails has what Open says if the device refuses one command.
func TestCommandFails(t *testing.T) {
	for _, p := range []efasim.Profile{efasim.EFA1, efasim.EFA3} {
		golden.Equal(t, "testdata/fails-"+p.Name+".txt", refusals(t, p))
	}
}

func refusals(t *testing.T, p efasim.Profile) string {
	return rig.Refusals(func(n int) (refused string, err error) {
		x := adapter(t, efasim.Options{Profile: p}, 1, nil)
		refused = rig.RefusedCommand(x.m, n, func() { err = x.tryOpen(nic.Options{}, efa.Options{}) })
		if err == nil && refused != "" {
			refused += rig.FellBack(x.dev.Info().Notes)
		}
		if err == nil {
			x.close()
		}
		if m := x.port.Mappings(); m != 0 || x.port.BusMaster() {
			t.Errorf("%s: %d mappings and bus master %v are left", refused, m, x.port.BusMaster())
		}
		return refused, err
	})
}

func TestPush(t *testing.T) {
	for _, c := range []struct {
		p    efasim.Profile
		own  efa.Options
		push string
	}{
		{efasim.EFA1, efa.Options{}, "llq 64, up to 32 bytes inline"},
		{efasim.EFA3, efa.Options{}, "llq 128, up to 80 bytes inline"},
		{efasim.EFA3, efa.Options{MaxInline: 32}, "llq 64, up to 32 bytes inline"},
		{efasim.EFA3, efa.Options{MaxInline: 48}, "llq 128, up to 48 bytes inline"},
		{efasim.EFA3, efa.Options{Push: "off"}, "llq 64, no data inline"},
	} {
		one := c.own
		one.Services = []nic.Service{nic.EchoSRD}
		x := startWith(t, efasim.Options{Profile: c.p}, one, efa.Options{Services: one.Services})
		check.Equal(t, x.dev.Info().Push, c.push, c.p.Name+": push %q")
		for _, size := range []int{1, 32, 33, 48, 49, 80, 81} {
			x.size = size
			x.until("echo", x.echo)
		}
	}
}

// TestQueues: with sixteen queues, each queue pair's messages are answered by its own queue, and no two queues write to
// the same cache line.
func TestQueues(t *testing.T) {
	const queues = 16
	a, b := sim.Pair()
	one, two := adapter(t, efasim.Options{Busy: true}, 1, a), adapter(t, efasim.Options{Busy: true}, 2, b)
	one.open(nic.Options{Queues: queues}, efa.Options{})
	two.open(nic.Options{}, efa.Options{})
	defer one.close()
	defer two.close()
	var all []any
	for q := range queues {
		all = append(all, one.dev.Queue(q))
	}
	nictest.Apart(t, all, "pairs.llq", "pairs.sqDB", "pairs.rqDB", "rxCQDB", "txCQDB")
	x := &pair{end: one, client: two, resp: messages(t), buf: make([]byte, 1<<14), size: 100}
	seen := map[uint32]bool{}
	for _, e := range one.dev.Endpoints() {
		if seen[e.QPN] {
			t.Errorf("queue pair %d is there twice", e.QPN)
		}
		seen[e.QPN] = true
		x.from = e.Service
		x.busy(func() (err error) { x.to, err = two.dev.Resolve(e.Address); return err })
		x.until("echo", func() bool {
			x.send(message(uint64(e.QPN), 64))
			for range 1000 {
				two.port.Step()
				one.port.Step()
				for q := range queues {
					if n := one.dev.Queue(q).Poll(x.resp); n > 0 && q != e.Queue {
						t.Errorf("a message to queue %d was answered by queue %d", e.Queue, q)
					}
				}
				if n, _, _ := two.dev.Recv(x.buf); n == 64 {
					return true
				}
			}
			return false
		})
	}
	check.Equal(t, len(seen), 2*queues, "%d queue pairs")
}
