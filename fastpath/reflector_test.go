package fastpath

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const authPort = 8620

var stampKey = []byte("0123456789abcdef0123456789abcdef")

func reflector(sessions int) Config {
	c := config(Strict)
	c.ChecksumBytes = 1500
	c.Reflector = Reflector{Sessions: sessions, Idle: 1 << 60, AuthPorts: []uint16{authPort}, Key: stampKey, TLVs: true,
		DSCPs: 1<<46 | 1<<10}
	return c
}

func digest(key []byte, parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(slices.Concat(parts...))
	return m.Sum(nil)[:16]
}

// sealed is an authenticated sender's packet (RFC 8762 §4.2.2), with bits where they must be zero, followed by TLVs.
func sealed(seq uint32, ssid uint16, tlvs ...byte) []byte {
	b := bytes.Repeat([]byte{0xee}, 96)
	be.PutUint32(b, seq)
	be.PutUint64(b[16:], 0xe8d4_a50f_1122_3344)
	be.PutUint16(b[24:], 0x9f01)
	be.PutUint16(b[26:], ssid)
	return append(append(b, digest(stampKey, b)...), tlvs...)
}

func open(seq uint32, ssid uint16, tlvs ...byte) []byte {
	b := testPacket(44)
	be.PutUint32(b, seq)
	be.PutUint16(b[14:], ssid)
	return append(b, tlvs...)
}

func ext(kind byte, value ...byte) []byte {
	b := []byte{0x80, kind, 0, 0}
	be.PutUint16(b[2:], uint16(len(value)))
	return append(b, value...)
}

func hmacTLV(seq uint32, tlvs []byte) []byte {
	return ext(tlvHMAC, digest(stampKey, be.AppendUint32(nil, seq), tlvs)...)
}

func datagram(to uint16, p []byte) []byte {
	return toUs(0, udp(their4, our4, 40000, to, p))
}

// One authenticated packet with TLVs, field by field. The two HMACs were computed by OpenSSL:
//
//	xxd -r -p | openssl dgst -sha256 -mac HMAC -macopt key:0123456789abcdef0123456789abcdef
func TestAuthenticatedGolden(t *testing.T) {
	c := reflector(8)
	x := slices.Concat(ext(tlvTimestamp, 0, 0, 0, 0), ext(tlvClass, 46<<2, 0, 0, 0), ext(99, 0xaa))
	f := datagram(authPort, sealed(42, 0x1234, append(x, hmacTLV(42, x)...)...))
	f[15] = 10<<2 | 1
	fixHeader(f[14:])
	g := reply(t, &c, f)
	if g[15] != 46<<2|1 || naiveSum(g[14:34]) != 0xffff {
		t.Errorf("TOS %#x, want DSCP 46 with the request's ECN; header sums to %#04x", g[15], naiveSum(g[14:34]))
	}
	clear(g[40:42])
	golden(t, g[34:], `
		21ac 9c40             UDP ports 8620, 40000
		00a1                  UDP length 161
		0000                  UDP checksum
		00000000              Sequence Number: the first reply of the session
		000000000000 000000000000  MBZ
		e8d4a51080000000      Timestamp: T3
		8587                  Error Estimate of 1 us
		1234                  SSID
		00000000              MBZ
		e8d4a51080000000      Receive Timestamp: T2
		0000000000000000      MBZ
		0000002a              Session-Sender Sequence Number
		000000000000 000000000000  MBZ
		e8d4a50f11223344      Session-Sender Timestamp
		9f01                  Session-Sender Error Estimate
		000000000000          MBZ
		39                    Session-Sender TTL 57
		000000000000000000000000000000  MBZ
		18c2f05a66e1c43a401dc96dc13c7475  HMAC
		00 03 0004            Timestamp Information, understood
		01 02 01 02           by NTP, in software, both ways
		00 04 0004            Class of Service
		b8 a4 0000            DSCP1 46, DSCP2 10, ECN 1, RP 0
		80 63 0001 aa         of a type that nobody has defined: U
		00 08 0010            HMAC TLV
		2f8070a1294188e6b9188465efdbf24a`)
}

// HMAC-SHA-256 truncated to 16 bytes: RFC 4231 §4 (test cases 1, 2, 5 and 6), RFC 4868 §2.7.2.1.
func TestSealVectors(t *testing.T) {
	for _, v := range []struct{ key, data, want string }{
		{strings.Repeat("\x0b", 20), "Hi There", "b0344c61d8db38535ca8afceaf0bf12b"},
		{"Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c7"},
		{strings.Repeat("\x0c", 20), "Test With Truncation", "a3b6167473100ee06e0c796c2955552b"},
		{strings.Repeat("\xaa", 131), "Test Using Larger Than Block-Size Key - Hash Key First", "60e431591ee0b67f0d8a26aacbf5b77f"},
		{strings.Repeat("\x0b", 32), "Hi There", "198a607eb44bfbc69903a0f1cf2bbdc5"},
		{strings.Repeat("Jefe", 8), "what do ya want for nothing?", "167f928588c5cc2eef8e3093caa0e87c"},
	} {
		s := newSeal([]byte(v.key))
		for cut := range len(v.data) {
			if got := fmt.Sprintf("%x", s.hmac([]byte(v.data[:cut]), []byte(v.data[cut:]))); got != v.want {
				t.Errorf("%q: %s, want %s", v.data, got, v.want)
			}
		}
	}
}

// A packet that differs from an authentic one in a bit covered by its HMAC, or in the HMAC, is not answered, and the
// frame is unchanged. The same applies to one signed with another key, or without an HMAC.
func TestForgedIsRefused(t *testing.T) {
	c := reflector(0)
	r := responder(t, c)
	whole := sealed(7, 1)
	if poll(r, datagram(authPort, whole)) == 0 {
		t.Fatal("the authentic one is refused")
	}
	forged := [][]byte{open(7, 1, make([]byte, 68)...), append(bytes.Clone(whole[:96]),
		digest([]byte("another"), whole[:96])...)}
	for bit := range 8 * len(whole) {
		p := bytes.Clone(whole)
		p[bit/8] ^= 1 << (bit % 8)
		forged = append(forged, p)
	}
	for i, p := range forged {
		f := datagram(authPort, p)
		g := inBuffer(f)
		if poll(r, g) != 0 || !bytes.Equal(f, g) {
			t.Errorf("forgery %d is answered, or changed", i)
		}
	}
	if s := r.Stats(); s[RefusedSTAMPHMAC] != uint64(len(forged)) || s.Refused() != uint64(len(forged)) {
		t.Errorf("of %d forgeries, counted %d under %s", len(forged), s[RefusedSTAMPHMAC], RefusedSTAMPHMAC)
	}
}

// Direct Measurement counts received packets, even those over the limit; Follow-Up describes the previous reply.
func TestCountsAndFollowUp(t *testing.T) {
	c := reflector(4)
	c.Rate, c.Burst, c.TicksPerSecond = 1, 2, 1<<30
	r := responder(t, c)
	x := slices.Concat(ext(tlvDirect, slices.Concat([]byte{0, 0, 0, 9}, make([]byte, 8))...),
		ext(tlvFollowUp, make([]byte, 16)...))
	var last []byte
	for i := range 4 {
		if i == 3 {
			r.Loop.Start = 10 << 30 // the limit permits one more
		}
		g := inBuffer(datagram(862, open(uint32(i), 0, x...)))
		if n := poll(r, g); n != 0 {
			last = bytes.Clone(g[42+44 : n])
		} else if i != 2 {
			t.Fatalf("packet %d is refused", i)
		}
	}
	golden(t, last, `
		00 05 000c
		00000009              S_TxC as it came
		00000004              R_RxC: four came
		00000003              R_TxC: three replies, this one included
		00 07 0010
		00000001              the reply before this one
		e8d4a51080000000      when it was sent
		02 000000             in software`)
}

// randomTLVs returns up to five TLVs, most of them valid, sometimes with an HMAC, sometimes broken.
func randomTLVs(rnd *rand.Rand, seq uint32) (x []byte) {
	for range rnd.IntN(5) {
		kind := byte(rnd.IntN(10))
		n := map[byte]int{1: rnd.IntN(30), 2: 4, 3: 4, 4: 4, 5: 12, 6: 4, 7: 16, 8: 16}[kind]
		if rnd.IntN(8) == 0 {
			n = rnd.IntN(20)
		}
		v := make([]byte, n)
		for i := range v {
			v[i] = byte(rnd.UintN(256)) >> rnd.IntN(8)
		}
		if rnd.IntN(6) == 0 { // the Host Timing TLV, most of them right
			kind, v = TLVTiming, append([]byte("RBND"), make([]byte, TimingLength-4)...)
			if rnd.IntN(4) == 0 {
				v = v[:rnd.IntN(len(v))]
			}
		}
		if kind == 2 {
			for range rnd.IntN(4) {
				sub := []int{1, 1, 4, 4, 7, 7, 2, 9}[rnd.IntN(8)]
				n := 16
				if sub < 3 {
					n = 8
				}
				if rnd.IntN(8) == 0 {
					n = rnd.IntN(20)
				}
				v = append(v, ext(byte(sub), make([]byte, n)...)...)
			}
		}
		x = append(x, ext(kind, v...)...)
	}
	if rnd.IntN(2) == 0 {
		x = append(x, hmacTLV(seq, x)...)
		for range rnd.IntN(3) {
			x = append(x, ext(tlvPadding, make([]byte, rnd.IntN(9))...)...)
		}
	}
	if len(x) > 0 && rnd.IntN(4) == 0 {
		x[rnd.IntN(len(x))] ^= 1 << rnd.IntN(8)
	}
	if rnd.IntN(6) == 0 {
		x = x[:rnd.IntN(len(x)+1)]
	}
	return x
}

// A quarter of a million random packets in a few sessions get the oracle's replies, which keeps separate sessions.
func TestReflectorAgainstOracle(t *testing.T) {
	packets := needs.Cases(240_000, 30_000)
	variants := map[string]func(*Config){
		"all":            func(*Config) {},
		"stateless":      func(c *Config) { c.Reflector.Sessions = 0 },
		"without a key":  func(c *Config) { c.Reflector.Key, c.Reflector.AuthPorts = nil, nil },
		"without TLVs":   func(c *Config) { c.Reflector.TLVs = false },
		"hides, no DSCP": func(c *Config) { c.Reflector.HideLocation, c.Reflector.DSCPs, c.STAMPBase = true, 0, true },
		"open":           func(c *Config) { c.Mode = Open },
		"timing":         func(c *Config) { c.Reflector.Timing = true },
		"timing, no key": func(c *Config) { c.Reflector.Timing, c.Reflector.Key, c.Reflector.AuthPorts = true, nil, nil },
		"timing alone": func(c *Config) {
			c.Reflector.Timing, c.Reflector.TLVs, c.Reflector.Key, c.Reflector.AuthPorts = true, false, nil, nil
		},
	}
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			c := reflector(64)
			change(&c)
			fast, slow, says := responder(t, c), responder(t, c), rules(&c)
			rnd := rand.New(rand.NewPCG(8762, 8972))
			integrity, good := 0, 0
			for range packets / len(variants) {
				f := randomTest(rnd)
				want := says.Answer(f, nil)
				must.OK(t, agree(want, fast, slow, f))
				if len(want) > 42+44+4 && want[42+44]&flagIntegrity != 0 {
					integrity++
				}
				if want != nil {
					good++
				}
			}
			s := fast.Stats()
			if good < packets/len(variants)/3 || c.Reflector.TLVs && integrity == 0 || len(c.Reflector.AuthPorts) > 0 &&
				s[RefusedSTAMPHMAC] == 0 {
				t.Errorf("%d answered, %d with failed HMACs: too few of a kind; counted %v", good, integrity, s)
			}
		})
	}
}

func randomTest(rnd *rand.Rand) []byte {
	seq := rnd.Uint32()
	p, to := open(seq, uint16(rnd.IntN(2)), randomTLVs(rnd, seq)...), uint16(862)
	if rnd.IntN(2) == 0 {
		p, to = sealed(seq, uint16(rnd.IntN(2)), randomTLVs(rnd, seq)...), authPort
		if rnd.IntN(8) == 0 {
			p[rnd.IntN(112)] ^= 1 << rnd.IntN(8)
		}
	}
	if rnd.IntN(20) == 0 {
		p = p[:rnd.IntN(len(p))]
	}
	from := uint16(40000 + rnd.IntN(3))
	v6 := rnd.IntN(2) == 0
	src, dst := hosts(v6)
	packet := udp(src, dst, from, to, p)
	packet[1] = byte(rnd.UintN(256)) // the type of service, or half of the traffic class
	if !v6 {
		fixHeader(packet)
	}
	return toUs(rnd.IntN(2), packet)
}

// Whatever follows the ports, the reflector agrees with the oracle, with and without sessions; two consecutive packets
// belong to one session.
func FuzzReflector(f *testing.F) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		seq := rnd.Uint32()
		f.Add(open(seq, 1, randomTLVs(rnd, seq)...), false)
		f.Add(sealed(seq, 1, randomTLVs(rnd, seq)...), true)
	}
	type side struct {
		c          Config
		fast, slow *Responder
	}
	var sides []side
	for _, sessions := range []int{0, 4} {
		c := reflector(sessions)
		sides = append(sides, side{c, responder(f, c), responder(f, c)})
	}
	f.Fuzz(func(t *testing.T, p []byte, auth bool) {
		if len(p) > 1400 {
			return
		}
		to := uint16(862)
		if auth {
			if to = authPort; len(p) >= 112 { // so that the code after the HMAC check is reached
				copy(p[96:], digest(stampKey, p[:96]))
			}
		}
		frame := datagram(to, p)
		for _, s := range sides {
			if s.c.Reflector.Sessions > 0 {
				for _, r := range []*Responder{s.fast, s.slow} {
					clear(r.sessions.places)
					clear(r.sealed.sessions.places)
				}
			}
			says := rules(&s.c)
			for range 2 {
				must.OK(t, agree(says.Answer(frame, nil), s.fast, s.slow, frame))
			}
		}
	})
}

func TestMessageSessions(t *testing.T) {
	c := reflector(4)
	c.Reflector.AuthPorts = nil
	r := messages(t, c)
	for i := range uint32(3) {
		for _, from := range []struct {
			sender uint64
			ssid   uint16
		}{{1, 0}, {2, 0}, {1, 9}} {
			x := slices.Concat(ext(tlvClass, 1, 2, 3, 4), ext(tlvLocation, 0, 0, 0, 0), ext(tlvTimestamp, 0, 0, 0, 0))
			p := append(open(77, from.ssid, x...), make([]byte, 100)...)
			n := r.ReflectMessage(p, 44+len(x), from.sender, 0)
			want := slices.Concat(ext(tlvClass, 1, 2, 3, 4), ext(tlvLocation, 0, 0, 0, 0),
				[]byte{0, 3, 0, 4, 1, 2, 1, 2})
			if n != 44+len(x) || be.Uint32(p) != i || be.Uint32(p[24:]) != 77 || !bytes.Equal(p[44:n], want) {
				t.Errorf("reply %d to %+v: %d bytes, %x", i, from, n, p[:n])
			}
		}
	}
}

// No call of a new seal allocates, not even the first one.
func TestSealAllocatesNothing(t *testing.T) {
	seals := make([]*seal, 12)
	for i := range seals {
		seals[i] = newSeal(make([]byte, 32))
	}
	next := 0
	if n := testing.AllocsPerRun(len(seals)-1, func() {
		seals[next].hmac(seals[next].sum[:5], nil)
		next++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestReflectorAllocatesNothing(t *testing.T) {
	r := responder(t, reflector(64))
	x := slices.Concat(ext(tlvLocation, slices.Concat(make([]byte, 4), ext(1, make([]byte, 8)...),
		ext(4, make([]byte, 16)...))...), ext(tlvDirect, make([]byte, 12)...))
	for _, q := range [][]byte{datagram(862, open(1, 2, append(x, hmacTLV(1, x)...)...)),
		datagram(authPort, sealed(1, 2, append(x, hmacTLV(1, x)...)...))} {
		f := inBuffer(q)
		answered := func() uint64 { s := r.Stats(); return s.Answered() }
		before := answered()
		if n := testing.AllocsPerRun(100, func() { slowly(r, f[:copy(f, q)]) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if answered()-before != 101 {
			t.Error("not all were answered")
		}
	}
}

func BenchmarkReflector(b *testing.B) {
	x := ext(tlvTimestamp, 0, 0, 0, 0)
	for _, c := range []struct {
		name     string
		sessions int
		frame    []byte
	}{
		{"stateless", 0, datagram(862, open(1, 2))},
		{"stateful", 1024, datagram(862, open(1, 2))},
		{"TLV", 1024, datagram(862, open(1, 2, x...))},
		{"TLV with HMAC", 1024, datagram(862, open(1, 2, append(x, hmacTLV(1, x)...)...))},
		{"authenticated", 1024, datagram(authPort, sealed(1, 2))},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := responder(b, reflector(c.sessions))
			f := inBuffer(c.frame)
			b.ReportAllocs()
			for b.Loop() {
				if slowly(r, f[:copy(f, c.frame)]) == 0 {
					b.Fatal("refused")
				}
			}
		})
	}
}
