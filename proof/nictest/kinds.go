package nictest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

const stampPort = 862

// Kind is a type of request for BenchmarkKinds. Size is the frame size without its tag, and Batch the number that
// arrive at once.
type Kind struct {
	Name        string
	Tagged      bool
	Size, Batch int
}

func (k Kind) String() string {
	return fmt.Sprintf("%s/tag=%s/size=%d/batch=%d", k.Name, map[bool]string{false: "no", true: "yes"}[k.Tagged],
		k.Size, k.Batch)
}

// kindSizes are the frame sizes that every kind is measured with, including the shortest that can contain a complete
// test packet.
var kindSizes = []int{64, 86, 256, 1500, 9000}

// Kinds are the requests that BenchmarkKinds measures: each kind, with and without a tag, in each size one at a time,
// and the short ones also 32 at a time.
func Kinds() (all []Kind) {
	for _, name := range []string{"ping", "udp", "ping6", "udp6", "stamp"} {
		for _, tagged := range []bool{false, true} {
			for _, size := range kindSizes {
				for _, batch := range []int{1, 32} {
					if (size >= 86 || name != "stamp") && (size <= 86 || batch == 1) {
						all = append(all, Kind{name, tagged, size, batch})
					}
				}
			}
		}
	}
	return all
}

// Frame builds the request.
func (k Kind) Frame() []byte {
	p := map[string]proto{"ping": icmp4, "udp": udp4, "ping6": icmp6, "udp6": udp6, "stamp": udp4}[k.Name]
	f := request(p, k.Size, 0, 1)
	if k.Name == "stamp" {
		binary.BigEndian.PutUint16(f[36:], stampPort)
		finish(f)
	}
	if k.Tagged {
		f = slices.Concat(f[:12], []byte{0x81, 0, 0, 100}, f[12:])
	}
	return f
}

// vary returns a function that changes a frame that Frame built: its first payload word and its checksum.
func (k Kind) vary(frame []byte) func() {
	if k.Tagged {
		frame = frame[4:]
	}
	at := map[string]int{"ping": 36, "udp": 40, "ping6": 56, "udp6": 60, "stamp": 40}[k.Name]
	sum := binary.BigEndian.Uint16(frame[at:])
	word := at + 2
	if k.Name == "ping" || k.Name == "ping6" {
		word = at + 4 // the sequence number
	}
	first := binary.BigEndian.Uint16(frame[word:])
	room := min(sum-1, 0xffff-first) // neither wraps
	var step uint16
	return func() {
		step = (step + 1) % room
		binary.BigEndian.PutUint16(frame[at:], sum-step)
		binary.BigEndian.PutUint16(frame[word:], first+step)
	}
}

// BenchmarkKinds measures a Poll with every kind of request, using Cycles. queue creates a queue in memory for requests
// like frame, and returns a function that delivers n of them, and the queue's Poll. The requests of a pass differ from
// those of the pass before, as a bench's do: otherwise the guard against loops would see one.
func BenchmarkKinds(b *testing.B, queue func(t testing.TB, frame []byte) (arrive func(n int),
	poll func(*fastpath.Responder) int)) {
	for _, k := range Kinds() {
		b.Run(k.String(), func(b *testing.B) {
			c := KindsConfig()
			c.Loop = fastpath.DefaultLoop
			r := must.Get(fastpath.New(c))(b)
			frame := k.Frame()
			arrive, poll := queue(b, frame)
			vary := k.vary(frame)
			Cycles(b, r, k.Batch, func(n int) {
				vary()
				arrive(n)
			}, func() int { return poll(r) })
			if s := r.Stats(); s.Refused() != 0 {
				b.Fatalf("refused: %v", s)
			}
		})
	}
}

// BenchmarkQueues measures a pass with one ping over 1, 2, 4 and 8 queues, one after the other, each with a separate
// responder: the additional cost of more queues is cache misses. queue is as for BenchmarkKinds.
func BenchmarkQueues(b *testing.B, queue func(t testing.TB, frame []byte) (arrive func(n int),
	poll func(*fastpath.Responder) int)) {
	for _, n := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprintf("queues=%d", n), func(b *testing.B) {
			arrives, polls, rs := make([]func(int), n), make([]func(*fastpath.Responder) int, n),
				make([]*fastpath.Responder, n)
			for i := range n {
				rs[i] = newKindsResponder(b)
				arrives[i], polls[i] = queue(b, EchoRequest(64))
			}
			turn := -1
			Cycles(b, rs[0], 1, func(n int) {
				turn = (turn + 1) % len(polls)
				arrives[turn](n)
			}, func() int { return polls[turn](rs[turn]) })
			for _, r := range rs {
				mustBeFast(b, r)
			}
		})
	}
}

// NoAllocations fails the test if a pass that answers three frames allocates. arrive and poll are as for
// BenchmarkKinds.
func NoAllocations(t testing.TB, r *fastpath.Responder, arrive func(n int), poll func(*fastpath.Responder) int) {
	t.Helper()
	if n := testing.AllocsPerRun(1000, func() {
		arrive(3)
		if n := poll(r); n != 3 {
			t.Fatalf("answered %d of 3", n)
		}
	}); n != 0 {
		t.Errorf("%v allocations a pass", n)
	}
}

// Passes fails the test unless a pass takes at most 32 frames, and a loop that answers something in each pass reclaims
// exactly when 32 wait for that. arrive and poll are as for BenchmarkKinds; reclaimed returns a number that changes
// when the queue reclaims.
func Passes(t testing.TB, r *fastpath.Responder, queue func() (arrive func(n int), poll func(*fastpath.Responder) int,
	reclaimed func() uint32)) {
	t.Helper()
	const most = 32
	arrive, poll, _ := queue()
	arrive(most + 1)
	for _, want := range []int{most, 1, 0} {
		if got := poll(r); got != want {
			t.Errorf("a pass answered %d of %d frames, want %d", got, most+1, want)
		}
	}
	arrive, poll, reclaimed := queue()
	for range 3 {
		before := reclaimed()
		for _, n := range []int{most/2 - 1, 1, most/2 - 1, 1} {
			if reclaimed() != before {
				t.Errorf("a pass reclaimed before %d waited", most)
			}
			arrive(n)
			if got := poll(r); got != n {
				t.Errorf("a pass answered %d of %d frames", got, n)
			}
		}
		if reclaimed() == before {
			t.Errorf("%d frames later no pass has reclaimed", most)
		}
		arrive(0)
		poll(r) // reclaims the rest
	}
}

// Arrived is a queue in memory with one received frame.
type Arrived struct {
	Poll func(*fastpath.Responder) int
	Recv func(buf []byte) int // the frame's length, or -1
	Bad  *polling.Counter     // frames that are refused
	Next *uint32              // frames that are done
}

// Taken fails the test unless Poll and Recv take a frame of length bytes if it is good, and refuse and count it if it
// is not. queue creates the queue.
func Taken(t testing.TB, what string, length int, good bool, queue func() Arrived) {
	t.Helper()
	bad, want := uint64(0), length
	if !good {
		bad, want = 1, -1
	}
	q := queue()
	check.Equal(t, q.Recv(make([]byte, 1<<16)), want, what+": received %d bytes")
	polled := queue()
	polled.Poll(NewResponder(t))
	for _, q := range []Arrived{q, polled} {
		check.Equal(t, q.Bad.Load(), bad, what+": %d bad frames")
		check.Equal(t, *q.Next, 1, what+": %d frames are done")
	}
}

// Departs fails the test unless the reply to a test packet has the time of its departure. queue creates a queue in
// memory that has received frame; reply returns what the device reads, or the buffer if there is no room for the reply.
func Departs(t testing.TB, queue func(frame []byte) (poll func(*fastpath.Responder) int,
	reply func() []byte)) {
	t.Helper()
	f := Kind{Name: "stamp", Size: 86}.Frame()
	poll, reply := queue(f)
	r, first := newKindsResponder(t), append(f, make([]byte, fastpath.MinBuffer)...)
	r.Slow((*[64]byte)(first), len(f)) // writes the time itself, and knows the source then
	poll(r)
	if f := reply(); f[46] != 1<<60>>56 || r.Slowed() > 1 {
		t.Errorf("a reply, %d by Slow, has no time of departure: %x", r.Slowed(), f[:86])
	}
}

// BeforeWrap is where the free-running numbers of a queue and of the device in its test begin for Wraps: the low bits
// are those of 0.
const BeforeWrap = ^uint32(0) - 1<<16 + 1

// Wraps fails the test if passes with random numbers of frames do not answer all of them while the numbers of slots and
// entries exceed 2^16 and 2^32. arrive and poll are as for BenchmarkKinds.
func Wraps(t testing.TB, r *fastpath.Responder, arrive func(n int), poll func(*fastpath.Responder) int) {
	t.Helper()
	rnd := random.New(t)
	for frames := 0; frames < 1<<16+5000; {
		n := rnd.IntN(17)
		arrive(n)
		if got := poll(r); got != n {
			t.Fatalf("answered %d of %d frames after %d", got, n, frames)
		}
		frames += n
	}
}

// EmptyPing fails the test if a Poll does not answer an echo request whose identifier, sequence number and payload are
// zero, by Slow: the reply's checksum is then zero, and Reply does not determine which zero. queue is as for
// BenchmarkKinds.
func EmptyPing(t *testing.T, queue func(t testing.TB, frame []byte) (arrive func(n int),
	poll func(*fastpath.Responder) int)) {
	f := EchoRequest(64)
	clear(f[38:])
	finish(f)
	r := newKindsResponder(t)
	arrive, poll := queue(t, f)
	arrive(1)
	if got := poll(r); got != 1 || r.Slowed() != 1 {
		t.Errorf("answered %d, %d of them by Slow, want 1", got, r.Slowed())
	}
}

// Word is a device's verdict on a frame's UDP checksum.
type Word int

const (
	noWord Word = iota
	wordWrong
	wordRight
)

// DeviceChecksums fails the test if a Poll does not use its device's checksum verdict exactly when permitted: for a
// long datagram whose checksum the device found right. queue creates a queue in memory as for BenchmarkKinds, whose
// device reports word for each frame.
func DeviceChecksums(t *testing.T, queue func(t testing.TB, frame []byte, word Word) (arrive func(n int),
	poll func(*fastpath.Responder) int)) {
	for _, k := range append(Kinds(), Kind{"udp", false, fastpath.LongFrame, 1}) {
		if k.Batch != 1 || k.Size > 1500 {
			continue
		}
		for _, broken := range []bool{false, true} {
			for _, word := range []Word{noWord, wordWrong, wordRight} {
				f := k.Frame()
				if broken {
					f[len(f)-1] ^= 0x10
				}
				want := !broken || word == wordRight && len(f) >= fastpath.LongFrame && k.Name != "ping" &&
					k.Name != "ping6"
				r := newKindsResponder(t)
				arrive, poll := queue(t, f, word)
				arrive(1)
				if got := poll(r) == 1; got != want {
					t.Errorf("%s, broken %v, word %d: answered %v, want %v", k, broken, word, got, want)
				}
				if s := r.Stats(); !want && s[fastpath.RefusedChecksum] != 1 {
					t.Errorf("%s, broken %v, word %d: counted %v", k, broken, word, s)
				}
			}
		}
	}
}

// KindsConfig answers all Kinds.
func KindsConfig() fastpath.Config {
	c := fastpath.Config{MAC: ourMAC, UDPPorts: []uint16{echoPort}, STAMPPorts: []uint16{stampPort},
		Clock:         new(atomic.Pointer[fastpath.Clock]),
		ChecksumBytes: fastpath.DefaultChecksumBytes, Rate: fastpath.DefaultRate, Burst: 1 << 30,
		TicksPerSecond: 1 << 30,
		Addresses:      []netip.Prefix{netip.PrefixFrom(our4, 24), netip.PrefixFrom(our6, 64)}}
	c.Loop = 1 << 31 // the requests are equal
	c.Clock.Store(&fastpath.Clock{NTP: 1 << 60, Rate: 1 << 31, ErrorEstimate: 0x8587})
	return c
}

func newKindsResponder(t testing.TB) *fastpath.Responder {
	t.Helper()
	return must.Get(fastpath.New(KindsConfig()))(t)
}
