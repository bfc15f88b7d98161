package fastpath

import (
	"bytes"
	"testing"
)

// A word of the message takes its checksum through every 16-bit value, including 0x0000 and 0xffff. Each reply, from
// the snippet and from Slow, equals the oracle's bit by bit, as if its sender had computed the checksum from scratch.
func TestEveryChecksum(t *testing.T) {
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
		for v := range 1 << 16 {
			f := build(uint16(v))
			want := expected(&c, f)
			a, b := inBuffer(f), inBuffer(f)
			poll(fast, a)
			slowly(slow, b)
			if !bytes.Equal(a, want) || !bytes.Equal(b, want) {
				t.Fatalf("%s %#04x: snippet, Slow, oracle\n%x\n%x\n%x", name, v, a, b, want)
			}
		}
		if s := fast.Stats(); s.Answered() != 1<<16 {
			t.Errorf("%s: %v", name, s)
		}
	}
}

// The same for checksums that are completed here: never zero, which would mean that there is no checksum. A finished
// checksum is unchanged, even if it equals the pseudo-header's sum by chance.
func TestEveryCompletion(t *testing.T) {
	c := config(Strict)
	c.PartialChecksums = true
	r := responder(t, c)
	for v := range 1 << 16 {
		f := toUs(0, udp(their4, our4, 40000, 9000, []byte{byte(v >> 8), byte(v)}))
		partial := bytes.Clone(f)
		be.PutUint16(partial[40:], naiveSum(f[26:34], []byte{0, 17, 0, 10}))
		want := expected(&c, f)
		for _, request := range [][]byte{f, partial} {
			if poll(r, request); !bytes.Equal(request, want) {
				t.Fatalf("payload %#04x\n%x, want\n%x", v, request, want)
			}
		}
	}
}
