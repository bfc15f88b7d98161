package ixgbesim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
)

// ring is a descriptor ring with its on-chip cache.
type ring struct {
	enabled bool
	wait    int // reads of the control register, or Steps, until a change of ENABLE shows
	wanted  bool

	base       uint64
	n          uint32 // descriptors
	head, tail uint32
	cache      [cacheMax][16]byte // fetched descriptors, the oldest at c0
	c0, cn     uint32             //
}

const enableDelay = 1

// set starts to enable or disable the queue.
func (r *ring) set(on bool) {
	if on != r.wanted {
		r.wanted, r.wait = on, enableDelay
	}
}

// readEnable returns ENABLE as reads show it: the current state.
func (r *ring) readEnable(bit uint32) uint32 {
	v := uint32(0)
	if r.enabled {
		v = bit
	}
	if r.wanted != r.enabled {
		if r.wait > 0 {
			r.wait--
		}
		if r.wait == 0 {
			r.settle()
			if r.enabled {
				return bit
			}
			return 0
		}
	}
	return v
}

func (r *ring) settle() {
	if r.enabled = r.wanted; !r.enabled {
		r.cn = 0
	}
}

// give checks a tail write: software may post only descriptors that it owns, which are all but those posted since
// owned. A ring whose head and tail are equal is empty, so at least one descriptor is not posted (§7.1.9, §7.2.3.3).
func (r *ring) give(tail, owned uint32) error {
	if tail >= r.n {
		return fmt.Errorf("tail %d beyond the ring's %d descriptors", tail, r.n)
	}
	given := (r.tail - owned + r.n) % r.n
	more := (tail - r.tail + r.n) % r.n
	if given+more >= r.n {
		return fmt.Errorf("tail %d after %d overruns the head: %d descriptors are the device's from %d on, of %d",
			tail, r.tail, given, owned, r.n)
	}
	r.tail = tail
	return nil
}

// sameHead checks a write to a head register while its queue is enabled: the unchanged value, which ixy writes, is only
// a warning.
func sameHead(name string, i int, v, head uint32, doc string) error {
	err := fmt.Errorf("%s[%d] = %d while the queue is enabled (%s)", name, i, v, doc)
	if v == head {
		return sim.AsWarning(err)
	}
	return err
}

func (r *ring) fetched() uint32 { return (r.head + r.cn) % r.n }

// available returns how many descriptors wait in host memory.
func (r *ring) available() uint32 { return (r.tail - r.fetched() + r.n) % r.n }

// fetch reads descriptors into the cache in one burst, if it is empty, or if fewer than low are left and the host has
// at least least.
func (r *ring) fetch(h sim.Host, low, least uint32) bool {
	avail := r.available()
	if avail == 0 || r.cn > 0 && (r.cn >= low || avail < max(least, 1)) {
		return true
	}
	at := r.fetched()
	k := min(avail, cacheMax-r.cn, r.n-at)
	buf := make([]byte, 16*k)
	if h.DMARead(r.base+16*uint64(at), buf) != nil {
		return false
	}
	for i := range k {
		copy(r.cache[(r.c0+r.cn+i)%cacheMax][:], buf[16*i:])
	}
	r.cn += k
	return true
}

// pop removes the oldest descriptor from the cache and returns its index in the ring.
func (r *ring) pop() (i uint32, d [16]byte) {
	i, d = r.head, r.cache[r.c0]
	r.c0 = (r.c0 + 1) % cacheMax
	r.cn--
	r.head = (r.head + 1) % r.n
	return i, d
}
