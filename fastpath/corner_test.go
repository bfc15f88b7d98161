package fastpath

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// A word of the message takes its checksum through every 16-bit value, including 0x0000 and 0xffff. Each reply, from
// the snippet and from Slow, equals the oracle's bit by bit, as if its sender had computed the checksum from scratch.
func TestEveryChecksum(t *testing.T) {
	ping := func(v uint16) []byte {
		m := make([]byte, 8+18) // zeros except for the sequence number
		m[0] = 8
		binary.BigEndian.PutUint16(m[6:], v)
		binary.BigEndian.PutUint16(m[2:], ^naiveSum(m))
		return eth(ourMAC, theirMAC, 0, 0x0800, ip4(their4, our4, 1, m))
	}
	ping6 := func(v uint16) []byte {
		m := []byte{128, 0, 0, 0, 0, 0, byte(v >> 8), byte(v)}
		return eth(ourMAC, theirMAC, 0, 0x86dd, icmp6(their6, our6, 64, m))
	}
	stamp := func(v uint16) []byte {
		return eth(ourMAC, theirMAC, 0, 0x0800, udp(their4, our4, 40000, 862, binary.BigEndian.AppendUint16(testPacket(44), v)))
	}
	stamp6 := func(v uint16) []byte {
		return eth(ourMAC, theirMAC, 0, 0x86dd, udp(their6, our6, 40000, 862, binary.BigEndian.AppendUint16(testPacket(44), v)))
	}
	ttl := func(v uint16) []byte { // the IPv4 header's checksum instead, by its identification
		f := ping(1)
		binary.BigEndian.PutUint16(f[18:], v)
		f[24], f[25] = 0, 0
		binary.BigEndian.PutUint16(f[24:], ^naiveSum(f[14:34]))
		return f
	}
	for name, build := range map[string]func(uint16) []byte{
		"ping": ping, "ping6": ping6, "stamp": stamp, "stamp6": stamp6, "ttl": ttl,
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
		f := eth(ourMAC, theirMAC, 0, 0x0800, udp(their4, our4, 40000, 9000, []byte{byte(v >> 8), byte(v)}))
		partial := bytes.Clone(f)
		binary.BigEndian.PutUint16(partial[40:], naiveSum(f[26:34], []byte{0, 17, 0, 10}))
		want := expected(&c, f)
		for _, request := range [][]byte{f, partial} {
			if poll(r, request); !bytes.Equal(request, want) {
				t.Fatalf("payload %#04x\n%x, want\n%x", v, request, want)
			}
		}
	}
}
