package xdp

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/must"
)

// steppedPair is a pair with a rate limit whose clock the test steps, on one CPU, because the limit is per CPU.
func steppedPair(t *testing.T, rate, burst uint64) *pair {
	t.Helper()
	c := config()
	c.Rate, c.Burst, c.Loop, c.TicksPerSecond = rate, burst, fastpath.DefaultLoop, 1e9
	p := newPair(t, "limit", c, variant{stepped: true})
	runtime.LockOSThread() // the thread ends with the test
	var one, allowed unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &allowed))
	for cpu := 0; one.Count() == 0; cpu++ {
		if allowed.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	must.OK(t, unix.SchedSetaffinity(0, &one))
	p.step(t, 1_000_000_000) // a free place counts as recently used
	return p
}

// step advances both clocks by ns.
func (p *pair) step(t *testing.T, ns uint64) {
	p.fast.Loop.Start += ns
	for cpu := range p.counts.cpus {
		at := int64(cpu*cpuSize) + int64(unsafe.Offsetof(programCpuCounts{}.Now))
		must.Get(p.counts.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, p.fast.Loop.Start), at))(t)
	}
}

// answers reports whether the program alone answers f.
func (p *pair) answers(t *testing.T, f []byte) bool {
	action := must.Get(p.program.Run(&ebpf.RunOptions{Data: f}))(t)
	return action == actionTX
}

// pings returns a ping from a, and one over IPv6 from an address derived from a.
func pings(a netip.Addr) [2][]byte {
	b := a.As4()
	from := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
	return [2][]byte{
		corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, 0x0800, corpus.ICMPv4(a, corpus.Our4, 8)),
		corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, 0x86dd,
			corpus.UDP(from, corpus.Our6, 40000, corpus.UDPPorts[0], nil)),
	}
}

// A flood from random sources, far above the total rate of all places, does not use up the rate of senders that were
// known before it, and does not get more replies than the places permit.
func TestFloodSparesKnownSources(t *testing.T) {
	const known, burst, second = 100, 4, 1_000_000_000
	rnd := rand.New(rand.NewPCG(3, 4))
	for kind, name := range []string{"IPv4", "IPv6"} {
		p := steppedPair(t, 100, burst) // each of them sends 10 requests per second
		ask := func() (refused int) {
			for i := range known {
				if !p.answers(t, pings(netip.AddrFrom4([4]byte{10, 9, byte(i), 7}))[kind]) {
					refused++
				}
			}
			return refused
		}
		for range 20 { // no flood for two seconds
			must.Equal(t, ask(), 0, name+": %d requests refused before the flood")
			p.step(t, second/10)
		}
		const flood, times = 40_000, 5
		refused, answered := 0, 0
		for range times {
			for range flood {
				a := netip.AddrFrom4([4]byte{byte(11 + rnd.IntN(100)), byte(rnd.Uint32()), byte(rnd.Uint32()),
					byte(1 + rnd.IntN(250))})
				if p.answers(t, pings(a)[kind]) {
					answered++
				}
				p.step(t, second/1000/flood)
			}
			refused += ask()
			p.step(t, second/10)
		}
		check.Equal(t, refused, 0, name+": %d requests of known sources were refused in the flood")
		if s := p.counts.verdicts(); s[fastpath.RefusedRate] == 0 {
			t.Errorf("%s: the flood was not limited: %d answered", name, answered)
		}
		const most = (4096 + 4096/8) * (burst + 100/10*times)
		if answered > most {
			t.Errorf("%s: %d replies to the flood, want at most %d", name, answered, most)
		}
	}
}

// crowd returns n addresses that share four of the limit's sets of places.
func crowd(n int) (all []netip.Addr) {
	for i := uint32(0x0b000001); len(all) < n; i++ {
		b := binary.BigEndian.AppendUint32(nil, i)
		if uint64(binary.LittleEndian.Uint32(b))*0x9e37_79b9_7f4a_7c15>>57 == 5 {
			all = append(all, netip.AddrFrom4([4]byte(b)))
		}
	}
	return all
}

// The program refuses the same requests as fastpath because of their rate, however often sources send and however long
// they pause, even with more sources than places.
func TestLimitIsFastpaths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	const second = 1_000_000_000
	for _, c := range []struct {
		name        string
		rate, burst uint64
		sources     int
		step        uint64 // the mean between two requests, in ns
		pause       uint64 // the longest pause, in ns
	}{
		{"few sources above their rate", 1000, 10, 20, second / 50_000, 0},
		{"many", 50, 3, 100, second / 1000, second / 10},
		{"many, slow", 2, 2, 60, second / 100, 20 * second},
		{"pauses", 1, 2, 100, second / 10, 1500 * second},
		{"at one moment", 1, 2, 200, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := steppedPair(t, c.rate, c.burst)
			all, often := crowd(c.sources), 0
			for i := range 40_000 {
				if i%1000 == 0 {
					often = rnd.IntN(c.sources - 10) // the first of ten that send more often for some time
				}
				n := rnd.IntN(c.sources)
				if rnd.IntN(2) == 0 {
					n = often + n%10
				}
				must.OK(t, p.judge(pings(all[n])[0]))
				if c.step != 0 {
					p.step(t, rnd.Uint64N(2*c.step))
				}
				if c.pause != 0 && rnd.IntN(500) == 0 {
					p.step(t, rnd.Uint64N(c.pause))
				}
			}
			if s := p.counts.verdicts(); s[fastpath.RefusedRate] == 0 || s.Answered() == 0 {
				t.Errorf("counted %v; want both answered and refused for their rate", s)
			}
		})
	}
}

// The program refuses the same datagrams as fastpath because of a loop, at every pace around the limit's.
func TestLoopIsFastpaths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 8))
	p := steppedPair(t, 0, 0)
	frame := func(source, data int) []byte {
		from, to, kind := corpus.Their4, corpus.Our4, uint16(0x0800)
		if source&1 != 0 {
			from, to, kind = corpus.Their6, corpus.Our6, 0x86dd
		}
		for range source / 2 {
			from = from.Next()
		}
		return corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, kind,
			corpus.UDP(from, to, 40000, corpus.UDPPorts[0], make([]byte, data)))
	}
	// ns between two datagrams of one source
	for _, pace := range []uint64{1000, 50_000, 140_000, 156_000, 160_000, 1_000_000} {
		for _, sources := range []int{1, 2, 6} {
			for range 3000 {
				data := 18
				if rnd.IntN(10) == 0 {
					data += rnd.IntN(3)
				}
				must.OK(t, p.judge(frame(rnd.IntN(sources), data)))
				p.step(t, rnd.Uint64N(2*pace)/uint64(sources))
			}
		}
	}
	if s := p.counts.verdicts(); s[fastpath.RefusedLoop] == 0 || s.Answered() < 1000 {
		t.Errorf("counted %v; want both answered and refused as a loop", s)
	}
}

// A sender of constant data that is slower than the limit is answered, although the program rarely looks at the clock,
// and one that is faster is refused after a look.
func TestLoopLooksAtTheClock(t *testing.T) {
	c := config()
	c.STAMPPorts = nil // for them the clock is read anyway
	c.Loop, c.TicksPerSecond = 1000, 1e9
	p := newPair(t, "loop", c, variant{})
	f := corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, 0x0800,
		corpus.UDP(corpus.Their4, corpus.Our4, 40000, corpus.UDPPorts[0], nil))
	answered := 0
	for p.counts.verdicts()[fastpath.RefusedLoop] == 0 {
		// The kernel's own loop runs the program again on its reply, which is for another port; so each run is a
		// datagram.
		if _, err := p.program.Run(&ebpf.RunOptions{Data: f}); err != nil {
			t.Fatal(err)
		}
		if answered++; answered > 1_000_000 {
			t.Skip("this machine is too slow for 1000 datagrams within 10 ms")
		}
	}
	if answered <= 1000 {
		t.Errorf("refused after %d datagrams, want 1000 or more", answered)
	}
}
