package efa_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/efa"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

// Every generation answers messages of all sizes, over both transports, and its counters agree.
func TestEcho(t *testing.T) {
	for _, p := range efasim.Profiles() {
		for _, s := range []nic.Service{nic.EchoUD, nic.EchoSRD} {
			t.Run(fmt.Sprintf("%s %v", p.Name, s), func(t *testing.T) {
				x := start(t, efasim.Options{Profile: p}, s)
				for _, size := range []int{1, 8, 31, 32, 33, 80, 81, 1024, 8888} {
					x.size = size
					x.until(fmt.Sprintf("%d bytes", size), x.echo)
				}
				for range 500 {
					x.size = int(8 + x.next*131%8000)
					x.until("echo", x.echo)
				}
				n := x.next // on a busy machine more than were awaited: a late echo is requested again
				x.until("each message to be answered", func() bool {
					return x.resp.Stats()[fastpath.AnsweredMessage] >= n
				})
				x.settle()
				if st := x.resp.Stats(); st[fastpath.AnsweredMessage] != n || st.Refused() != 0 {
					t.Errorf("counted %v", st)
				}
				if s, c := x.stats(), x.client.stats(); s.RxFrames < n || s.TxFrames < n ||
					s.TxErrors+s.RxErrors+s.RxDropped+s.Resets+c.TxErrors != 0 {
					t.Errorf("statistics of the responder: %+v\nof the client: %+v", s, c)
				}
			})
		}
	}
}

func TestBurst(t *testing.T) {
	for _, p := range efasim.Profiles() {
		x := start(t, efasim.Options{Profile: p, Seed: 3}, nic.EchoSRD)
		x.busy(func() error { return x.dev.Prewarm(x.client.address(nic.EchoSRD).GID) })
		seen := map[string]int{}
		const rounds, burst = 40, 30
		for i := range rounds {
			for j := range burst {
				x.send(message(uint64(i*burst+j), 8+j*200))
			}
			for range burst {
				b := x.recv(100000)
				if b == nil {
					t.Fatalf("%s: %d of %d came back in round %d", p.Name, len(seen), burst*(i+1), i)
				}
				seen[string(b)]++
			}
		}
		for n := range uint64(rounds * burst) {
			if c := seen[string(message(n, int(8+n%burst*200)))]; c != 1 {
				t.Errorf("%s: message %d came back %d times", p.Name, n, c)
			}
		}
	}
}

// A message from an unknown sender is also answered, slightly later; from then on the sender is known.
func TestUnknownSender(t *testing.T) {
	for _, s := range []nic.Service{nic.EchoUD, nic.EchoSRD, nic.STAMPSRD} {
		x := start(t, efasim.Options{}, s)
		must.Equal(t, x.m.Objects().AHs, 0, "%d address handles before the first message")
		x.send(message(1, 64))
		x.until("the first message", func() bool { return x.recv(1) != nil })
		check.Equal(t, x.m.Objects().AHs, 1, s.String()+": %d address handles")
		x.send(message(2, 64))
		check.Equal(t, x.recv(1000) != nil, true, "the second message is answered at once: %v")
		check.Equal(t, x.m.Objects().AHs, 1, s.String()+": %d address handles after more messages")
	}
}

func TestSTAMP(t *testing.T) {
	x := start(t, efasim.Options{}, nic.STAMPUD)
	p := make([]byte, 44)
	be := binary.BigEndian
	be.PutUint32(p, 77)
	be.PutUint64(p[4:], 1<<40)
	x.send(p)
	var b []byte
	x.until("the reply", func() bool { b = x.recv(1); return b != nil })
	if len(b) != 44 || be.Uint32(b) != 77 || be.Uint32(b[24:]) != 77 || be.Uint64(b[28:]) != 1<<40 || b[40] != 255 ||
		be.Uint64(b[16:]) == 0 ||
		be.Uint64(b[4:]) < be.Uint64(b[16:]) {
		t.Errorf("reply % x", b)
	}
	x.send(p[:40])
	x.until("the refusal", func() bool { return x.resp.Stats()[fastpath.RefusedSTAMPShort] == 1 })
}

// Two connected responders do not bounce messages: the reply of one is not answered by the other.
func TestNoBounce(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoSRD)
	other := messages(t)
	for range 3 { // as if from the second responder's own queue pair
		x.send(message(1, 16))
	}
	x.until("replies", func() bool {
		x.client.dev.Queue(0).Poll(other)
		return other.Stats()[fastpath.RefusedReply] == 3
	})
	if s, u := x.resp.Stats(), other.Stats(); s[fastpath.AnsweredMessage] != 3 || s.Refused() != 0 ||
		u.Answered() != 0 {
		t.Errorf("the first counted %v, the second %v", s, u)
	}
}

func TestQKey(t *testing.T) {
	x := startWith(t, efasim.Options{}, efa.Options{}, efa.Options{Services: []nic.Service{nic.EchoUD},
		QKey: 0x22222222})
	for range 3 {
		x.send(message(1, 16))
	}
	x.settle()
	check.Equal(t, x.stats().Extra["qkey_viol"], 3, "%d violations counted")
	if s := x.resp.Stats(); s.Answered()+s.Refused() != 0 {
		t.Errorf("counted %v", s)
	}
}

// Bus cost of a reply: nothing is read before sending if the message is inline, otherwise one contiguous range of
// memory.
func TestCost(t *testing.T) {
	const n, refill = 1024, 16
	for _, c := range needs.Each(2, []struct {
		p     efasim.Profile
		limit int
		push  uint64 // bursts of 64 bytes
	}{{efasim.EFA1, 32, 1}, {efasim.EFA0, 32, 1}, {efasim.EFA3, 80, 2}, {efasim.EFA2, 32, 1}}) {
		for _, s := range needs.Each(2, []nic.Service{nic.EchoSRD, nic.EchoUD}) {
			for _, size := range []int{32, 33, 80, 81, 4096} {
				if c.limit == 32 && size > 33 && (c.p.Name != efasim.EFA1.Name || s == nic.EchoUD) {
					continue // the same as for the others
				}
				k, desc := cost(t, c.p, s, size, n)
				reads := uint64(0)
				if size > c.limit {
					reads = n
				}
				// A reply: the entry and its doorbell; the message, its completion in two writes, the send's
				// completion. Receive buffers go back 16 at a time with a doorbell, and consumed completions are
				// reported if the device requires it.
				low, high := n*(c.push+1)+n/refill, n*(c.push+1)+n/refill
				if c.p.Polled {
					low, high = low+n/refill, high+2*n/refill+2
				}
				t.Logf("%s, %v, %d bytes: %d replies cost %+v, %d of the DMA reads for receive descriptors", c.p.Name,
					s, size, n, k, desc)
				const watch = 40 // the watchdog reads the device's status once a second, and receives keep-alives
				if k.MMIORead > watch || k.MMIOWrite < low || k.MMIOWrite > high+watch || k.DMARead-desc != reads ||
					k.DMAWrite < 4*n || k.DMAWrite > 4*n+watch {
					t.Errorf("%s, %v, %d bytes: %d replies cost %+v; want %d to %d MMIO writes, %d DMA reads beside %d for descriptors, %d DMA writes",
						c.p.Name, s, size, n, k, low, high, reads, desc, 4*n)
				}
			}
		}
	}
}

// cost steps both ends alternately through n messages, and returns the responder's transactions.
func cost(t *testing.T, p efasim.Profile, s nic.Service, size int, n int) (sim.Counts, uint64) {
	t.Helper()
	one := []nic.Service{s}
	x := startWith(t, efasim.Options{Profile: p}, efa.Options{Services: one}, efa.Options{Services: one})
	x.busy(func() error { return x.dev.Prewarm(x.client.address(s).GID) })
	var before sim.Counts
	var desc uint64
	const settled = 200
	for i := range n + settled {
		if i == settled {
			before, desc = x.port.Counts(), x.m.Counters().RxDescReads
		}
		x.send(message(uint64(i), size))
		if x.recv(10000) == nil {
			t.Fatalf("%s, %v: message %d of %d bytes did not come back", p.Name, s, i, size)
		}
		for range 20 { // acknowledgements
			x.turn()
		}
	}
	return x.port.Counts().Since(before), x.m.Counters().RxDescReads - desc
}

func gid(n int) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 14: byte(n >> 8), 15: byte(n)})
}

// announce has n senders announce themselves.
func (x *pair) announce(from, n int) {
	x.Helper()
	x.busy(func() (err error) {
		for i := from; i < from+n && err == nil; i++ {
			err = x.dev.Prewarm(gid(i))
		}
		return err
	})
}

// A flood of unknown senders only displaces unknown senders: a sender that announced itself keeps its address handle,
// and so does a bench's target.
func TestUnknownSendersDisplaceEachOther(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoUD)
	user, once := x.client.address(nic.EchoUD).GID, gid(1)
	x.busy(func() error { return errors.Join(x.dev.Prewarm(user), x.dev.Unknown(once), x.dev.Prewarm(once)) })
	was := [2]uint32{x.dev.Handle(user), x.dev.Handle(once)}
	x.busy(func() (err error) {
		for n := 2; n < 1200 && err == nil; n++ {
			if err = x.dev.Unknown(gid(n)); err == nil && x.dev.Handle(gid(n)) == efa.NoHandle {
				err = fmt.Errorf("unknown sender %d has no handle", n)
			}
		}
		return err
	})
	check.Equal(t, [2]uint32{x.dev.Handle(user), x.dev.Handle(once)}, was,
		"handles of those that announced themselves: %d")
	if n := x.m.Objects().AHs; n > 1024 || n < 256 {
		t.Errorf("%d address handles", n)
	}
	x.send(message(1, 64))
	check.Equal(t, x.recv(1000) != nil, true, "the sender that announced itself is answered at once: %v")
	x.announce(5000, 900) // they displace only each other, and are bounded, too
	if n := x.m.Objects().AHs; n > 1024 || x.dev.Handle(gid(1199)) == efa.NoHandle {
		t.Errorf("%d address handles, the last unknown sender has %d", n, x.dev.Handle(gid(1199)))
	}
}

// Many senders that announce themselves displace the oldest of them, unless it announces itself again. One that was
// displaced is answered nevertheless.
func TestAnnouncedSendersDisplaceEachOther(t *testing.T) {
	x := start(t, efasim.Options{}, nic.EchoUD)
	user := x.client.address(nic.EchoUD).GID
	prewarm := func() { x.busy(func() error { return x.dev.Prewarm(user) }) }
	prewarm()
	x.announce(1000, 500)
	prewarm()
	x.announce(2000, 500)
	check.Equal(t, x.dev.Handle(user) != efa.NoHandle, true,
		"a sender that announced itself again was not displaced by 500 others: %v")
	x.announce(3000, 500)
	if x.dev.Handle(user) != efa.NoHandle || x.m.Objects().AHs > 1024 {
		t.Errorf("after 1000 others: handle %d, %d address handles", x.dev.Handle(user), x.m.Objects().AHs)
	}
	x.until("echo", x.echo)
}

// From tells the responder's queue pair from another one of its host, with and without an address handle in the
// completion.
func TestFrom(t *testing.T) {
	for _, forget := range []bool{false, true} {
		x := start(t, efasim.Options{Profile: efasim.Profiles()[0], Seed: 3}, nic.EchoUD)
		real := x.address(nic.EchoUD)
		other := real
		other.QPN ^= 1
		elsewhere := real
		elsewhere.GID = x.client.address(nic.EchoUD).GID
		var peers [3]nic.Peer
		for i, a := range []nic.Address{real, other, elsewhere} {
			x.busy(func() (err error) { peers[i], err = x.client.dev.Resolve(a); return err })
		}
		if forget {
			x.client.m.Forget(true)
		}
		x.send(message(1, 64))
		if x.recv(100000) == nil {
			t.Fatal("no reply")
		}
		if d := x.client.dev; !d.From(peers[0]) || d.From(peers[1]) || d.From(peers[2]) || d.From(99) {
			t.Errorf("forget %v: from the responder %v, another queue pair %v, another host %v, no peer %v", forget,
				d.From(peers[0]), d.From(peers[1]), d.From(peers[2]), d.From(99))
		}
	}
}

// TestMeasuredPush: where the memory type of BAR 2 is unknown, the first replies are timed. They arrive as all others
// do.
func TestMeasuredPush(t *testing.T) {
	was := kit.MeasurePush
	t.Cleanup(func() { kit.MeasurePush = was }) // after the loops have ended
	t.Cleanup(mmio.PushToMemory())
	kit.MeasurePush = func(pci.Function) bool { return true }
	x := start(t, efasim.Options{Profile: efasim.EFA3}, nic.EchoUD).serve() // its doorbells are in another BAR
	for range 40 {
		x.until("echo", x.echo)
	}
	for _, d := range []*efa.Device{x.dev, x.client.dev} {
		x.until("a result", func() bool {
			return strings.Contains(strings.Join(d.Info().Notes, " "),
				"measured: 64 bytes")
		})
	}
}
