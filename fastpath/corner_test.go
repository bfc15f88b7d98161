package fastpath

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/random"
)

// A word of the message takes its checksum through every 16-bit value, including 0x0000 and 0xffff. Each reply, from
// the snippet and from Slow, equals the oracle's bit by bit, as if its sender had computed the checksum from scratch.
func TestEveryChecksum(t *testing.T) {
	step := needs.Cases(1, 7)
	ping := func(v uint16) []byte {
		m := make([]byte, 8+18) // zeros except for the sequence number
		m[0] = 8
		be.PutUint16(m[6:], v)
		be.PutUint16(m[2:], ^naiveSum(m))
		return toUs(0, ip4(their4, our4, 1, m))
	}
	for name, build := range map[string]func(uint16) []byte{
		"ping": ping,
		"ping6": func(v uint16) []byte {
			return toUs(0, icmp6(their6, our6, 64, []byte{128, 0, 0, 0, 0, 0, byte(v >> 8), byte(v)}))
		},
		"stamp": func(v uint16) []byte {
			return toUs(0, udp(their4, our4, 40000, 862, be.AppendUint16(testPacket(44), v)))
		},
		"stamp6": func(v uint16) []byte {
			return toUs(0, udp(their6, our6, 40000, 862, be.AppendUint16(testPacket(44), v)))
		},
		"ttl": func(v uint16) []byte { // the IPv4 header's checksum instead, by its identification
			f := ping(1)
			be.PutUint16(f[18:], v)
			fixHeader(f[14:])
			return f
		},
	} {
		c := config(Strict)
		fast, slow := responder(t, c), responder(t, c)
		frames := uint64(0)
		for v := 0; v < 1<<16; v += step {
			frames++
			f := build(uint16(v))
			want := expected(&c, f)
			a, b := inBuffer(f), inBuffer(f)
			poll(fast, a)
			slowly(slow, b)
			if !bytes.Equal(a, want) || !bytes.Equal(b, want) {
				t.Fatalf("%s %#04x: snippet, Slow, oracle\n%x\n%x\n%x", name, v, a, b, want)
			}
		}
		if s := fast.Stats(); s.Answered() != frames {
			t.Errorf("%s: %v", name, s)
		}
	}
}

// The same for checksums that are completed here: never zero, which would mean that there is no checksum. A finished
// checksum is unchanged, even if it equals the pseudo-header's sum by chance, and only then leaves Reply the frame to
// Slow.
func TestEveryCompletion(t *testing.T) {
	c := config(Strict)
	c.PartialChecksums = true
	r := responder(t, c)
	for v := range 1 << 16 {
		for _, v6 := range []bool{false, true} {
			from, to := hosts(v6)
			f := toUs(0, udp(from, to, 40000, 9000, []byte{byte(v >> 8), byte(v)}))
			field, pseudo := f[40:42], naiveSum(from.AsSlice(), to.AsSlice(), []byte{0, 17, 0, 10})
			if v6 {
				field = f[60:62]
			}
			whole := bytes.Clone(f)
			want := expected(&c, f)
			equal := be.Uint16(field) == pseudo
			be.PutUint16(field, pseudo)
			for i, request := range [][]byte{whole, bytes.Clone(f)} {
				judged := r.Slowed()
				if poll(r, request); !bytes.Equal(request, want) {
					t.Fatalf("IPv6 %v, payload %#04x\n%x, want\n%x", v6, v, request, want)
				}
				if slow := r.Slowed() != judged; slow != (equal || i == 1) {
					t.Fatalf("IPv6 %v, payload %#04x, partial %v: Slow judged it: %v", v6, v, i == 1, slow)
				}
			}
		}
	}
}

// The sum of a segment carries out of 64 bits at every step, or becomes all ones or zero: Reply itself answers.
func TestEveryCarry(t *testing.T) {
	rnd := random.New(t)
	c := config(Strict)
	c.ChecksumBytes = DefaultChecksumBytes
	fast, slow := responder(t, c), responder(t, c)
	test := func(packet []byte) {
		t.Helper()
		f := toUs(0, packet)
		must.OK(t, judge(&c, fast, slow, f))
	}
	// What precedes the blocks of a long packet adds up to ones.
	test(icmp4Of(append([]byte{0xf7, 0xff, 0x12, 0x34, 0xfe, 0xfd, 0xfc, 0xfb}, make([]byte, wideBytes)...)))
	for range 20_000 {
		d := make([]byte, stampLength+rnd.IntN(300))
		for at := 0; at+8 <= len(d); at += 8 {
			le.PutUint64(d[at:], []uint64{0, 1, ^uint64(0), rnd.Uint64()}[rnd.IntN(4)])
		}
		test(kinds[rnd.IntN(len(kinds))].packet(d))
	}
}
