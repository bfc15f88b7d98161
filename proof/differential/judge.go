package differential

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/oracle"
)

// rules are one configuration, for both sides.
type rules struct {
	name       string
	fast, slow *fastpath.Responder
	oracle     oracle.Rules
	counted    uint64 // number of frames so far
}

type judge struct {
	rules       []*rules
	a, b, reply []byte
}

// now is the time of every test packet: the rate of the clock is 0.
const now = 0xe8d4_a510_8000_0000

func newJudge() (*judge, error) {
	j := &judge{a: make([]byte, 4096), b: make([]byte, 4096), reply: make([]byte, 0, 4096)}
	for _, v := range []struct {
		name   string
		change func(*fastpath.Config)
	}{
		{"strict", func(*fastpath.Config) {}},
		{"strict, short", func(c *fastpath.Config) { c.ChecksumBytes = 60 }},
		{"strict, vlan", func(c *fastpath.Config) { c.VLANs, c.STAMPBase = []uint16{0, 20, 100}, true }},
		{"strict, tagged", func(c *fastpath.Config) { c.VLANs, c.ChecksumBytes = []uint16{10, 20, 100}, 0 }},
		{"open", func(c *fastpath.Config) { c.Mode = fastpath.Open }},
		{"open, vlan", func(c *fastpath.Config) { c.Mode, c.VLANs, c.STAMPBase = fastpath.Open, []uint16{0, 10, 20}, true }},
		{"strict, timing", func(c *fastpath.Config) { c.Reflector.Timing = true }},
		{"strict, timing and TLVs", func(c *fastpath.Config) { c.Reflector.Timing, c.Reflector.TLVs = true, true }},
	} {
		c := fastpath.Config{
			MAC: corpus.OurMAC, Addresses: corpus.Addresses, UDPPorts: corpus.UDPPorts, STAMPPorts: corpus.STAMPPorts,
			Clock: new(atomic.Pointer[fastpath.Clock]), ChecksumBytes: 9000,
		}
		c.Clock.Store(&fastpath.Clock{NTP: now, ErrorEstimate: 0x8123})
		v.change(&c)
		r := &rules{name: v.name}
		var err error
		if r.fast, err = fastpath.New(c); err != nil {
			return nil, err
		}
		if r.slow, err = fastpath.New(c); err != nil {
			return nil, err
		}
		r.oracle = oracle.Rules{
			Open: c.Mode == fastpath.Open, MAC: c.MAC, Addresses: c.Addresses, UDPPorts: c.UDPPorts,
			STAMPPorts: c.STAMPPorts,
			VLANs:      c.VLANs, ChecksumBytes: c.ChecksumBytes, STAMPBase: c.STAMPBase, Time: now,
			ErrorEstimate: 0x8123,
			Reflector:     oracle.Reflector{Timing: c.Reflector.Timing, TLVs: c.Reflector.TLVs},
			ServicePorts:  []uint16{1434, 1900, 3702, 5353, 5355, 11211},
		}
		j.rules = append(j.rules, r)
	}
	return j, nil
}

// chunk checks the frames of one stream.
func (j *judge) chunk(seed, stream uint64) error {
	m := corpus.NewMutator(seed, stream)
	for i := range chunk {
		if err := j.frame(j.rules[i%len(j.rules)], m.Next()); err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
	}
	for _, r := range j.rules {
		for _, way := range []*fastpath.Responder{r.fast, r.slow} {
			if s := way.Stats(); s.Answered()+s.Refused() != r.counted {
				return fmt.Errorf("%s: %d frames, counted %v", r.name, r.counted, s)
			}
		}
		if r.fast.Stats() != r.slow.Stats() {
			return fmt.Errorf("%s: the leaves counted %v, Slow %v", r.name, r.fast.Stats(), r.slow.Stats())
		}
	}
	return nil
}

func (j *judge) frame(r *rules, f []byte) error {
	r.counted++
	j.reply = r.oracle.Answer(f, j.reply[:0])
	n, m := leaves(r.fast, place(j.a, f), len(f)), r.slow.Slow(place(j.b, f), len(f))
	for i, buf := range [][]byte{j.a, j.b} {
		way, n := [...]string{"the leaves", "Slow"}[i], [...]int{n, m}[i]
		switch {
		case !same(buf[:n], j.reply):
			return fmt.Errorf("%s: to\n%x\nthe answer of %s is\n%x, the oracle's\n%x", r.name, f, way, buf[:n], j.reply)
		case n == 0 && !bytes.Equal(buf[:len(f)], f):
			return fmt.Errorf("%s: %s refused and changed\n%x", r.name, way, f)
		case !bytes.Equal(buf[max(n, len(f)):][:64], untouched):
			return fmt.Errorf("%s: %s wrote behind\n%x", r.name, way, f)
		}
	}
	return nil
}

var untouched = bytes.Repeat([]byte{0xa5}, 64)

// place puts f into a receive buffer and fills the rest with other data.
func place(buf, f []byte) *[64]byte {
	n := copy(buf, f)
	copy(buf[n:], untouched)
	copy(buf[n+64:], untouched)
	copy(buf[n+128:], untouched)
	return (*[64]byte)(buf)
}

// leaves is the sequence of calls that package fastpath specifies for drivers.
func leaves(r *fastpath.Responder, h *[64]byte, n int) int {
	m := n
	if !r.Reply(h, n) {
		m = r.Slow(h, n)
	}
	r.Departing()
	return m
}
