package fastpath

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
)

// asking is a test packet with the Host Timing TLV first, followed by after bytes.
func asking(after int) []byte {
	p := append(testPacket(44), flagUnrecognized, TLVTiming, 0, TimingLength, 'R', 'B', 'N', 'D')
	p = append(p, make([]byte, TimingLength-4)...)
	return append(p, bytes.Repeat([]byte{7}, after)...)
}

func timingConfig() Config {
	c := config(Strict)
	c.Clock.Store(&Clock{TSC: polling.TSC(), NTP: 1 << 40, Rate: 1 << 32}) // one unit per tick
	c.Reflector.Timing = true
	return c
}

// Fast path and slow path tell a sender that asks when the loop last looked, and the reply's checksum is right. How
// many test packets are ahead is counted from that look.
func TestTiming(t *testing.T) {
	c := timingConfig()
	clock := c.Clock.Load()
	for _, after := range []int{0, 1, 20, 400} {
		for _, v6 := range []bool{false, true} {
			for _, fast := range []bool{true, false} {
				r := responder(t, c)
				looked := r.Loop.Begin()
				r.Loop.Pass(looked, 0)
				from, to := hosts(v6)
				var frames [3][]byte // of one pass
				for i := range frames {
					f := inBuffer(toUs(0, udp(from, to, 40000, 862, asking(after))))
					h := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(f)))
					if fast && after < 100 {
						check.Equal(t, r.Reply(h, len(f)), true, "answered by Reply: %v")
					} else {
						check.Equal(t, r.Slow(h, len(f)) != 0, true, "answered by Slow: %v")
					}
					frames[i] = f
				}
				r.Departing()
				for ahead, f := range frames {
					d := f[34:]
					if v6 {
						d = f[54:]
					}
					x := d[8+stampBase:]
					check.Equal(t, x[0], 0, "flags of the TLV are %#x")
					check.Equal(t, be.Uint32(x[4:]), TimingMark, "the mark became %#x")
					check.Equal(t, x[8], 1, "its own flags are %#x") // on the wire
					check.Equal(t, int(be.Uint16(x[10:])), ahead, "%d packets ahead")
					check.Equal(t, be.Uint64(x[12:]), clock.At(looked), "looked at %#x")
					check.Equal(t, l4sum(to.AsSlice(), from.AsSlice(), 17, d), 0xffff, "the reply sums to %#04x")
					if !bytes.Equal(x[20:20+after], bytes.Repeat([]byte{7}, after)) {
						t.Errorf("what follows the TLV changed: % x", x[20:])
					}
				}
			}
		}
	}
}

// Before its first pass a loop has not looked, and says so, whatever it answered before.
func TestTimingUnknown(t *testing.T) {
	c := timingConfig()
	r := responder(t, c)
	for i := range 6 {
		f := inBuffer(toUs(0, udp(their4, our4, 40000, 862, asking(0))))
		h := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(f)))
		if i%2 == 0 {
			check.Equal(t, r.Reply(h, len(f)), true, "answered by Reply: %v")
		} else {
			check.Equal(t, r.Slow(h, len(f)) != 0, true, "answered by Slow: %v")
		}
		r.Departing()
		golden(t, f[34+8+44:34+8+64], "00 fd 00 10 52424e44 00 00 0000 0000000000000000")
	}
}

// The TLV is not answered if it is switched off, if type, length or mark differ, and, if there is a key, without the
// right HMAC.
func TestTimingNotAsked(t *testing.T) {
	for what, change := range map[string]func(c *Config, p []byte){
		"not enabled":     func(c *Config, p []byte) { c.Reflector.Timing = false },
		"another mark":    func(c *Config, p []byte) { p[48]++ },
		"another type":    func(c *Config, p []byte) { p[45]++ },
		"another length":  func(c *Config, p []byte) { p[47]-- },
		"a key, no HMAC":  func(c *Config, p []byte) { c.Reflector.Key = make([]byte, KeyLength) },
		"key, TLVs known": func(c *Config, p []byte) { c.Reflector.Key, c.Reflector.TLVs = make([]byte, KeyLength), true },
	} {
		c, p := timingConfig(), asking(0)
		change(&c, p)
		g := reply(t, &c, toUs(0, udp(their4, our4, 40000, 862, p)))
		check.Equal(t, g[34+8+44]&(flagUnrecognized|flagMalformed), flagUnrecognized, what+": flags %#x")
		check.Equal(t, string(g[34+8+45:]), string(p[45:]), what+": the TLV is %q")
	}
}

// With TLVs, it is answered among others, and with a key, if their HMAC is right.
func TestTimingAmongTLVs(t *testing.T) {
	c := timingConfig()
	c.Reflector.TLVs = true
	p := append(testPacket(44), flagUnrecognized, tlvTimestamp, 0, 4, 0, 0, 0, 0)
	p = append(p, asking(0)[44:]...)
	g := reply(t, &c, toUs(0, udp(their4, our4, 40000, 862, p)))
	golden(t, g[34+8+44:], "00 03 0004 05020502 00 fd 0010 52424e44 00 00 0000 0000000000000000")

	c.Reflector.Key = bytes.Repeat([]byte{3}, KeyLength)
	seal := newSeal(c.Reflector.Key)
	p = append(asking(0), flagUnrecognized, tlvHMAC, 0, sealLength)
	p = append(p, seal.hmac(p[:4], p[44:64])...)
	g = reply(t, &c, toUs(0, udp(their4, our4, 40000, 862, p)))
	golden(t, g[34+8+44:34+8+64], "00 fd 0010 52424e44 00 00 0000 0000000000000000")
}

// What the TLV costs senders that ask, and the setting those that do not.
func BenchmarkTiming(b *testing.B) {
	on, off := config(Strict), config(Strict)
	on.Reflector.Timing = true
	plain := toUs(0, udp(their4, our4, 40000, 862, testPacket(64)))
	ask := toUs(0, udp(their4, our4, 40000, 862, asking(0)))
	for _, v := range []struct {
		name  string
		c     Config
		frame []byte
	}{{"disabled", off, plain}, {"enabled, not asked", on, plain}, {"asked", on, ask}} {
		b.Run(v.name, func(b *testing.B) {
			benchmark(b, v.c, v.frame, poll)
		})
	}
}
