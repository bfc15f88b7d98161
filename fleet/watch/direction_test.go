package watch

import (
	"math/rand/v2"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// reflector simulates a path that loses probes and replies at random, and a reflector that counts, copies, or restarts
// its count.
type reflector struct {
	stateful     bool
	count        uint32
	there, back  float64
	lostF, lostB int64
	random       *rand.Rand
}

func (r *reflector) probe(seq uint32, take func(seq, far uint32)) {
	if r.random.Float64() < r.there {
		r.lostF++
		return
	}
	far := seq
	if r.stateful {
		far = r.count
		r.count++
	}
	if r.random.Float64() < r.back {
		r.lostB++
		return
	}
	take(seq, far)
}

// plain is reply with one source port, whose probes the number on the wire counts.
func (d *direction) plain(sender, far uint32) { d.reply(sender, far, sender == far) }

// probes sends n probes of f.
func (r *reflector) probes(n int, f *flow, d *direction) {
	for range n {
		r.probe(uint32(f.nextNumber()), d.plain)
	}
}

// The loss of each direction is reported, except for losses before the first reply and after the last.
func TestDirection(t *testing.T) {
	for seed := range uint64(20) {
		r := &reflector{stateful: true, there: 0.02, back: 0.05, random: rand.New(rand.NewPCG(seed, 1))}
		var d direction
		first, beforeF, beforeB, lastF, lastB := true, int64(0), int64(0), int64(0), int64(0)
		f := flow{stamp: true}
		for range 5000 {
			seq := uint32(f.nextNumber())
			r.probe(seq, func(seq, far uint32) {
				d.plain(seq, far)
				if first && seq >= 2 {
					first, beforeF, beforeB = false, r.lostF, r.lostB
				}
				lastF, lastB = r.lostF, r.lostB
			})
		}
		if !d.stateful || d.forward != lastF-beforeF || d.backward != lastB-beforeB || d.restarts != 0 {
			t.Errorf("seed %d: stateful %t, forward %d of %d, backward %d of %d, restarts %d", seed, d.stateful,
				d.forward, lastF-beforeF, d.backward, lastB-beforeB, d.restarts)
		}
	}
}

func TestStateless(t *testing.T) {
	r := &reflector{there: 0.1, back: 0.1, random: rand.New(rand.NewPCG(1, 1))}
	var d direction
	f := flow{stamp: true}
	r.probes(5000, &f, &d)
	check.Equal(t, d, direction{copies: d.copies}, "%+v")
}

// A restart of the reflector is detected, without false losses; one that becomes stateless no longer counts as
// stateful.
func TestReflectorChanges(t *testing.T) {
	r := &reflector{stateful: true, random: rand.New(rand.NewPCG(1, 1))}
	var d direction
	f := flow{stamp: true}
	r.probes(100, &f, &d)
	r.count = 0
	r.probes(100, &f, &d)
	if !d.stateful || d.restarts != 1 || d.forward != 0 || d.backward != 0 {
		t.Errorf("started again: %+v", d)
	}
	r.stateful = false
	r.probes(10, &f, &d)
	if d.stateful || d.forward != 0 || d.backward != 0 {
		t.Errorf("without state: %+v", d)
	}
	r.stateful = true
	r.probes(10, &f, &d)
	if !d.stateful || d.forward != 0 {
		t.Errorf("with state again: %+v", d)
	}
}

func TestOvertaken(t *testing.T) {
	var d direction
	for _, p := range []pair{{2, 1}, {3, 2}, {5, 4}, {4, 3}, {6, 5}} {
		d.plain(p.sender, p.far)
	}
	if d.forward != 0 || d.backward != 0 || !d.stateful {
		t.Errorf("%+v", d)
	}
}

// A network that duplicates probes and loses others on the way there loses nothing on the way back.
func TestDirectionWithCopies(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	var d direction
	f := flow{stamp: true}
	far, lost, counted := uint32(0), int64(0), int64(0)
	for range 5000 {
		seq := uint32(f.nextNumber())
		if random.Float64() < 0.03 {
			lost++
			continue
		}
		if d.plain(seq, far); d.seen {
			counted = lost
		} else {
			lost = 0
		}
		if far++; random.Float64() < 0.03 {
			d.duplicate(far)
			far++
		}
		d.duplicate(far - 1) // a copy made on the way back
	}
	if !d.stateful || d.forward != counted || d.backward != 0 || d.restarts != 0 || counted < 100 {
		t.Errorf("%+v, %d lost on the way there", d, counted)
	}
}
