package mlx4

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/nic/ib"
)

// A flood of neighbours displaces its own entries: stations to which the bench sends keep their places, and the next
// one that answers is learnt.
func TestNeighboursDisplaceEachOther(t *testing.T) {
	var s stations
	s.reset()
	address := func(n int) (a ib.Address) {
		binary.BigEndian.PutUint32(a[len(a)-4:], uint32(n))
		return a
	}
	hear := func(n int) *whereabouts {
		w := s.all[address(n)]
		if w == nil {
			w = s.admit(address(n))
		}
		if w != nil && !w.known {
			s.hold(held{from: w})
		}
		return w
	}
	learn := func(w *whereabouts, n int) { // as resolve does
		w.known, w.mac = true, [6]byte{2, 0, byte(n >> 16), byte(n >> 8), byte(n)}
		s.macs[w.mac] = w
	}
	target := hear(0)
	learn(target, 0)
	target.used = true
	for n := 1; n < 10*mostStations; n++ { // from addresses that exist and from some that do not
		w := hear(n)
		if w == nil {
			t.Fatalf("neighbour %d is not heard", n)
		}
		switch n % 3 {
		case 0:
			learn(w, n)
		case 1:
			w.failed = true
		}
		if len(s.all) > mostStations || len(s.held) > mostHeld || len(s.macs) > mostStations {
			t.Fatalf("%d stations, %d MACs, %d held", len(s.all), len(s.macs), len(s.held))
		}
		if s.held[len(s.held)-1].from != w && n%3 != 0 {
			t.Fatalf("the frame of neighbour %d is not held", n)
		}
	}
	if s.all[address(0)] != target || s.macs[target.mac] != target {
		t.Error("the target lost its place")
	}
	if n := len(s.all); n < mostStations/4 {
		t.Errorf("only %d stations are left", n)
	}
}

// A frame waits until its station or group is known, and not for one that does not exist.
func TestHeldFrames(t *testing.T) {
	known, unknown, failed := &whereabouts{known: true}, &whereabouts{}, &whereabouts{failed: true}
	for _, c := range []struct {
		held
		waits, ready bool
	}{
		{held{from: known}, true, true}, {held{from: unknown}, true, false}, {held{from: failed}, false, false},
		{held{to: unknown}, true, false}, {held{to: failed}, false, false},
	} {
		s := &subnet{}
		s.stations.held = []held{c.held}
		s.flush()
		if waits, ready := len(s.stations.held) == 1, s.stations.ready.Load(); waits != c.waits || ready != c.ready {
			t.Errorf("from %+v, to %+v: it waits: %v, it can be received: %v", c.from, c.to, waits, ready)
		}
	}
}
