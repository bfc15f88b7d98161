package blame

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
)

// relay forwards frames between two interfaces. In pulses it holds those of one direction back.
type relay struct {
	fds  [2]int // near, far
	wake int    // an eventfd that ends it
	done chan struct{}
	line []frame // by due

	stamp bool // probes are STAMP packets

	mu sync.Mutex
	// how long a frame is held, by the side that it comes from; negative: it is dropped
	delay    [2]func(now int64) int64
	records  [2][]pulse
	dropped  int
	passed   map[string]int // places in passages, by what tells a probe apart
	passages []passage      // by there
}

// passage is when a probe and its reply passed the relay: in ns since 1970, 0 if they did not.
type passage struct {
	sent      int64 // T1 of a STAMP packet, there otherwise
	there, on int64 // the probe came, and went on
	back, off int64 // the reply
}

type frame struct {
	came, due int64 // ns since 1970
	from      int
	data      []byte
	sent      int64 // see passage
	passage   int
	planted   bool
}

func newRelay(in *testbed.Namespace, stamp bool) (*relay, error) {
	r := &relay{stamp: stamp, done: make(chan struct{}), passed: map[string]int{}}
	err := in.Do(func() (err error) {
		for i, name := range []string{relayNear, relayFar} {
			if r.fds[i], err = packetSocket(name); err != nil {
				return fmt.Errorf("the relay's socket on %s: %w", name, err)
			}
		}
		r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
		return err
	})
	if err != nil {
		return nil, err
	}
	go r.run()
	return r, nil
}

func packetSocket(name string) (int, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return -1, err
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	return fd, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
}

// plant sets what happens to the frames that come from a side, and returns a function that ends it and returns which
// frames were held.
func (r *relay) plant(from int, delay func(now int64) int64) (finish func() []pulse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay[from] = delay
	return func() []pulse {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.delay[from] = nil
		return r.records[from]
	}
}

func (r *relay) run() {
	defer close(r.done)
	runtime.LockOSThread() // never unlocked: real-time priority ends with the thread
	_ = realtime(0, 40)
	buf := make([]byte, 1<<16)
	for {
		var wait *unix.Timespec
		if len(r.line) > 0 {
			t := unix.NsecToTimespec(max(r.line[0].due-time.Now().UnixNano(), 0))
			wait = &t
		}
		fds := []unix.PollFd{{Fd: int32(r.fds[0]), Events: unix.POLLIN}, {Fd: int32(r.fds[1]), Events: unix.POLLIN},
			{Fd: int32(r.wake), Events: unix.POLLIN}}
		_, _ = unix.Ppoll(fds, wait, nil)
		if fds[2].Revents != 0 {
			return
		}
		for i := range r.fds {
			for {
				n, err := unix.Read(r.fds[i], buf)
				if err != nil || n <= 0 {
					break
				}
				r.take(i, slices.Clone(buf[:n]))
			}
		}
		for now := time.Now().UnixNano(); len(r.line) > 0 && r.line[0].due <= now; now = time.Now().UnixNano() {
			r.send(&r.line[0])
			r.line = slices.Delete(r.line, 0, 1)
		}
	}
}

func (r *relay) take(from int, data []byte) {
	f := frame{from: from, came: time.Now().UnixNano(), data: data}
	f.due = f.came
	r.mu.Lock()
	f.passage = r.passage(&f)
	if f.passage >= 0 {
		f.sent = r.passages[f.passage].sent
	}
	if d := r.delay[from]; d != nil {
		held := d(f.came)
		if held < 0 {
			r.dropped++
			r.mu.Unlock()
			return
		}
		f.due, f.planted = f.came+held, held > 0
	}
	r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.line, f, func(a, b frame) int {
		if a.due <= b.due {
			return -1
		}
		return 1
	})
	r.line = slices.Insert(r.line, i, f)
}

// passage records that a probe over IPv4 or its reply came, and returns its place in r.passages; -1 for other frames.
func (r *relay) passage(f *frame) int {
	const protocol, body, icmp = 14 + 9, 14 + 20 + 8, 1
	if len(f.data) < body+8 {
		return -1
	}
	key, sent := string(f.data[body:body+8]), f.came // run and sequence number
	if at := body + [2]int{4, 28}[f.from]; r.stamp && f.data[protocol] != icmp && len(f.data) >= at+8 {
		const epoch = 2_208_988_800 // 1900 to 1970, in seconds
		t := binary.BigEndian.Uint64(f.data[at:])
		key, sent = string(f.data[at:at+8]), (int64(t>>32)-epoch)*1e9+int64(t&math.MaxUint32*1e9>>32)
	}
	k, known := r.passed[key]
	switch {
	case f.from == 0:
		k = len(r.passages)
		r.passed[key] = k
		r.passages = append(r.passages, passage{sent: sent, there: f.came})
	case known:
		r.passages[k].back = f.came
	default:
		return -1
	}
	return k
}

// wire returns when the probes passed so far.
func (r *relay) wire() []passage {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.passages)
}

func (r *relay) send(f *frame) {
	_, _ = unix.Write(r.fds[1-f.from], f.data)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now().UnixNano()
	if f.planted {
		r.records[f.from] = append(r.records[f.from], pulse{from: f.came, to: now, sent: f.sent})
	}
	if f.passage < 0 {
		return
	}
	if p := &r.passages[f.passage]; f.from == 0 {
		p.on = now
	} else {
		p.off = now
	}
}

func (r *relay) stop() {
	if r == nil {
		return
	}
	_, _ = unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	<-r.done
	for _, fd := range []int{r.fds[0], r.fds[1], r.wake} {
		unix.Close(fd)
	}
}

// hold plants what happens to the frames of one direction in pulses: each is held for the time that next returns.
func hold(from int, next func(r *rand.Rand, most int64) int64) action {
	return func(s *scene, schedule []pulse, r *rand.Rand) ([]pulse, error) {
		start := s.start.UnixNano()
		finish := s.bed.relay.plant(from, func(now int64) int64 {
			for len(schedule) > 0 && start+schedule[0].to < now {
				schedule = schedule[1:]
			}
			if len(schedule) == 0 || now < start+schedule[0].from {
				return 0
			}
			return next(r, schedule[0].to-schedule[0].from)
		})
		<-s.end
		return finish(), nil
	}
}

// slow plants delays of one direction: the same for all frames of a pulse, or a different one for each.
func slow(from int, jitter bool) action {
	return hold(from, func(r *rand.Rand, most int64) int64 {
		if jitter {
			return 1 + r.Int64N(most)
		}
		return most
	})
}

// reorder has every other frame of one direction overtaken by those that follow within 3 ms.
func reorder(from int) action {
	return hold(from, func(r *rand.Rand, _ int64) int64 { return int64(r.IntN(2)) * 3e6 })
}

// lose drops a third of the frames of one direction.
func lose(from int) action {
	return hold(from, func(r *rand.Rand, _ int64) int64 { return -int64(r.IntN(3) / 2) })
}
