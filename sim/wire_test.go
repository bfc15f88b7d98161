package sim_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim"
)

func TestWireCounts(t *testing.T) {
	for seed := range uint64(20) {
		near, far := sim.Pair()
		w := sim.Impair(near, sim.Impairment{Loss: 0.2, Duplicate: 0.2, Reorder: 0.3,
			Delay: time.Duration(seed%2) * time.Millisecond, Seed: seed})
		const n = 200
		for k := range n {
			far.Send(0, []byte{byte(k)})
		}
		var c sim.WireCounts
		var times [n]int
		top := -1
		now := time.Duration(0)
		for f := w.Recv(now); f != nil || now == 0; f = w.Recv(now) {
			if now = time.Second; f == nil {
				continue
			}
			times[f[0]]++
			if int(f[0]) < top {
				c.Reordered++
			}
			top = max(top, int(f[0]))
		}
		c.Frames = n
		for _, k := range times {
			c.Lost += uint64(max(0, 1-k))
			c.Duplicated += uint64(max(0, k-1))
			if seed%2 == 1 {
				c.Delayed += uint64(k)
			}
		}
		if got := w.Counts(); got != c || c.Lost == 0 || c.Duplicated == 0 || c.Reordered == 0 {
			t.Errorf("seed %d: counted %+v, arrived %+v", seed, got, c)
		}
	}
}

func TestFrameIsOnWireUntilTaken(t *testing.T) {
	near, far := sim.Pair()
	near.Send(0, []byte{1})
	if !near.OnWire() || far.OnWire() {
		t.Errorf("on the wire of its sender: %v, of its receiver: %v", near.OnWire(), far.OnWire())
	}
	if far.Recv(0); near.OnWire() {
		t.Error("a frame that was taken is on the wire")
	}
}

func TestImpairments(t *testing.T) {
	send := func(i sim.Impairment, n int) (got []byte) {
		near, far := sim.Pair()
		w := sim.Impair(near, i)
		for k := range n {
			far.Send(0, []byte{byte(k)})
		}
		if i.Delay > 0 && w.Recv(0) != nil {
			t.Error("a delayed frame is there at once")
		}
		for f := w.Recv(i.Delay); f != nil; f = w.Recv(i.Delay) {
			got = append(got, f[0])
		}
		return got
	}
	in := send(sim.Impairment{Delay: time.Millisecond}, 100)
	for i := range in {
		if len(in) != 100 || in[i] != byte(i) {
			t.Fatalf("delayed: %v", in)
		}
	}
	if n := len(send(sim.Impairment{Loss: 0.5, Seed: 1}, 200)); n < 60 || n > 140 {
		t.Errorf("half lost: %d of 200", n)
	}
	check.Equal(t, len(send(sim.Impairment{Duplicate: 1}, 50)), 100, "all twice: %d of 50")
	out := send(sim.Impairment{Reorder: 0.3, Seed: 2}, 100)
	swapped := 0
	for i := 1; i < len(out); i++ {
		if out[i] < out[i-1] {
			swapped++
		}
	}
	if len(out) != 100 || swapped == 0 {
		t.Errorf("reordered: %v", out)
	}
	if !bytes.Equal(out, send(sim.Impairment{Reorder: 0.3, Seed: 2}, 100)) {
		t.Error("the same seed does something else")
	}
}
