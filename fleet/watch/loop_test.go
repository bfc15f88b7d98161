package watch

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/bench/socket"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/echohost"
	"github.com/rebound-nic/rebound/proof/must"
)

// port is a device that keeps what is sent, and receives what the test gives it.
type port struct {
	nic.Device
	out, in [][]byte
	err     error
	each    func() // before each look for a message
}

func (p *port) Send(b []byte) error {
	if p.err == nil {
		p.out = append(p.out, bytes.Clone(b))
	}
	return p.err
}

func (p *port) Recv(buf []byte) (n int, at int64, err error) {
	if p.each != nil {
		p.each()
	}
	if len(p.in) > 0 {
		n, p.in = copy(buf, p.in[0]), p.in[1:]
	}
	return n, int64(polling.TSC()), p.err
}

// played is a loop that the test plays, with flows over a device. Their next hop is a router with MAC 2:7:...
type played struct {
	*loop
	port  *port
	wire  *wire
	flows []*flow
	hop   *hop
}

func newPlayed(t *testing.T, flows int) *played {
	t.Helper()
	p := &played{loop: loopOf(t), port: &port{}}
	p.wire = &wire{device: p.port, hops: map[netip.Addr]*hop{}, mac: [6]byte{2, 1}}
	e := entry{path: route.Path{Source: netip.MustParseAddr("10.0.0.1"), Next: netip.MustParseAddr("10.0.0.254")}}
	p.hop = p.wire.hopOf(&e)
	p.hop.set([6]byte{2, 7})
	of := planned{p.wire, map[flowKey]*flow{}, map[uint32]*flow{}, probe.Reply{}}
	for i := range flows {
		c := must.Get(probe.New(probe.Flow{Proto: probe.UDP, Src: e.path.Source, SrcMAC: p.wire.mac,
			Dst: netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), SrcPort: 61000, DstPort: 7, Run: uint32(i + 1), Size: 100,
			Routed: true}))(t)
		f := newFlow(int32(i), c, 4)
		f.wire, f.hop, f.interval = p.wire, p.hop, p.clock.Ticks(time.Second)
		of.flows[f.key()], of.runs[uint32(i+1)] = f, f
		p.flows = append(p.flows, f)
	}
	p.adopt(&plan{wires: []planned{of}, flows: p.flows, slot: p.clock.Ticks(time.Second) / uint64(flows)},
		polling.TSC())
	return p
}

// take returns the events since the last call, in words.
func (p *played) take() (all []string) {
	p.events.drain(func(e *event) {
		text := []string{"sent", "unsent", "answered", "missed", "late", "duplicate", "corrupt", "refused"}[e.kind]
		if e.why != nil {
			text += ": " + e.why.Error()
		}
		if e.wrong != outcome.None {
			text += ": " + e.wrong.String()
		}
		for flag, on := range []bool{e.reordered, e.untimed, e.corrupt} {
			if on {
				text += []string{", overtaken", ", untimed", ", and a corrupt reply"}[flag]
			}
		}
		all = append(all, fmt.Sprint(e.flow, " ", text))
	})
	return all
}

// answer is the echo of the n-th frame that was sent.
func (p *played) answer(n int) []byte {
	b := bytes.Clone(p.port.out[n])
	copy(b, slices.Concat(b[6:12], b[:6]))
	copy(b[26:], slices.Concat(b[30:34], b[26:30]))
	copy(b[34:], slices.Concat(b[36:38], b[34:36], b[38:40], []byte{0, 0})) // without a checksum
	return b
}

// What becomes of probes and replies, from the loop's point of view.
func TestLoop(t *testing.T) {
	p := newPlayed(t, 2)
	step := func(what string, want ...string) {
		t.Helper()
		check.Same(t, p.take(), want, what+": %q")
	}
	begin := polling.TSC()
	p.send(begin)
	first := p.order.heap[1].id // the one whose turn it was
	a, b := fmt.Sprint(first, " "), fmt.Sprint(1-first, " ")
	step("sent", a+"sent")
	if got := p.port.out[0]; [6]byte(got) != [6]byte{2, 7} || p.awaited != 1 || p.tail != 1 {
		t.Errorf("a frame to %x, %d awaited, %d pending", got[:6], p.awaited, p.tail)
	}
	p.send(begin)
	p.port.in = [][]byte{p.answer(1), p.answer(0), p.answer(0), p.answer(1)}
	p.port.in[2][len(p.port.in[2])-1] ^= 1
	p.receive(true)
	step("answered, not timed, one twice and one with a wrong copy", b+"sent", b+"answered, untimed", a+"answered, untimed",
		a+"corrupt: wrong payload, untimed", b+"duplicate, untimed")
	check.Equal(t, p.awaited, 0, "%d awaited")
	if p.empty[0] < begin {
		t.Error("when the device was empty is not known")
	}
	f := p.flows[first]
	for _, g := range p.flows {
		g.slots = g.slots[:4]
	}
	p.send(begin)
	p.send(begin)
	p.send(begin)
	p.take()
	p.port.in = [][]byte{p.answer(4), p.answer(4), p.answer(2)}
	p.port.in[0][len(p.port.in[0])-1] ^= 1
	p.receive(false)
	step("wrong, then right, and overtaken", a+"corrupt: wrong payload", a+"answered", a+"answered, overtaken")
	unsent := p.answer(4)
	unsent[49] = 0xff // the number
	p.port.in = [][]byte{unsent, {1, 2, 3}, p.answer(3)}
	p.port.in[2][28]++ // the source
	p.port.in[2][22]-- // and the TTL, so that their sum is right
	p.receive(false)
	step("of no probe, of no protocol, from another host", a+"corrupt: wrong sequence", b+"corrupt: wrong source")
	end := begin + p.timeout + p.clock.Ticks(time.Hour)
	p.expire(end)
	step("overdue", b+"missed, and a corrupt reply")
	if p.awaited != 0 || p.head != p.tail || p.hop.lost != 1 {
		t.Errorf("%d awaited, %d pending, %d lost", p.awaited, p.tail-p.head, p.hop.lost)
	}
	p.port.in = [][]byte{p.answer(3)}
	p.receive(false)
	step("late", b+"late")
	check.Equal(t, p.hop.lost, 0, "%d lost in a row")
	p.port.err = nic.ErrFull
	next := f.next
	p.send(begin)
	p.send(begin)
	step("a full ring", b+"sent", b+"unsent: "+nic.ErrFull.Error(), a+"sent", a+"unsent: "+nic.ErrFull.Error())
	if f.next != next || p.awaited != 0 || p.head != p.tail || p.wire.failure.Load() != nil {
		t.Errorf("number %d, before %d; %d awaited, %d pending", f.next, next, p.awaited, p.tail-p.head)
	}
	p.port.err = nil
	p.tail = p.head + uint64(len(p.pending))
	p.send(begin)
	step("no room to remember it", b+"sent", b+"unsent: too many probes await their replies")
	p.tail = p.head
	p.port.err = errors.New("it broke")
	p.send(begin)
	p.send(begin)
	p.receive(false)
	step("a device that fails", a+"sent", a+"unsent: it broke", b+"sent", b+"unsent: it broke")
	check.Equal(t, len(p.port.out), 5, "%d frames were sent")
}

// Three probes in a row without a reply make the loop ask for the next hop's MAC, unless the administrator has set it.
// Until a reply comes the hop is suspect. A reply to the question changes the MAC of the next probe.
func TestLostNextHop(t *testing.T) {
	p := newPlayed(t, 2)
	lose := func(n int) {
		for range n {
			p.send(polling.TSC())
			p.port.out = nil
			p.expire(polling.TSC() + 2*p.timeout)
		}
	}
	lose(2)
	check.Equal(t, len(p.port.out), 0, "%d frames after two losses")
	p.hop.static.Store(true)
	lose(1)
	check.Equal(t, len(p.port.out), 0, "%d frames to a permanent MAC")
	p.hop.static.Store(false)
	lose(1)
	if len(p.port.out) != 1 || [6]byte(p.port.out[0]) != [6]byte{2, 7} || !p.hop.suspect.Load() {
		t.Errorf("%x, suspect %t", p.port.out, p.hop.suspect.Load())
	}
	router := route.NewNeighbour(p.hop.next, [6]byte{2, 8})
	p.port.in = [][]byte{bytes.Clone(router.Answer(p.wire.hops[p.hop.next].by.Ask(p.hop.next)))}
	p.receive(false)
	p.port.out = nil
	p.send(polling.TSC())
	check.Equal(t, [6]byte(p.port.out[0]), [6]byte{2, 8}, "to %x")
	p.port.in = [][]byte{p.answer(0)}
	p.receive(false)
	if p.hop.lost != 0 || p.hop.suspect.Load() {
		t.Errorf("after a reply: %d lost, suspect %t", p.hop.lost, p.hop.suspect.Load())
	}
	p.wire.solicit([]ask{{p.wire, p.hop}})
	check.Equal(t, len(p.port.out), 2, "%d frames")
	own := route.NewNeighbour(netip.MustParseAddr("10.0.0.77"), p.wire.mac)
	p.wire.neighbours = append(p.wire.neighbours, own)
	p.port.in = [][]byte{bytes.Clone(router.Ask(netip.MustParseAddr("10.0.0.77")))}
	p.receive(false)
	of, mac, ok := route.Announced(p.port.out[len(p.port.out)-1])
	if !ok || of.String() != "10.0.0.77" || mac != p.wire.mac {
		t.Errorf("%v is at %x, %t", of, mac, ok)
	}
	p.port.err = nic.ErrFull
	p.wire.solicit([]ask{{p.wire, p.hop}})
	check.Equal(t, p.wire.failure.Load() == nil, true, "a full ring is no failure: %t")
	p.port.err = errors.New("it broke")
	p.wire.solicit([]ask{{p.wire, p.hop}})
	check.Equal(t, p.wire.failure.Load() != nil, true, "a failure: %t")
	for _, err := range []error{nic.ErrFull, errors.New("it broke")} {
		p = newPlayed(t, 2)
		lose(2)
		p.send(polling.TSC())
		p.port.err = err
		p.expire(polling.TSC() + 2*p.timeout)
		check.Equal(t, p.wire.failure.Load() != nil, err != nic.ErrFull, err.Error()+": failed %t")
	}
}

// A reply from another address than its target's is found by the number of its run, or by what a STAMP reflector
// copies.
func TestRepliesFromElsewhere(t *testing.T) {
	udp, stamp := newFlow(0, udpCodec(t), 8), newFlow(1, codecOf(t, probe.STAMP, 2), 8)
	w := &planned{&wire{socket: &socket.Shared{}}, map[flowKey]*flow{{port: 1}: udp, {port: 2}: stamp},
		map[uint32]*flow{1: udp}, probe.Reply{}}
	b := bytes.Clone(udp.codec.Build(0, 0))
	ping := append(make([]byte, 8), b...)
	seq := stamp.nextNumber()
	stamp.slots[seq] = slot{seq: seq, t1: 77, state: waiting}
	copied := func(seq uint64, t1 uint64) []byte { return echohost.Reflect(stamp.codec.Build(uint32(seq), t1)) }
	for _, c := range []struct {
		what      string
		got, want *flow
	}{
		{"its run", w.flowByRun(b, 0), udp},
		{"four bytes", w.flowByRun(b[:4], 0), udp},
		{"three bytes", w.flowByRun(b[:3], 0), nil},
		{"another run", w.flowByRun(ping, 0), nil},
		{"its copy", w.flowByCopy(copied(seq, 77)), stamp},
		{"a copy of another time", w.flowByCopy(copied(seq, 78)), nil},
		{"a copy of a probe that was not sent", w.flowByCopy(copied(seq+1, 77)), nil},
	} {
		check.Equal(t, c.got, c.want, c.what+": %p")
	}
	w.echo = true
	check.Equal(t, w.flowByRun(ping, 0), udp, "behind the ICMP header: %p")
	check.Equal(t, w.flowByCopy(copied(seq, 77)), nil, "ICMP: %p")
	l := loopOf(t)
	p := played{loop: l}
	l.process(stamp, copied(seq, 78), 1, 0, false, outcome.None)
	l.process(stamp, copied(seq, 77), 1, 0, false, outcome.Source)
	l.process(stamp, copied(seq+5, 77), 1, 0, false, outcome.None)
	check.Same(t, p.take(), []string{"1 corrupt: wrong payload", "1 corrupt: wrong source",
		"1 corrupt: wrong sequence"}, "%q")
}

// Each probe leaves in the middle half of its slot, and a late loop does not catch up. A plan without a flow forgets
// its probes, and awaits the others'.
func TestLoopKeepsItsSchedule(t *testing.T) {
	p := newPlayed(t, 4)
	slot := p.plan.slot
	if p.due-p.start != 0 || len(p.pending) < 1024+4+16 {
		t.Errorf("due %d after the start of the slot, room for %d", p.due-p.start, len(p.pending))
	}
	least, most := slot, uint64(0)
	for i := range 400 {
		start := p.start + slot
		if i == 200 {
			start = p.due + slot + slot/4*3
			p.send(start)
		} else {
			p.send(p.due)
		}
		check.Equal(t, p.start, start, "the slot starts at %d")
		least, most = min(least, p.due-p.start), max(most, p.due-p.start)
		p.head = p.tail
	}
	if least < slot/4 || least > slot/3 || most > slot/4*3+1 || most < slot/3*2 {
		t.Errorf("probes leave %d to %d ticks after the start of slots of %d", least, most, slot)
	}
	p.take()
	p.awaited, p.head = 0, p.tail
	for _, f := range p.flows {
		clear(f.slots)
		f.missed[0] = 0
	}
	for range 4 {
		p.send(p.due)
	}
	kept := p.flows[2:]
	before, due := p.plan, p.due
	done := make(chan struct{})
	p.adopt(&plan{wires: before.wires, flows: kept, slot: 2 * slot, adopted: done}, p.due)
	<-done
	if p.awaited != 2 || p.tail-p.head != 2 || p.due < due || p.due >= due+2*slot || len(p.pending) < 1024+2+8 {
		t.Errorf("%d awaited, %d pending, due %d later", p.awaited, p.tail-p.head, p.due-due)
	}
	due = p.due
	p.adopt(&plan{wires: before.wires, flows: kept, slot: 2 * slot}, p.due)
	check.Equal(t, p.due, due, "the same flows: due at %d")
}

// Between probes the loop sleeps if it may and no reply is awaited, until shortly before one is due. What arrived while
// it slept, or while it adopted a plan, is not timed. It asks for a MAC once a second.
func TestLoopRuns(t *testing.T) {
	const passes, adopts, overdue = 8, 4, 6 // the latter are passes with a new plan, and with a question
	for what, c := range map[string]struct {
		sleeps, awaits, asks, none bool // none: there is no flow
		due                        time.Duration
		slept                      bool // before each pass
		sent                       int
	}{
		"it may not sleep":      {due: time.Hour},
		"nothing is due":        {sleeps: true, due: time.Hour, slept: true},
		"no flow":               {sleeps: true, none: true, slept: true},
		"no flow, and no sleep": {none: true},
		"a reply is awaited":    {sleeps: true, awaits: true, due: time.Hour},
		"one will be due soon":  {sleeps: true, due: margin / 2, sent: -1}, // or is, on a busy machine
		"one is due":            {sleeps: true, sent: 1},
		"a MAC is asked for":    {sleeps: true, asks: true, due: time.Hour, slept: true},
		"and it may not sleep":  {asks: true, due: time.Hour},
	} {
		p := newPlayed(t, 1)
		hour, next := p.clock.Ticks(time.Hour), *p.plan
		p.timeout, p.sleeps, next.slot = hour, c.sleeps, hour
		p.send(polling.TSC())
		p.port.in = [][]byte{p.answer(0)}
		p.receive(false)
		again := p.answer(0)
		if c.awaits {
			p.send(polling.TSC())
		}
		if c.asks {
			next.asks = []ask{{p.wire, p.hop}}
		}
		if next.adopted = make(chan struct{}); c.none {
			next.flows = nil
		}
		*p.plan = next
		p.plan.adopted = nil
		p.take()
		p.port.out = nil
		begin := polling.TSC()
		p.due = begin + p.clock.Ticks(c.due)
		if c.none {
			p.due = 0
		}
		looks := 0
		p.port.each = func() {
			if looks++; looks%2 == 0 {
				return // nothing is left in this pass
			}
			p.port.in = [][]byte{again}
			if c.due == margin/2 {
				p.due = polling.TSC() + p.clock.Ticks(c.due)
			}
			switch pass := looks/2 + 1; pass {
			case 2:
				if second := p.clock.Ticks(time.Second); c.asks && (p.askAt < begin+second ||
					p.askAt > polling.TSC()+second) {
					t.Errorf("%s: the next question in %d ticks, a second has %d", what, p.askAt-begin, second)
				}
				p.askAt = polling.TSC() + hour
			case adopts:
				p.offer.Store(&next)
			case overdue:
				p.askAt = begin
			case passes:
				p.stop.Store(true)
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // never unlocked: the loop changes how the thread sleeps
			p.run()
		}()
		<-done
		check.Equal(t, p.passes.Load(), passes, what+": %d passes")
		<-next.adopted
		var counts [polling.Buckets]uint64
		p.Gap.Load(&counts)
		gaps, sent := uint64(0), 0
		for _, n := range counts {
			gaps += n
		}
		if c.awaits {
			check.Equal(t, gaps, passes-2, what+": %d gaps") // not of the first pass, and not of that after the new plan
		} else if c.sent == 0 {
			check.Equal(t, gaps, 0, what+": %d gaps")
		}
		var want []string
		for i := range passes {
			want = append(want, "0 duplicate")
			if i == 0 || i == adopts || c.slept {
				want[i] += ", untimed"
			}
		}
		got := slices.DeleteFunc(p.take(), func(e string) bool {
			if e == "0 sent" {
				sent++
			}
			return e == "0 sent"
		})
		check.Same(t, got, want, what+": %q")
		if c.sent >= 0 {
			check.Equal(t, sent, c.sent, what+": %d probes")
			check.Equal(t, len(p.port.out)-sent, map[bool]int{true: 2}[c.asks], what+": %d questions")
		}
	}
}

// The loop lets the runtime collect garbage now and then, whether it awaits a reply or not.
func TestLoopYields(t *testing.T) {
	for _, awaits := range []bool{false, true} {
		p := newPlayed(t, 1)
		if p.timeout = p.clock.Ticks(time.Hour); awaits {
			p.send(polling.TSC())
		}
		p.due = polling.TSC() + p.timeout
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			p.run()
		}()
		await.Until(t, "the loop runs", func() bool { return p.passes.Load() > 0 })
		runtime.GC()
		p.stop.Store(true)
		<-done
	}
}
