package nictest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/sim"
)

// checkEcho: frames of every size from the smallest to the MTU get a reply, in each protocol.
func checkEcho(x *rig) {
	x.open(1)
	defer x.close()
	x.everySize(minFrame, 1514, 1)
}

// checkWrongChecksum: whatever the device reports, no frame with a wrong ICMP or UDP checksum is answered, short or
// long.
func checkWrongChecksum(x *rig) {
	x.open(1)
	defer x.close()
	var all, right [][]byte
	for _, size := range []int{70, 169, 170, 171, 300, 1000, 1514} {
		for p := range x.protos() {
			f := request(p, size, uint8(size), x.next)
			wrong := bytes.Clone(f)
			wrong[len(f)-1-size%2] ^= 1 << (size % 8)
			x.next++
			all, right = append(all, wrong, f), append(right, f)
		}
		x.send(all...)
		x.settle()
		if n := x.match(right); n != len(right) {
			x.Fatalf("%d replies to %d frames of %d bytes, every other one with a wrong checksum", n, len(all), size)
		}
		all, right = nil, nil
	}
}

// checkJumbo: the same up to the driver's largest MTU, with each frame in one buffer.
func checkJumbo(x *rig) {
	if x.h.MTU <= 1500 {
		x.Skip("the driver has no jumbo frames")
	}
	x.mtu = x.h.MTU
	x.open(1)
	defer x.close()
	x.everySize(minFrame, 1514, 97)
	x.everySize(1515, x.mtu+14-4, 61)
	x.everySize(x.mtu+14-3, x.mtu+14, 1)
}

func (x *rig) everySize(from, to, step int) {
	x.Helper()
	const room = 256 << 10 // smallest packet buffer of a device
	var reqs [][]byte
	bytes := 0
	for size := from; size <= to; size += step {
		for p := range x.protos() {
			reqs = append(reqs, request(p, size, uint8(size), x.next))
			x.next++
			bytes += size
		}
		if len(reqs) >= x.h.Ring/2-4 || bytes >= room || size+step > to {
			x.exchange(reqs)
			reqs, bytes = nil, 0
		}
	}
}

// checkQueues: every queue pair of the driver answers, and many flows use more than one of them.
func checkQueues(x *rig) {
	if x.h.Queues == 1 {
		x.Skip("the driver has one queue pair")
	}
	x.open(x.h.Queues)
	defer x.close()
	x.spread(40, 2)
}

// spread has all requests of some rounds answered, by at least that many queues.
func (x *rig) spread(rounds, least int) {
	x.Helper()
	replies := make([]int, len(x.resp))
	for range rounds {
		reqs := x.requests(x.h.Ring/4, 100)
		x.send(reqs...)
		for range 50 {
			x.port.Settle(100000)
			for q, r := range x.resp {
				replies[q] += x.h.Poll(x.dev, q, r)
			}
		}
		if n := x.match(reqs); n != len(reqs) {
			x.Fatalf("%d replies to %d requests", n, len(reqs))
		}
	}
	used := 0
	for _, n := range replies {
		if n > 0 {
			used++
		}
	}
	if used < least {
		x.Errorf("replies by queue: %v: flows are not spread over %d", replies, least)
	}
}

// checkWrap: the rings wrap many times, with bursts of every length up to the ring size.
func checkWrap(x *rig) {
	x.open(1)
	defer x.close()
	rng := rand.New(rand.NewPCG(1, 4))
	for sent := 0; sent < 20*x.h.Ring; {
		n := 1 + rng.IntN(x.h.Ring/2)
		x.exchange(x.requests(n, minFrame+rng.IntN(1400)))
		sent += n
	}
}

// checkBurst: frames that arrive faster than the driver polls are dropped and counted, nothing else is affected, and
// the driver continues.
func checkBurst(x *rig) {
	x.open(1)
	defer x.close()
	sent, answered := 0, 0
	for range 4 {
		reqs := x.requests(3*x.h.Ring, 200)
		x.send(reqs...)
		x.port.Settle(100000)
		x.settle()
		sent += len(reqs)
		answered += x.match(reqs)
		again := x.requests(x.h.Ring/4, 80)
		x.exchange(again)
		sent += len(again)
		answered += len(again)
	}
	if answered == sent {
		x.Fatalf("all of %d frames came through a ring of %d: there was no burst", sent, x.h.Ring)
	}
	x.accounted(sent, answered)
}

// accounted fails unless the statistics account for each frame.
func (x *rig) accounted(sent, answered int) {
	x.Helper()
	s := x.stats()
	if x.kernel != nil && x.dev.Info().NoDropCounter { // the kernel's driver reads the card's counter
		s.RxDropped = x.hostStats().RxDropped
	}
	if uint64(sent-answered) != s.RxDropped+s.TxDropped {
		x.Errorf("%d of %d frames were not answered; the driver counts %d dropped in receive and %d in transmit",
			sent-answered, sent, s.RxDropped, s.TxDropped)
	}
}

// checkSlowTransmit: while the transmitter is held, more frames arrive than fit into the rings. If a buffer is returned
// to receive, or written, before it was sent, it is sent with another frame's bytes, or twice.
func checkSlowTransmit(x *rig) {
	x.open(1)
	defer x.close()
	if !x.model.Pause(true) {
		x.Skip("the model has no Pause")
	}
	sent, answered := 0, 0
	for range 3 {
		x.model.Pause(true)
		var reqs [][]byte
		for range 16 { // a few at a time, polled in between
			some := x.requests(x.h.Ring/4, 300)
			reqs = append(reqs, some...)
			x.send(some...)
			x.settle()
		}
		if n := len(x.received()); n > 0 {
			x.Fatalf("%d frames were sent by a transmitter that is held", n)
		}
		x.model.Pause(false)
		x.settle()
		first := map[string]bool{}
		for _, r := range reqs[:x.h.Ring/4] {
			first[string(reply(r))] = true
		}
		n := x.match(reqs, func(f []byte) { delete(first, string(f)) })
		if len(first) > 0 {
			x.Fatalf("%d of the %d frames that were polled before the ring was full were overwritten or forgotten",
				len(first), x.h.Ring/4)
		}
		sent += len(reqs)
		answered += n
		again := x.requests(x.h.Ring/2, 80)
		x.exchange(again)
		sent += len(again)
		answered += len(again)
	}
	x.accounted(sent, answered)
}

// checkLateCompletion: write-backs take longer than frames.
func checkLateCompletion(x *rig) {
	x.open(1)
	defer x.close()
	defer x.model.DelayDMA(0) // with a delay, Close would not end in virtual time
	for _, d := range []time.Duration{3 * sim.Tick, 50 * sim.Tick} {
		x.model.DelayDMA(d)
		for range 8 {
			reqs := x.requests(x.h.Ring/2, 120)
			x.send(reqs...)
			for range 4 * int(d/sim.Tick) { // the driver checks before each completion is written
				x.port.Step()
				x.poll()
			}
			x.settle()
			if n := x.match(reqs); n != len(reqs) {
				x.Fatalf("%d replies to %d requests", n, len(reqs))
			}
		}
	}
	x.model.DelayDMA(0)
	x.settle()
}

// checkFullRing: Send returns ErrFull when the ring is full, accepted frames are sent once and in order, and Send
// continues.
func checkFullRing(x *rig) {
	x.open(1)
	defer x.close()
	if !x.model.Pause(true) {
		x.Skip("the model has no Pause")
	}
	for range 3 {
		x.model.Pause(true)
		var taken [][]byte
		for {
			f := x.outgoing(100 + len(taken)%1000)
			err := x.dev.Send(f)
			if errors.Is(err, nic.ErrFull) {
				break
			}
			if err != nil {
				x.Fatalf("Send: %v", err)
			}
			taken = append(taken, f)
			if len(taken) > 4*x.h.Ring {
				x.Fatalf("a ring of %d took %d frames", x.h.Ring, len(taken))
			}
			x.port.Settle(1000)
		}
		if len(taken) < x.h.Ring/2 {
			x.Errorf("a ring of %d was full with %d frames", x.h.Ring, len(taken))
		}
		x.model.Pause(false)
		x.port.Settle(100000)
		x.same(x.received(), taken)
	}
}

func (x *rig) same(got, want [][]byte) {
	x.Helper()
	for i := range min(len(got), len(want)) {
		if !bytes.Equal(got[i], want[i]) {
			x.Fatalf("frame %d of %d:\ngot  %x\nwant %x", i, len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		x.Fatalf("%d frames, want %d", len(got), len(want))
	}
}

// checkSendRecv: the bench's Send and Recv, with the rings wrapping many times.
func checkSendRecv(x *rig) {
	x.open(1)
	defer x.close()
	buf := make([]byte, 16384)
	for i := range 10 * x.h.Ring {
		f := x.outgoing(minFrame + i%1400)
		if err := x.dev.Send(f); err != nil {
			x.Fatalf("Send of frame %d: %v", i, err)
		}
		x.port.Settle(1000)
		x.same(x.received(), [][]byte{f})
		f = x.requests(1, minFrame+i%1400)[0]
		x.far.Send(0, f)
		x.port.Settle(1000)
		n, at, err := x.dev.Recv(buf)
		if err != nil || at == 0 {
			x.Fatalf("Recv of frame %d: %d bytes at %d, %v", i, n, at, err)
		}
		x.same([][]byte{buf[:n]}, [][]byte{f})
	}
	if n, _, err := x.dev.Recv(buf); n != 0 || err != nil {
		x.Fatalf("Recv with nothing there: %d bytes, %v", n, err)
	}
}

// checkFrameSize: Send rejects invalid frame sizes, and accepts the longest that the MTU allows.
func checkFrameSize(x *rig) {
	x.open(1)
	defer x.close()
	for _, n := range []int{0, 1, 13, x.mtu + 14 + 5, 20000, 70000} {
		if err := x.dev.Send(make([]byte, n)); !errors.Is(err, nic.ErrFrameSize) {
			x.Errorf("Send of %d bytes with an MTU of %d: %v", n, x.mtu, err)
		}
	}
	f := x.outgoing(x.mtu + 14)
	if err := x.dev.Send(f); err != nil {
		x.Fatalf("Send of %d bytes with an MTU of %d: %v", len(f), x.mtu, err)
	}
	x.port.Settle(1000)
	x.same(x.received(), [][]byte{f})
}

// checkServe: the driver's own loop answers on a device that runs freely, while other goroutines request statistics and
// link.
func checkServe(x *rig) {
	x.open(1)
	defer x.close()
	reqs := x.requests(400, 90)
	var got [][]byte
	x.busy("Serve", func() {
		for round := range 2 {
			_, wait := x.serve()
			some := reqs[200*round:][:200]
			end := time.Now().Add(linger) // shorter than busy's limit: the loop has to end before the device is closed
			for i := 0; i < len(some); i += 20 {
				x.send(some[i : i+20]...)
				for time.Now().Before(end) && len(got) < 200*round+i+20 {
					got = append(got, x.received()...)
					time.Sleep(50 * time.Microsecond)
				}
				var s nic.Stats
				if err := x.dev.ReadStats(&s); err != nil {
					x.Errorf("ReadStats: %v", err)
				}
				if l, err := x.dev.Link(); err != nil || !l.Up {
					x.Errorf("Link: %+v, %v", l, err)
				}
			}
			if err := wait(); err != nil {
				x.Errorf("Serve: %v", err)
			}
		}
	})
	want := map[string]bool{}
	for _, r := range reqs {
		want[string(reply(r))] = true
	}
	for _, f := range got {
		if !want[string(f)] {
			x.Fatalf("reply to no request: %x", f)
		}
		delete(want, string(f))
	}
	if len(want) > 0 {
		x.Fatalf("%d of %d requests were not answered", len(want), len(reqs))
	}
}

// serve runs Serve on queue 0. The returned functions report whether it has ended without being stopped, and stop it
// and return its error.
func (x *rig) serve() (ended func() bool, wait func() error) {
	var stop atomic.Bool
	end := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		end <- x.dev.Serve(0, &stop, x.resp[0])
	}()
	return func() bool { return len(end) > 0 }, func() error {
		stop.Store(true)
		return <-end
	}
}

// serveBriefly runs Serve on queue 0 until it has made some passes, or has ended with an error.
func (x *rig) serveBriefly() {
	before := x.passes()
	ended, wait := x.serve()
	for !ended() && x.passes()-before < 100 {
		runtime.Gosched()
	}
	wait()
}

// passes is the number of passes of the loop on queue 0.
func (x *rig) passes() (n uint64) {
	var gaps [polling.Buckets]uint64
	x.resp[0].Loop.Gap.Load(&gaps)
	for _, c := range gaps {
		n += c
	}
	return n
}

// checkStats: the driver's totals agree with what was on the wire, in frames and in bytes without FCS.
func checkStats(x *rig) {
	x.open(1)
	defer x.close()
	var want nic.Stats
	for i := range 20 {
		reqs := x.requests(x.h.Ring/4, minFrame+30*i)
		x.exchange(reqs)
		for _, r := range reqs {
			want.RxFrames++
			want.RxBytes += uint64(len(r))
		}
		want.TxFrames, want.TxBytes = want.RxFrames, want.RxBytes
		if x.dev.Info().NoByteCounter {
			want.RxBytes, want.TxBytes = 0, 0
		}
		got := x.stats()
		got.Extra = nil
		if got.RxFrames != want.RxFrames || got.TxFrames != want.TxFrames || got.RxBytes != want.RxBytes ||
			got.TxBytes != want.TxBytes || got.RxDropped|got.RxErrors|got.TxDropped|got.TxErrors|got.Resets != 0 {
			x.Fatalf("statistics after %d frames:\ngot  %+v\nwant %+v", want.RxFrames, got, want)
		}
	}
}

// checkAllocs: Poll allocates nothing. Other goroutines may, so the best of many rounds counts.
func checkAllocs(x *rig) {
	x.open(1)
	defer x.close()
	best := ^uint64(0)
	for round := 0; best > 0 && round < 50; round++ {
		total := uint64(0)
		for range 32 {
			reqs := x.requests(8, 100)
			x.send(reqs...)
			x.port.Settle(1000)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 4 {
				x.h.Poll(x.dev, 0, x.resp[0])
			}
			runtime.ReadMemStats(&after)
			total += after.Mallocs - before.Mallocs
			x.settle()
			x.received()
		}
		best = min(best, total)
	}
	if best > 0 {
		x.Errorf("128 passes of Poll made %d allocations", best)
	}
}

// checkNoMMIORead: a reply never waits for a read across the bus.
func checkNoMMIORead(x *rig) {
	x.open(1)
	defer x.close()
	before := x.port.Counts()
	n := uint64(0)
	for range 4 * x.h.Ring {
		x.exchange(x.requests(1, 98))
		n++
	}
	c := x.port.Counts().Since(before)
	if c.MMIORead > 0 || c.Interrupts > 0 {
		x.Errorf("%d replies made %d MMIO reads and %d interrupts", n, c.MMIORead, c.Interrupts)
	}
	x.Logf("PCIe transactions of %d replies, one at a time: %+v", n, c)
}
