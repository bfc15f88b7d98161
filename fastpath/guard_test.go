package fastpath

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/oracle"
)

// bounce sends f to the first of two ends, its reply to the second, and so on, and returns the number of replies.
func bounce(ends [2]func([]byte) []byte, f []byte, most int) (n int) {
	for n < most {
		if f = ends[n&1](f); f == nil {
			return n
		}
		n++
	}
	return n
}

func answers(r *Responder) func([]byte) []byte {
	return func(f []byte) []byte {
		g := inBuffer(f)
		if n := poll(r, g); n > 0 {
			return g[:n]
		}
		return nil
	}
}

// echoService is an echo service on sockets: it returns the data with its own TTL, from the port that it was sent to.
func echoService(f []byte) []byte {
	src, _ := netip.AddrFromSlice(f[26:30])
	dst, _ := netip.AddrFromSlice(f[30:34])
	d := f[34:]
	p := udp(dst, src, be.Uint16(d[2:]), be.Uint16(d), d[8:])
	return eth([6]byte(f[6:]), [6]byte(f), 0, 0x0800, p)
}

// Two responders, and a responder with a foreign service. Whatever starts the exchange, it does not continue forever.
func TestLoopsEnd(t *testing.T) {
	us := func(ports, stamp []uint16) Config {
		c := config(Strict)
		c.UDPPorts, c.STAMPPorts = ports, stamp
		c.Loop, c.TicksPerSecond = DefaultLoop, 1_000_000
		return c
	}
	peer := func(ports, stamp []uint16) Config { return peerOf(us(ports, stamp)) }
	for _, c := range []struct {
		name         string
		us, they     Config
		from, to     uint16
		least, most  int
		payload      []byte
		othersSocket bool
	}{
		{"two responders on two ports", us([]uint16{7001}, nil), peer([]uint16{7000}, nil), 7000, 7001, 30, 70, []byte("loop"), false},
		{"two reflectors on two ports", us(nil, []uint16{7001}), peer(nil, []uint16{7000}), 7000, 7001, 30, 70, testPacket(44), false},
		{"echo and reflector", us([]uint16{7001}, nil), peer(nil, []uint16{7000}), 7000, 7001, 30, 70, testPacket(44), false},
		{"default and a reflector", us([]uint16{7}, nil), peer(nil, []uint16{862}), 862, 7, 0, 0, testPacket(44), false},
		{"default and an echo service", us([]uint16{7}, nil), peer(nil, nil), 7, 7, 0, 0, []byte("loop"), true},
		{"reflector and an echo service", us(nil, []uint16{862}), peer(nil, nil), 7, 862, 0, 0, testPacket(44), true},
		{"default and a service below 1024", us([]uint16{7}, nil), peer(nil, nil), 1023, 7, 0, 0, []byte("loop"), true},
		{"default and a service on a high port", us([]uint16{7}, nil), peer(nil, nil), 20001, 7, 2 * DefaultLoop, 2 * DefaultLoop, []byte("loop"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, v6 := range []bool{false, true} {
				if v6 && c.othersSocket {
					continue
				}
				ends := [2]func([]byte) []byte{answers(later(responder(t, c.us))), answers(later(responder(t, c.they)))}
				if c.othersSocket {
					ends[1] = echoService
				}
				from, to := hosts(v6)
				p := udp(from, to, c.from, c.to, c.payload)
				if v6 {
					p[7] = 255
				} else {
					p[8] = 255
					fixHeader(p)
				}
				if n := bounce(ends, toUs(0, p), 1000); n < c.least || n > c.most {
					t.Errorf("IPv6 %v: %d replies, want %d to %d", v6, n, c.least, c.most)
				}
			}
		})
	}
}

// later returns r at a time other than 0.
func later(r *Responder) *Responder {
	r.Loop.Start = 1 << 40
	return r
}

// Of equal datagrams from one source Loop are answered within 10 ms, and no further ones, until the 10 ms are over.
// Reply and Slow count together. Other sources, other data, pings and test packets are not affected.
func TestLoop(t *testing.T) {
	const window, most = 10_000, 64 // ticks
	send := func(from, to netip.Addr, port uint16, data string) []byte {
		return toUs(0, udp(from, to, 40000, port, []byte(data)))
	}
	for _, v6 := range []bool{false, true} {
		from, to := hosts(v6)
		other := from.Next()
		zero := send(from, to, 9000, "data")
		be.PutUint16(zero[40:], 0)
		for name, f := range map[string][]byte{"data": send(from, to, 9000, "data"),
			"no data": send(from, to, 9000, ""),
			"long":    send(from, to, 9000, string(make([]byte, 1000))), "no checksum": zero} {
			if v6 && name == "no checksum" {
				continue
			}
			c := config(Strict)
			c.Loop, c.TicksPerSecond = most, 100*window
			r := later(responder(t, c))
			start := r.Loop.Start
			for range 3 { // windows
				for i := range 2 * most {
					do := poll
					if i%3 == 0 {
						do = slowly
					}
					if got := do(r, inBuffer(f)) != 0; got != (i < most) {
						t.Fatalf("IPv6 %v, %s: datagram %d: answered %v", v6, name, i, got)
					}
					for what, g := range map[string][]byte{"another source": send(other, to, 9000, "data"),
						"test packet": send(from, to, 862, string(testPacket(44))),
						"other data":  send(from, to, 9000, fmt.Sprint(i)),
						"ping":        find(map[bool]string{false: "ping", true: "ping6"}[v6], 0)} {
						if i%8 == 0 && poll(r, inBuffer(g)) == 0 {
							t.Fatalf("IPv6 %v, %s: %s is refused", v6, name, what)
						}
					}
				}
				r.Loop.Start = start + window
				check.Equal(t, poll(r, inBuffer(f)), 0, name+": answered with %d bytes in the same 10 ms")
				start += window + 1
				r.Loop.Start = start
			}
			if s := r.Stats(); s[RefusedLoop] != 3*(most+1) {
				t.Errorf("IPv6 %v, %s: counted %v", v6, name, s)
			}
			// Slower constant data is answered forever.
			for i := range 20 * most {
				r.Loop.Start += window/most + 1
				if poll(r, inBuffer(f)) == 0 {
					t.Fatalf("IPv6 %v, %s: datagram %d of a slow sender is refused", v6, name, i)
				}
			}
			c.Loop = 0
			r = later(responder(t, c))
			for range 1000 {
				if poll(r, inBuffer(f)) == 0 {
					t.Fatalf("IPv6 %v, %s: refused without a limit", v6, name)
				}
			}
		}
	}
}

// A trailer after the packet is removed, and Ethernet's shortest frame is kept. Every kind, with and without tags.
func TestTrailers(t *testing.T) {
	each(t, func(t *testing.T, c *Config, q request) {
		for _, n := range needs.Each(4, []int{1, 2, 3, 4, 5, 8, 12, 16, 18, 22, 26, 100, 1400}) {
			f := append(bytes.Clone(q.frame), bytes.Repeat([]byte{0xee}, n)...)
			fast, slow := responder(t, *c), responder(t, *c)
			must.OK(t, judge(c, fast, slow, f))
			if s := slow.Stats(); s[q.kind] != 1 {
				t.Fatalf("%d bytes: counted %v", n, s)
			}
			if g := reply(t, c, f); len(g) > max(len(f), 68) && q.name != "ns of dad" ||
				len(g) > max(len(q.frame), 68)+8 {
				t.Errorf("%d bytes after %d: reply of %d", n, len(q.frame), len(g))
			}
		}
	})
}

func limited(t *testing.T, rate, burst uint64) *Responder {
	c := config(Strict)
	c.Rate, c.Burst, c.TicksPerSecond = rate, burst, 1_000_000
	return responder(t, c)
}

// The limit equals that of a bucket of Burst tokens, filled at Rate, in Reply and in Slow and for both IP versions.
func TestLimit(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"ping", "ping6", "udp", "udp6", "stamp"} {
		f := find(name, 0)
		for way, do := range map[string]func(*Responder, []byte) int{"snippet": poll, "Slow": slowly} {
			r := limited(t, 1000, 10)                                        // one reply per 1000 ticks
			ticks, last, refused := uint64(10_000), uint64(1<<40), uint64(0) // tokens in the bucket, in ticks
			r.Loop.Start = last
			for range 10_000 {
				r.Loop.Start += uint64(rnd.IntN(1500))
				ticks = min(10_000, ticks+r.Loop.Start-last)
				last = r.Loop.Start
				want := ticks >= 1000
				if want {
					ticks -= 1000
				} else {
					refused++
				}
				if got := do(r, inBuffer(f)) != 0; got != want {
					t.Fatalf("%s, %s: answered %v, want %v, %d ticks left", name, way, got, want, ticks)
				}
			}
			if s := r.Stats(); s[RefusedRate] == 0 || s[RefusedRate] != refused ||
				s.Answered()+s[RefusedRate] != 10_000 {
				t.Errorf("%s, %s: counted %v, want %d refused for their rate", name, way, s, refused)
			}
		}
	}
}

// Each source has its own limit, whatever others send, however long the pause, and when the counter overflows.
func TestLimitOfEachSource(t *testing.T) {
	r := limited(t, 1000, 10)
	send := func(a netip.Addr, n int) (answered int) {
		for range n {
			if poll(r, inBuffer(toUs(0, icmp4(a, our4, 8)))) != 0 {
				answered++
			}
		}
		return answered
	}
	other := netip.MustParseAddr("10.1.2.10")
	for _, at := range []uint64{0, 1 << 20, 1 << 40, 1<<59 + 5, 1<<60 - 1, 1<<60 + 200_000} {
		r.Loop.Start = at
		if n := send(their4, 1000); n != 10 {
			t.Errorf("at %d: %d answered, want 10", at, n)
		}
		if n := send(other, 5); n != 5 {
			t.Errorf("at %d: %d of another source answered, want 5", at, n)
		}
	}
	if n := send(their4, 1); n != 0 {
		t.Error("answered without a pause")
	}
	// A request refused for another reason is not charged.
	r = limited(t, 1000, 10)
	bad := find("ping", 0)
	bad[40] ^= 1
	for range 100 {
		poll(r, inBuffer(bad))
	}
	check.Equal(t, send(their4, 11), 10, "after broken ones %d answered")
	// ARP and ND are not rate-limited: a host without an answer cannot send its request at a lower rate.
	for range 100 {
		if poll(r, inBuffer(find("arp", 0))) == 0 || poll(r, inBuffer(find("ns", 0))) == 0 {
			t.Fatal("ARP or ND refused")
		}
	}
}

// The sources of one set, at any times, get the replies of a table of eight sources without an order.
func TestLimiterAgainstModel(t *testing.T) {
	type source struct{ full, begun uint64 }
	rnd := rand.New(rand.NewPCG(5, 6))
	outcomes := map[string]int{}
	for range 200 {
		var l limiter
		must.OK(t, l.set(1000, 10, 1_000_000))
		now, known, shared := uint64(1)<<40, map[uint64]*source{}, source{}
		for range 2000 {
			if now += rnd.Uint64N(100); rnd.IntN(30) == 0 {
				now += rnd.Uint64N(1 << rnd.IntN(31))
			}
			in := now << fraction
			hash := uint64(5)<<55 | rnd.Uint64N(8)<<52 | 1 + rnd.Uint64N(2)
			s, how := known[hash], "known"
			if s == nil {
				var silent uint64 // the source that has been silent longest, of those that may be displaced
				for h, p := range known {
					if silence := in - p.full; in > p.full && (silence > 600*1_000_000<<fraction ||
						silence/4 > p.full-l.cost-p.begun) && (silent == 0 || p.full < known[silent].full) {
						silent = h
					}
				}
				if s, how = &shared, "shared"; len(known) < limiterWays || silent != 0 {
					if how = "new"; len(known) == limiterWays {
						how = "displaces another"
						delete(known, silent)
					}
					s = &source{in, in}
					known[hash] = s
				}
			}
			s.full = max(s.full, in)
			want := s.full-in <= 9*l.cost
			if want {
				s.full += l.cost
			}
			outcomes[fmt.Sprint(how, ", answered ", want)]++
			if got := l.allow(now, hash); got != want {
				t.Fatalf("%s: answered %t, want %t", how, got, want)
			}
		}
	}
	if len(outcomes) != 6 { // a new source always has a full bucket
		t.Errorf("only %v", outcomes)
	}
}

// In a full set, the sources that are displaced are those that have been silent for more than four times the time that
// they were in use, or for more than ten minutes, and never one whose bucket is empty.
func TestPatience(t *testing.T) {
	const ticks, cost, burst = 1_000_000, 1000, 10
	for _, c := range []struct {
		use, silent uint64 // ticks
		displaced   bool
	}{{0, 0, false}, {0, 1, true}, {1000, 4000, false}, {1000, 4001, true},
		{1e9, 600 * ticks, false}, {1e9, 600*ticks + 1, true}} {
		var l limiter
		must.OK(t, l.set(ticks/cost, burst, ticks))
		hash := func(i, n uint64) uint64 { return 5<<55 | i<<slotShift | n }
		const first = uint64(1) << 40
		for _, at := range []uint64{first, first + c.use} {
			for i := range uint64(limiterWays) {
				l.places[hash(i, 0)>>slotShift].full = 0 // a full bucket
				check.Equal(t, l.allow(at, hash(i, 1)), true, "%t")
			}
		}
		l.allow(first+c.use+cost+c.silent, hash(3, 2))
		if got := l.places[hash(3, 0)>>slotShift].source == hash(3, 2); got != c.displaced {
			t.Errorf("in use for %d ticks, silent for %d: displaced %t, want %t", c.use, c.silent, got, c.displaced)
		}
	}
	var l limiter
	must.OK(t, l.set(ticks/cost, burst, ticks))
	for hash := range uint64(limiterWays + 1) {
		for n := range burst + 1 {
			check.Equal(t, l.allow(1<<40, hash<<slotShift&^(1<<(slotShift+3))|1+hash), n < burst, "%t")
		}
	}
	check.Equal(t, l.allow(1<<40, 1), false, "answered after its burst, because another source came: %t")
}

// requestFrom are requests from any IPv4 address, or from an IPv6 address that ends in it.
var requestFrom = map[string]func(netip.Addr) []byte{
	"ping": func(a netip.Addr) []byte { return toUs(0, icmp4(a, our4, 8)) },
	"udp":  func(a netip.Addr) []byte { return toUs(0, udp(a, our4, 40000, 9000, nil)) },
	"ping6": func(a netip.Addr) []byte {
		b := a.As4()
		from := netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
		return toUs(0, icmp6(from, our6, 64, echo(128, 8)))
	},
}

// A flood from random sources, far above the total rate of all places, does not reduce the rate of senders that were
// there before, in Reply or Slow, and does not get more replies than the places permit.
func TestFloodSparesKnownSources(t *testing.T) {
	const second = 1_000_000 // ticks
	rnd := rand.New(rand.NewPCG(3, 4))
	const known = 100
	for name, request := range requestFrom {
		r := limited(t, 100, 20) // each of them sends 10 requests per second
		r.Loop.Start = 1 << 40
		ask := func() (refused int) {
			for i := range known {
				if poll(r, inBuffer(request(netip.AddrFrom4([4]byte{10, 9, byte(i), 7})))) == 0 {
					refused++
				}
			}
			return refused
		}
		for range 20 { // no flood for two seconds
			if n := ask(); n != 0 {
				t.Fatalf("%s: %d of %d refused before the flood", name, n, known)
			}
			r.Loop.Start += second / 10
		}
		const flood = 2_000_000 // per second, five times what 4096 sources may send at 100 each
		refused, answered, tenths := 0, 0, 5
		if testing.Short() {
			tenths = 1
		}
		for range tenths {
			for i := range flood / 10 {
				a := netip.AddrFrom4([4]byte{byte(11 + rnd.IntN(100)), byte(rnd.Uint32()), byte(rnd.Uint32()),
					byte(1 + rnd.IntN(250))})
				if poll(r, inBuffer(request(a))) != 0 {
					answered++
				}
				r.Loop.Start += uint64(i & 1) // 2 million per second
			}
			refused += ask()
		}
		if refused != 0 {
			t.Errorf("%s: %d of %d requests of known sources were refused in the flood", name, refused, tenths*known)
		}
		if s := r.Stats(); s[RefusedRate] == 0 {
			t.Errorf("%s: the flood was not limited: %d answered", name, answered)
		}
		if most := (slots + slots/8) * (20 + 50); answered > most {
			t.Errorf("%s: %d replies to the flood, want at most %d", name, answered, most)
		}
	}
}

// Every kind of frame with every combination of tags: answered only if all of its VLANs are in the list.
func TestVLANs(t *testing.T) {
	for _, list := range [][]uint16{nil, {}, {0}, {100}, {0, 100}, {10, 20}, {10}, {20}, {0, 10, 20, 100}, {4094}} {
		for _, mode := range []Mode{Strict, Open} {
			c := config(mode)
			c.VLANs = list
			for tags, ids := range [][]uint16{{0}, {100}, {10, 20}} {
				want := list == nil || !slices.ContainsFunc(ids,
					func(id uint16) bool { return !slices.Contains(list, id) })
				for _, q := range requests(tags) {
					fast, slow := responder(t, c), responder(t, c)
					must.OK(t, judge(&c, fast, slow, q.frame))
					if s := fast.Stats(); want && s[q.kind] != 1 || !want && s[RefusedVLAN] != 1 || s != slow.Stats() {
						t.Errorf("VLANs %v, %d tags, %s: counted %v", list, tags, q.name, s)
					}
				}
			}
		}
	}
	c := config(Strict)
	c.VLANs = []uint16{0}
	for _, tag := range []string{"\x81\x00\xe0\x00", "\x88\xa8\x00\x00"} { // priority tag, no VLAN
		f := find("ping", 0)
		f = slices.Concat(f[:12], []byte(tag), f[12:])
		check.Equal(t, len(reply(t, &c, f)), len(f), "reply of %d bytes")
	}
}

// The reply to duplicate address detection contains the owner's address, in one option and nothing else (RFC 4861
// §7.2.4).
func TestAnswerToDAD(t *testing.T) {
	group, groupMAC := oracle.SolicitedNode(our6)
	for _, options := range []string{"", "\x0e\x01nonce!", "\x0e\x01nonce!\x0e\x01nonce!"} {
		f := eth(groupMAC, theirMAC, 0, 0x86dd, solicit(netip.IPv6Unspecified(), group, our6, []byte(options)...))
		c := config(Strict)
		g := reply(t, &c, f)
		if len(g) != 14+40+32 || !bytes.Equal(g[78:], append([]byte{2, 1}, ourMAC[:]...)) || be.Uint16(g[18:]) != 32 {
			t.Errorf("to options %q: %d bytes\n%x", options, len(g), g)
		}
	}
}

// Test packets that are shorter than their reply get the base packet, if that is permitted (RFC 8762 §4.6).
func TestSTAMPBase(t *testing.T) {
	for tags := range 3 {
		for n := range 60 {
			for _, v6 := range []bool{false, true} {
				from, to := hosts(v6)
				f := pad(toUs(tags, udp(from, to, 40000, 862,
					slices.Concat(testPacket(14), bytes.Repeat([]byte{0xee}, 60))[:n])), 60)
				for _, base := range []bool{false, true} {
					c := config(Strict)
					c.STAMPBase = base
					fast, slow := responder(t, c), responder(t, c)
					must.OK(t, judge(&c, fast, slow, f))
					s := fast.Stats()
					if want := n >= 41 || base && n >= 14; want != (s.Answered() == 1) || !want &&
						s[RefusedSTAMPShort] != 1 {
						t.Errorf("%d bytes, base packets %v: counted %v", n, base, s)
					}
					if !base || n < 14 {
						continue
					}
					if g := reply(t, &c, f); len(g) != max(len(f), len(g)) || n < 41 &&
						len(g) != map[bool]int{false: 14 + 4*tags + 72, true: 14 + 4*tags + 92}[v6] {
						t.Errorf("%d bytes, %d tags: reply of %d", n, tags, len(g))
					}
				}
			}
		}
	}
}

// BenchmarkChecksum measures the cost of checksum verification by the packet's length: the difference of the two
// results.
func BenchmarkChecksum(b *testing.B) {
	for _, n := range []int{46, 84, 128, 256, 512, 1500} {
		f := pad(toUs(0, icmp4(their4, our4, n-28)), 60)
		for _, limit := range []int{0, 1500} {
			c := config(Strict)
			c.ChecksumBytes = limit
			b.Run(fmt.Sprintf("%d bytes/verified %v", n, limit > 0), func(b *testing.B) { benchmark(b, c, f, poll) })
		}
	}
}

func BenchmarkLimit(b *testing.B) {
	for _, rate := range []uint64{0, DefaultRate} {
		c := config(Strict)
		c.Rate, c.Burst, c.TicksPerSecond = rate, DefaultBurst, 2_000_000_000
		b.Run(fmt.Sprintf("rate %d", rate), func(b *testing.B) {
			benchmark(b, c, find("ping", 0), func(r *Responder, f []byte) int {
				r.Loop.Start += 2000
				return poll(r, f)
			})
		})
	}
}

// BenchmarkFlood measures requests from new sources.
func BenchmarkFlood(b *testing.B) {
	c := config(Strict)
	c.Rate, c.Burst, c.TicksPerSecond = DefaultRate, DefaultBurst, 2_000_000_000
	for name, request := range requestFrom {
		var frames [1 << 14][]byte
		for i := range frames {
			frames[i] = pad(request(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 9})), 60)
		}
		b.Run(name, func(b *testing.B) {
			r, f, i := responder(b, c), inBuffer(frames[0]), 0
			for b.Loop() {
				copy(f, frames[i&(len(frames)-1)])
				i++
				r.Loop.Start += 200
				if poll(r, f) == 0 {
					b.Fatal("refused")
				}
			}
		})
	}
}
