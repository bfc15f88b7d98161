package rdma

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// end is one side of a connection on a test's wire, with its own memory.
type end struct {
	Connection
	t     *testing.T
	now   *time.Duration
	peer  *end
	in    []*Packet
	lose  func(p *Packet) bool
	mem   []byte
	key   uint32 // of all of mem, for the peer
	posts []int  // lengths of receive requests, each at its index times 64 KB
	next  uint32
	log   []string
	count [ReadRequests + 1]int
	held  bool // the peer does not run
	dead  bool
}

const room = 1 << 16

var errPlace = errors.New("no such memory")

func (e *end) Now() time.Duration { return *e.now }
func (e *end) OnWire() bool       { return e.held }

func (e *end) Transmit(p *Packet) {
	q, ok := Parse(p.Append(nil))
	if !ok || q.Op != p.Op || q.PSN != p.PSN || q.AckRequest != p.AckRequest || q.Solicited != p.Solicited ||
		!bytes.Equal(q.Body, p.Body) {
		e.t.Errorf("sent %+v, read %+v", p, q)
	}
	if e.lose == nil || !e.lose(&q) {
		e.peer.in = append(e.peer.in, &q)
	}
}

func (e *end) place(list []Segment, off, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if off+n > list[0].N {
		return nil, fmt.Errorf("%w: %d bytes at %d of %d", ErrRoom, n, off, list[0].N)
	}
	if list[0].Key != 1 {
		return nil, errPlace
	}
	return e.mem[int(list[0].At)+off:][:n], nil
}

func (e *end) Gather(list []Segment, off, n int) ([]byte, error) { return e.place(list, off, n) }

func (e *end) Scatter(list []Segment, off int, b []byte) error {
	m, err := e.place(list, off, len(b))
	copy(m, b)
	return err
}

func (e *end) ReadMemory(key uint32, at uint64, n int) ([]byte, error) {
	if key != e.key {
		return nil, ErrAccess
	}
	return e.mem[at:][:n], nil
}

func (e *end) WriteMemory(key uint32, at uint64, b []byte) error {
	if key != e.key {
		return ErrAccess
	}
	copy(e.mem[at:], b)
	return nil
}

func (e *end) TakeReceive() ([]Segment, uint32, bool) {
	if int(e.next) == len(e.posts) {
		return nil, 0, false
	}
	i := e.next
	e.next++
	return []Segment{{Key: 1, At: uint64(i) * room, N: e.posts[i]}}, i, true
}

func (e *end) say(format string, args ...any)      { e.log = append(e.log, fmt.Sprintf(format, args...)) }
func (e *end) Done(r *Request)                     { e.say("done %d", r.Index) }
func (e *end) Failed(r *Request, f Fault, _ error) { e.say("failed %d by %d", r.Index, f) }
func (e *end) Received(r Received) {
	e.say("received %d: %d bytes, %x, write %v, solicited %v", r.Index, r.N, r.Immediate, r.Write, r.Solicited)
}
func (e *end) ReceiveFailed(i uint32, _ error) { e.say("receive %d failed", i) }
func (e *end) Refused(f Fault)                 { e.say("refused by %d", f) }
func (e *end) Fail()                           { e.dead = true }
func (e *end) Count(v Event)                   { e.count[v]++ }

func pair(t *testing.T, retry, rnr int) (a, b *end) {
	now := new(time.Duration)
	make1 := func(psn, expected uint32) *end {
		return &end{t: t, now: now, mem: make([]byte, 4*room), key: 7,
			Connection: Connection{MTU: 256, Timeout: time.Millisecond, Retry: retry, RNRRetry: rnr, RNRTimer: 1,
				NextPSN: psn, Expected: expected}}
	}
	a, b = make1(0xfffffe, 5), make1(5, 0xfffffe) // the numbers wrap
	a.peer, b.peer = b, a
	for i := range a.mem {
		a.mem[i] = byte(i * 7)
		b.mem[i] = 0xee
	}
	return a, b
}

func run(d time.Duration, ends ...*end) {
	for until := *ends[0].now + d; *ends[0].now < until; *ends[0].now += 10 * time.Microsecond {
		for _, e := range ends {
			in := e.in
			e.in = nil
			for _, p := range in {
				if !e.dead {
					e.Receive(e, p)
				}
			}
			if e.dead {
				e.Flush(e)
			} else {
				e.Step(e)
			}
		}
	}
}

func (e *end) post(r *Request) {
	if r.Length > 0 {
		r.List = []Segment{{Key: 1, At: room, N: r.Length}}
	}
	e.Post(e, r)
}

func (e *end) said(t *testing.T, want ...string) {
	t.Helper()
	check.Same(t, e.log, want, "it said %q")
	e.log = nil
}

// Every kind of request, at every boundary length, arrives whole and in order despite losses.
func TestRequestsArrive(t *testing.T) {
	for _, loss := range []int{0, 3, 10} {
		again := 0
		for _, n := range []int{0, 1, 255, 256, 257, 512, 1000, 40000} {
			a, b := pair(t, 100, 7)
			rng := rand.New(rand.NewPCG(uint64(loss), uint64(n)))
			lose := func(*Packet) bool { return loss > 0 && rng.IntN(loss) == 0 }
			acks := 0
			a.lose = lose
			b.lose = func(p *Packet) bool {
				if p.Op == Ack {
					acks++
				}
				return lose(p)
			}
			b.posts = []int{n, n, n}
			imm := []byte{1, 2, 3, 4}
			a.post(&Request{Index: 10, Kind: Send, Length: n})
			a.post(&Request{Index: 11, Kind: Write, Length: n, At: 3 * room, RKey: 7})
			a.post(&Request{Index: 12})
			a.post(&Request{Index: 13, Kind: Send, Length: n, Immediate: imm, Solicited: true})
			a.post(&Request{Index: 14, Kind: Write, Length: n, At: 3 * room, RKey: 7, Immediate: imm})
			a.post(&Request{Index: 15, Kind: Read, Length: n, At: 2 * room, RKey: 7})
			a.post(&Request{Index: 16, Kind: Write, Length: 1, At: 4*room - 1, RKey: 7})
			run(2*time.Second, a, b)
			what := fmt.Sprintf("%d bytes, one of %d lost", n, loss)
			a.said(t, "done 10", "done 11", "done 12", "done 13", "done 14", "done 15", "done 16")
			b.said(t, fmt.Sprintf("received 0: %d bytes, , write false, solicited false", n),
				fmt.Sprintf("received 1: %d bytes, 01020304, write false, solicited true", n),
				fmt.Sprintf("received 2: %d bytes, 01020304, write true, solicited false", n))
			sent := a.mem[2*room:][:n] // room is a multiple of 256: a.mem[room:] had the same bytes
			for _, at := range []int{0, room, 3 * room} {
				if !bytes.Equal(b.mem[at:at+n], sent) || b.mem[at+n] != 0xee {
					t.Errorf("%s: other bytes arrived at %#x", what, at)
				}
			}
			check.Same(t, a.mem[room:room+n], bytes.Repeat([]byte{0xee}, n), what+": the read has %x")
			if a.Pending() != 0 || a.dead || b.dead || loss == 0 &&
				a.count[AckTimeout]+a.count[SequenceNaks]+b.count[Duplicates] > 0 {
				t.Errorf("%s: counts %v and %v", what, a.count, b.count)
			}
			if n == 40000 && loss == 10 && a.count[SequenceNaks] < 2 {
				t.Errorf("%s: %d gaps were told of", what, a.count[SequenceNaks])
			}
			if n == 40000 && loss == 0 && acks > 60 {
				t.Errorf("%s: %d acknowledgements", what, acks)
			}
			again += a.count[AckTimeout] + a.count[SequenceNaks] + b.count[Duplicates]
		}
		if loss > 0 && again == 0 {
			t.Errorf("one of %d lost, and nothing was sent again", loss)
		}
	}
}

func TestReceiverNotReady(t *testing.T) {
	a, b := pair(t, 7, 7)
	a.RNRTimer, b.RNRTimer = 10, 10 // 320 µs
	a.post(&Request{Index: 1, Kind: Send, Length: 600})
	run(time.Millisecond, a, b)
	if a.said(t); a.count[RNRNaks] < 2 || a.count[RNRNaks] > 4 {
		t.Errorf("counts %v, expected that it asks each 320 µs", a.count)
	}
	b.posts = []int{600}
	run(time.Millisecond, a, b)
	a.said(t, "done 1")

	a, b = pair(t, 7, 2)
	a.post(&Request{Index: 1, Kind: Send, Length: 600})
	a.post(&Request{Index: 2, Kind: Send, Length: 600})
	run(10*time.Millisecond, a, b)
	a.said(t, fmt.Sprintf("failed 1 by %d", RNRRetries), fmt.Sprintf("failed 2 by %d", Flushed))
	if b.dead || a.count[RNRNaks] != 3 {
		t.Errorf("the receiver failed too, or counts %v", a.count)
	}
}

func TestNoAnswer(t *testing.T) {
	a, b := pair(t, 3, 7)
	packets := 0
	a.lose = func(*Packet) bool { packets++; return true }
	a.post(&Request{Index: 1, Kind: Send, Length: 8})
	run(time.Second, a, b)
	a.said(t, fmt.Sprintf("failed 1 by %d", Retries))
	if packets != 4 || a.count[AckTimeout] != 4 {
		t.Errorf("%d packets, counts %v, expected 4", packets, a.count)
	}
}

// On a busy machine a peer may not run for longer than all retries take. It has not lost a packet.
func TestPeerThatDoesNotRunUsesNoRetry(t *testing.T) {
	a, b := pair(t, 3, 7)
	b.posts = []int{8}
	a.held = true
	a.post(&Request{Index: 1, Kind: Send, Length: 8})
	run(time.Second, a)
	a.said(t)
	a.held = false
	run(time.Second, a, b)
	a.said(t, "done 1")
	if a.count[AckTimeout] > 1 { // one, where b runs after it
		t.Errorf("%d acknowledgements were overdue", a.count[AckTimeout])
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		what   string
		r      Request
		fault  Fault
		told   string
		postee []int
	}{
		{"a key that does not fit", Request{Kind: Write, Length: 8, RKey: 9}, RemoteAccess, fmt.Sprintf("refused by %d", RemoteAccess), nil},
		{"a read by such a key", Request{Kind: Read, Length: 8, RKey: 9}, RemoteAccess, fmt.Sprintf("refused by %d", RemoteAccess), nil},
		{"too long a read", Request{Kind: Read, Length: maxRead + 1, RKey: 7}, RemoteInvalid, fmt.Sprintf("refused by %d", RemoteInvalid), nil},
		{"too long a message", Request{Kind: Send, Length: 9}, RemoteInvalid, "receive 0 failed", []int{8}},
	} {
		t.Run(c.what, func(t *testing.T) {
			a, b := pair(t, 7, 7)
			b.posts = c.postee
			c.r.Index = 4
			a.post(&Request{Index: 3, Kind: Write, Length: 8, RKey: 7})
			a.post(&c.r)
			run(20*time.Millisecond, a, b)
			a.said(t, "done 3", fmt.Sprintf("failed 4 by %d", c.fault))
			b.said(t, c.told)
			check.Equal(t, a.dead && b.dead, true, "both ends have failed: %v")
		})
	}
}

// An invalid work request fails when it is its turn, not before.
func TestBrokenRequest(t *testing.T) {
	a, b := pair(t, 7, 7)
	a.post(&Request{Index: 1, Kind: Write, Length: 8, RKey: 7})
	a.post(&Request{Index: 2, Kind: Write, Length: 8, RKey: 7, Broken: errPlace})
	a.post(&Request{Index: 3, Kind: Write, Length: 8, RKey: 7})
	a.Step(a)
	a.said(t)
	run(time.Millisecond, a, b)
	a.said(t, "done 1", fmt.Sprintf("failed 2 by %d", Local), fmt.Sprintf("failed 3 by %d", Flushed))

	a, b = pair(t, 7, 7)
	a.Post(a, &Request{Index: 1, Kind: Write, Length: 8, RKey: 7, List: []Segment{{Key: 2, N: 8}}})
	run(time.Millisecond, a, b)
	if a.said(t, fmt.Sprintf("failed 1 by %d", Local)); b.dead {
		t.Error("the peer failed too")
	}
}

func TestBadPackets(t *testing.T) {
	reth := func(n uint32) []byte { return be.AppendUint32(be.AppendUint32(make([]byte, 8), 7), n) }
	for what, c := range map[string]struct {
		op   uint8
		body []byte
	}{
		"a last packet of nothing":         {SendLast, make([]byte, 8)},
		"a first one that is short":        {SendFirst, make([]byte, 8)},
		"one that is longer than the MTU":  {SendOnly, make([]byte, 257)},
		"a write without its header":       {WriteOnly, make([]byte, 8)},
		"a write of less than it said":     {WriteOnly, append(reth(9), make([]byte, 8)...)},
		"a write of more than it said":     {WriteOnly, append(reth(7), make([]byte, 8)...)},
		"a read without its header":        {ReadRequest, make([]byte, 8)},
		"an opcode that is no request":     {0x14, make([]byte, 8)},
		"immediate data that is not there": {SendOnlyImm, make([]byte, 3)},
	} {
		a, b := pair(t, 7, 7)
		b.posts = []int{1024}
		b.Receive(b, &Packet{Op: c.op, PSN: b.Expected, Body: c.body})
		if !b.dead || len(a.in) != 1 || a.in[0].Op != Ack || a.in[0].Body[0] != nakInvalid {
			t.Errorf("%s: %q, answered %+v", what, b.log, a.in)
		}
	}
}

// A packet that a ConnectX-4 Lx sent: a congestion notification, with its checksum.
func TestICRC(t *testing.T) {
	b := must.Get(hex.DecodeString("45c2003c718c400040119161" + "0a0011010a001201" + "000012b700280000" +
		"8100ffff4000011800000000" + "00000000000000000000000000000000" + "82fd002a"))(t)
	end := len(b) - ICRCSize
	if c := ICRC(b[:end], false); !bytes.Equal(c, b[end:]) {
		t.Errorf("checksum %x, the card's is %x", c, b[end:])
	}
	for i := range b[:end] {
		x := bytes.Clone(b)
		x[i] ^= 0x40
		if i == 9 || i == 0 {
			continue // another protocol with other header offsets
		}
		varies := slices.Contains([]int{1, 8, 10, 11, 26, 27, 32}, i) // fields that a router changes
		if same := bytes.Equal(ICRC(x[:end], false), b[end:]); same != varies {
			t.Errorf("byte %d changed: the checksum is the same: %v", i, same)
		}
	}
	local := append([]byte{0x00, 2, 0, 1, 0, 7, 0, 2}, b[28:end]...)
	c := ICRC(local, true)
	for i := range local {
		x := bytes.Clone(local)
		x[i] ^= 0x40
		if same := bytes.Equal(ICRC(x, true), c); same != (i == 0 || i == LRHSize+4) {
			t.Errorf("InfiniBand: byte %d changed: the checksum is the same: %v", i, same)
		}
	}
}

// FuzzConnection feeds arbitrary packets to a responder and a requester.
func FuzzConnection(f *testing.F) {
	f.Add([]byte{SendOnly, 0, 9, 0, 'x'}, []byte{1, 2})
	f.Add([]byte{ReadRequest, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 8}, []byte{3})
	f.Add([]byte{Ack, 1, 4, 0, ackRNR, 0, 0, 0, ReadOnly, 0, 4}, []byte{2, 3})
	f.Fuzz(func(t *testing.T, in, requests []byte) {
		now := new(time.Duration)
		mem := make([]byte, 4096)
		e := &end{t: t, now: now, mem: mem, key: 7, posts: []int{64, 64},
			Connection: Connection{MTU: 256, Timeout: time.Millisecond, Retry: 1, RNRRetry: 1}}
		e.peer = &end{t: t, now: now}
		for _, k := range requests[:min(len(requests), 8)] {
			e.Post(e, &Request{Kind: Kind(k & 3), RKey: 7, Length: 300, List: []Segment{{Key: 1, At: 64, N: 300}}})
		}
		for len(in) > 4 && !e.dead {
			n := min(int(in[2]), len(in)-4)
			body := bytes.Clone(in[4 : 4+n])
			if in[0] == ReadRequest && n >= RETHSize {
				copy(body, make([]byte, 8)) // address 0, and no more than the memory has
				body[12], body[13], body[14] = 0, 0, body[14]&7
			}
			if in[0] >= WriteFirst && in[0] <= WriteOnlyImm && n >= 8 {
				copy(body, make([]byte, 8))
			}
			e.Receive(e, &Packet{Op: in[0], PSN: psn(uint32(int8(in[1]))), AckRequest: in[3]&1 != 0, Body: body})
			e.Step(e)
			*now += 100 * time.Microsecond
			in = in[4+n:]
		}
		e.Flush(e)
		check.Equal(t, e.Pending(), 0, "%d requests are left")
	})
}
