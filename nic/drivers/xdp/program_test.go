package xdp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
)

const now, errorEstimate = 0xe8d4_a510_8000_0000, 0x8123

// pair is the program and fastpath with the same configuration.
type pair struct {
	name    string
	program *xdpkit.Program
	counts  *counts
	fast    *fastpath.Responder
	run     ebpf.RunOptions
	out     []byte
	buf     []byte
}

func config() fastpath.Config {
	c := fastpath.Config{
		MAC: corpus.OurMAC, Addresses: corpus.Addresses, UDPPorts: corpus.UDPPorts, STAMPPorts: corpus.STAMPPorts,
		Clock: new(atomic.Pointer[fastpath.Clock]), ChecksumBytes: 1500,
	}
	c.Clock.Store(&fastpath.Clock{NTP: now, ErrorEstimate: errorEstimate})
	return c
}

func newPair(t testing.TB, name string, c fastpath.Config, v variant) *pair {
	t.Helper()
	needs.Root(t, "loading an XDP program")
	p := &pair{name: name, out: make([]byte, 4096), buf: make([]byte, 4096)}
	o := must.Get(newObject())(t)
	m := must.Get(o.newMaps())(t)
	t.Cleanup(m.close)
	v.still = now
	var err error
	if p.program, err = o.load(c, v, m); err != nil {
		t.Fatalf("%+v", err) // with the verifier's log
	}
	t.Cleanup(func() { p.program.Close() })
	p.counts = must.Get(newCounts(m.Cpus))(t)
	must.OK(t, (&clockKeeper{clocks: m.Clocks}).put(clock{ErrorEstimate: errorEstimate}))
	c.TicksPerSecond = 1e9
	p.fast = must.Get(fastpath.New(c))(t)
	return p
}

// configuration is a configuration that frames are tested with.
type configuration struct {
	name   string
	change func(*fastpath.Config)
}

var configurations = []configuration{
	{"strict", func(*fastpath.Config) {}},
	{"short", func(c *fastpath.Config) { c.ChecksumBytes = 60 }},
	{"partial", func(c *fastpath.Config) { c.PartialChecksums = true }},
	{"vlan", func(c *fastpath.Config) { c.VLANs = []uint16{0, 20, 100} }},
	{"tagged", func(c *fastpath.Config) { c.VLANs, c.ChecksumBytes = []uint16{10, 20, 100}, 0 }},
	{"open", func(c *fastpath.Config) { c.Mode = fastpath.Open }},
	{"one address", func(c *fastpath.Config) { c.Addresses = c.Addresses[:1] }},
	{"base", func(c *fastpath.Config) { c.STAMPBase, c.PartialChecksums = true, true }},
	{"frags", func(c *fastpath.Config) { c.STAMPBase = true }},
	{"limited", func(c *fastpath.Config) { c.Rate, c.Burst = 1_000_000, 1<<30 }},
}

func (v *configuration) pair(t testing.TB) *pair {
	c := config()
	v.change(&c)
	return newPair(t, v.name, c, variant{frags: v.name == "frags"})
}

func pairs(t testing.TB) (all []*pair) {
	for i := range configurations {
		all = append(all, configurations[i].pair(t))
	}
	return all
}

// judge gives f to both. Both must answer with the same bytes, or refuse for the same reason.
func (p *pair) judge(f []byte) error {
	if len(f) < 14 {
		return nil // the kernel does not run a program on less than an Ethernet header
	}
	before, was := p.counts.verdicts(), p.fast.Stats()
	p.run.Data, p.run.DataOut = f, p.out
	action, err := p.program.Run(&p.run)
	if err != nil {
		return err
	}
	after := p.counts.verdicts()
	copy(p.buf, f)
	n := p.fast.Slow((*[64]byte)(p.buf), len(f))
	is := p.fast.Stats()
	verdict, counted := fastpath.Verdict(0), uint64(0)
	for v := range is {
		if after[v]-before[v] != is[v]-was[v] {
			return fmt.Errorf("%s: counted %d as %s, fastpath %d:\n%x", p.name, after[v]-before[v], fastpath.Verdict(v),
				is[v]-was[v], f)
		}
		if after[v] != before[v] {
			verdict, counted = fastpath.Verdict(v), counted+1
		}
	}
	want, reply := uint32(actionPass), f
	if n > 0 {
		want, reply = actionTX, p.buf[:n]
	}
	if n == 0 && action == actionDrop && guarded(verdict) {
		want = actionDrop
	}
	if counted != 1 || action != want || !bytes.Equal(p.run.DataOut, reply) {
		return fmt.Errorf("%s: action %d, counted %d, %s; want %d\n%x\n%x, want\n%x", p.name, action, counted, verdict,
			want, f, p.run.DataOut, reply)
	}
	return nil
}

// guarded are the verdicts after which the frame must not reach the kernel.
func guarded(v fastpath.Verdict) bool {
	switch v {
	case fastpath.RefusedSourceMAC, fastpath.RefusedHeaderChecksum, fastpath.RefusedSource, fastpath.RefusedOwnSource,
		fastpath.RefusedServicePort, fastpath.RefusedHopLimit, fastpath.RefusedNoChecksum, fastpath.RefusedSTAMPShort,
		fastpath.RefusedChecksum, fastpath.RefusedLoop, fastpath.RefusedRate:
		return true
	}
	return false
}

// Every frame of the corpus, truncated at every length, and with every byte changed to some other values.
func TestCorpus(t *testing.T) {
	for _, p := range pairs(t) {
		answered := p.fast.Stats()
		for tags := range 3 {
			for _, q := range corpus.Requests(tags) {
				for n := 14; n <= len(q.Frame); n++ {
					must.OK(t, p.judge(q.Frame[:n]))
				}
				f := bytes.Clone(q.Frame)
				for i := range f[:min(len(f), 128)] {
					for _, d := range []byte{1, 2, 0x80, 0xff} {
						f[i] ^= d
						must.OK(t, p.judge(f))
						f[i] ^= d
					}
				}
			}
		}
		if s := p.fast.Stats(); s.Answered() == answered.Answered() {
			t.Errorf("%s: nothing was answered", p.name)
		}
	}
}

// Frames with bytes after the packet, of every kind: a trailer is removed, with and without tags.
func TestTrailers(t *testing.T) {
	for _, p := range pairs(t) {
		for tags := range 3 {
			for _, q := range corpus.Requests(tags) {
				for _, n := range []int{1, 2, 3, 4, 5, 8, 12, 16, 18, 22, 26, 100, 1400} {
					must.OK(t, p.judge(append(bytes.Clone(q.Frame), bytes.Repeat([]byte{0xee}, n)...)))
				}
			}
		}
		if s := p.fast.Stats(); s.Answered() == 0 || s[fastpath.RefusedLength] != 0 {
			t.Errorf("%s: counted %v", p.name, s)
		}
	}
}

// Test packets shorter than their replies, of every length, with tags, with padding, and with each kind of checksum.
func TestBase(t *testing.T) {
	for _, p := range pairs(t) {
		if p.name != "base" && p.name != "frags" {
			continue
		}
		for tags := range 3 {
			for n := range 46 {
				for _, from := range []netip.Addr{corpus.Their4, corpus.Their6} {
					to, kind := corpus.Our4, uint16(0x0800)
					if from.Is6() {
						to, kind = corpus.Our6, 0x86dd
					}
					packet := corpus.TestPacket(n)[:n]
					f := corpus.Eth(corpus.OurMAC, corpus.TheirMAC, tags, kind,
						corpus.UDP(from, to, 40000, corpus.STAMPPorts[0], packet))
					none := bytes.Clone(f)
					copy(none[len(none)-n-2:], []byte{0, 0})
					wrong := bytes.Clone(f)
					wrong[len(wrong)-n-1] ^= 1
					partial := bytes.Clone(f)
					hosts := len(f) - n - 8 - 2*len(from.AsSlice())
					binary.BigEndian.PutUint16(partial[len(f)-n-2:], cksum.Sum(f[hosts:len(f)-n-8], uint16(17+8+n)))
					for _, g := range [][]byte{f, none, wrong, partial} {
						for _, h := range [][]byte{g, corpus.Pad(bytes.Clone(g), 60+4*tags),
							append(corpus.Pad(bytes.Clone(g), 56+4*tags), 1, 2, 3, 4)} {
							must.OK(t, p.judge(h))
						}
					}
				}
			}
		}
		if s := p.fast.Stats(); s[fastpath.AnsweredSTAMPv4] < 27*3 || s[fastpath.AnsweredSTAMPv6] < 27*3 {
			t.Errorf("%s: %v", p.name, s)
		}
	}
}

// The program has no loop of which the Host Timing TLV could tell. It answers a packet that asks as fastpath does
// without the setting: the TLV comes back unchanged, with the flag U that the sender set (RFC 8972 §4), and only the
// base changes.
func TestTimingIsNotAnswered(t *testing.T) {
	for _, p := range pairs(t) {
		for tags := range 3 {
			for _, q := range corpus.Requests(tags) {
				if !strings.HasSuffix(q.Name, " timing") {
					continue
				}
				was := p.fast.Stats()
				must.OK(t, p.judge(q.Frame))
				if is := p.fast.Stats(); is.Answered() == was.Answered() {
					continue // the configuration has neither its address nor its tags
				}
				tlv := q.Frame[len(q.Frame)-20:]
				check.Equal(t, tlv[0], 0x80, "the sender's flags are %#x")
				if got := p.run.DataOut[len(p.run.DataOut)-20:]; !bytes.Equal(got, tlv) {
					t.Errorf("%s, %s: the TLV came back as %x", p.name, q.Name, got)
				}
			}
		}
		if s := p.fast.Stats(); s[fastpath.AnsweredSTAMPv4] == 0 {
			t.Errorf("%s: %v", p.name, s)
		}
	}
}

func TestMutations(t *testing.T) {
	frames := 1_000_000
	if s := os.Getenv("REBOUND_XDP_FRAMES"); s != "" {
		if _, err := fmt.Sscan(s, &frames); err != nil {
			t.Fatalf("REBOUND_XDP_FRAMES=%s: want a number", s)
		}
	}
	if testing.Short() {
		frames /= 10
	}
	all := pairs(t)
	m := corpus.NewMutator(7, 11)
	for i := range frames {
		must.OK(t, all[i%len(all)].judge(m.Next()))
	}
	var sum fastpath.Stats
	for _, p := range all {
		s := p.fast.Stats()
		sum.Add(&s)
	}
	t.Logf("%d frames: %d answered, %d refused: %v", frames, sum.Answered(), sum.Refused(), sum)
}

// The limit permits a burst, counts and drops the rest, and does not affect another source.
func TestLimit(t *testing.T) {
	c := config()
	c.STAMPPorts = nil     // for them the clock is read anyway
	c.Rate, c.Burst = 1, 5 // a second is longer than the time between two frames of the burst
	p := newPair(t, "limit", c, variant{})
	from := func(a string) []byte {
		return corpus.Eth(corpus.OurMAC, corpus.TheirMAC, 0, 0x0800,
			corpus.ICMPv4(netip.MustParseAddr(a), corpus.Our4, 8))
	}
	run := func(f []byte) uint32 {
		return must.Get(p.program.Run(&ebpf.RunOptions{Data: f}))(t)
	}
	// The limit is per CPU: with n CPUs, n bursts are permitted. The program reads the clock before it refuses.
	answered, dropped := 0, 0
	looked := func() (at uint64) {
		for cpu := range p.counts.cpus {
			at = max(at, binary.LittleEndian.Uint64(p.counts.read(cpu, unsafe.Offsetof(programCpuCounts{}.Now), 1)))
		}
		return at
	}
	for dropped < 10 && answered < 10_000 {
		before := looked()
		switch run(from("10.1.2.9")) {
		case actionTX:
			answered++
		case actionDrop:
			dropped++
			if looked() == before {
				t.Fatal("refused by an old look at the clock")
			}
		}
	}
	if s := p.counts.verdicts(); answered < 5 || dropped != 10 || s[fastpath.RefusedRate] != 10 ||
		s[fastpath.AnsweredICMPv4] != uint64(answered) {
		t.Errorf("%d answered, %d dropped, counted %v", answered, dropped, s)
	}
	check.Equal(t, run(from("10.1.2.10")), actionTX, "action %d for another source, which has its burst")
}

// About one reply in sixteen is in the histogram of its CPU, and the first one on a CPU always is.
func TestTurnaround(t *testing.T) {
	p := newPair(t, "turnaround", config(), variant{})
	const n = 1000
	must.Get(p.program.Run(&ebpf.RunOptions{Data: corpus.Requests(0)[0].Frame}))(t)
	for range n - 1 {
		p.program.Run(&ebpf.RunOptions{Data: corpus.Requests(0)[0].Frame})
	}
	h := p.counts.turnaround()
	sum := uint64(0)
	for _, c := range h.Counts {
		sum += c
	}
	if sum < n/32 || sum > n/8 || h.Greatest == 0 {
		t.Errorf("%d of %d replies recorded, the greatest took %d ns; want a sixteenth of them", sum, n, h.Greatest)
	}
}

// The committed object equals the compiler's output for the source, if the compiler has the same version.
func TestObject(t *testing.T) {
	needs.Long(t) // it compiles
	nictest.BPFObject(t, "responder.c", "program_bpfel.o", compiler)
}
