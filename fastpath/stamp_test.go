package fastpath

import (
	"bytes"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// A reflected test packet, field by field (RFC 8762 §4.3.1). TWAMP's has the same layout (RFC 5357 §4.2.1).
func TestSTAMPGolden(t *testing.T) {
	c := config(Strict)
	g := reply(t, &c, toUs(0, udp(their4, our4, 40000, 862, testPacket(48))))
	check.Equal(t, l4sum(our4.AsSlice(), their4.AsSlice(), 17, g[34:]), 0xffff, "datagram sums to %#04x")
	clear(g[40:42])
	golden(t, g[34:], `
		035e 9c40             UDP ports 862, 40000
		0038                  UDP length 56
		0000                  UDP checksum, above
		0000002a              Sequence Number: the sender's, as the reflector keeps no state
		e8d4a51080000000      Timestamp: T3
		8587                  Error Estimate of 1 us: S=1 Z=0 Scale=5 Multiplier=135
		0000                  MBZ, or the session identifier that RFC 8972 puts here
		e8d4a51080000000      Receive Timestamp: T2
		0000002a              Session-Sender Sequence Number
		e8d4a50f11223344      Session-Sender Timestamp
		9f01                  Session-Sender Error Estimate
		0000                  MBZ
		39                    Session-Sender TTL 57, as it came
		000000                MBZ
		2c2d2e2f              what follows the base packet stays`)
}

// golden compares got with a commented dump.
func golden(t *testing.T, got []byte, dump string) {
	t.Helper()
	var want []byte
	for line := range strings.Lines(dump) {
		for _, w := range strings.Fields(line) {
			x, err := hex.DecodeString(w)
			if err != nil || len(w) < 2 {
				break // start of the comment
			}
			want = append(want, x...)
		}
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestClock(t *testing.T) {
	const rate = 1 << 32 * (1 << 32) / 2_600_000_000 // of a 2.6 GHz counter
	c := &Clock{TSC: 1 << 50, NTP: clockNTP, Rate: rate}
	for _, ticks := range []int64{0, 1, 2600, 2_600_000_000, 1 << 45, -1, -2600, -2_600_000_000} {
		got := int64(c.At(uint64(1<<50+ticks)) - clockNTP)
		want := float64(ticks) / 2.6e9 * (1 << 32)
		if d := math.Abs(float64(got) - want); d > 1+math.Abs(want)*1e-9 {
			t.Errorf("%d ticks: %d units, want %.1f", ticks, got, want)
		}
	}
}

// A bound that the kernel counted from 0 is not a bound.
func TestKernelEstimate(t *testing.T) {
	for maxerror, want := range map[int64]uint16{0: 0x9FFF, 500: 0x9FFF, 1500: 0x9FFF,
		1501: ErrorEstimate(true, 1501e-6), 16_000_000: 0x9FFF} {
		if got := KernelEstimate(true, maxerror); got != want {
			t.Errorf("%d µs: %#04x, want %#04x", maxerror, got, want)
		}
	}
	check.Equal(t, KernelEstimate(false, 500), 0x1FFF, "not synchronised: %#04x")
}

func TestErrorEstimate(t *testing.T) {
	for _, c := range []struct {
		synchronised bool
		seconds      float64
		want         uint16
	}{
		{true, 1.0 / (1 << 32), 0x8001},               // one unit
		{true, 255.0 / (1 << 32), 0x80ff},             //
		{true, 256.0 / (1 << 32), 0x8180},             // 128 * 2
		{true, 257.0 / (1 << 32), 0x8181},             // rounded up
		{false, 1, 0x1980},                            // 128 * 2^25
		{true, 1e-6, 0x8587},                          // 4295 units: 135 * 2^5 = 4320
		{false, 0, 0x1fff},                            // unknown
		{true, math.NaN(), 0x9fff},                    //
		{true, math.Inf(1), 0x9fff},                   //
		{true, -1, 0x9fff},                            //
		{true, 1000, 0x9fff},                          //
		{true, 255.0 * (1 << 31) / (1 << 32), 0x9fff}, // the maximum
	} {
		got := ErrorEstimate(c.synchronised, c.seconds)
		if got != c.want {
			t.Errorf("%v %g s: %#04x, want %#04x", c.synchronised, c.seconds, got, c.want)
		}
		if got&0xff == 0 || got&0x4000 != 0 {
			t.Errorf("%v %g s: %#04x has multiplier 0 or the Z flag", c.synchronised, c.seconds, got)
		}
	}
}

// Packets with only the pseudo-header's sum, which a kernel leaves for a device to complete. The reply's checksum must
// be complete, from Reply and from Slow.
func TestPartialChecksums(t *testing.T) {
	for tags := range 3 {
		for _, q := range requests(tags) {
			switch q.kind {
			case AnsweredUDPv4, AnsweredUDPv6, AnsweredSTAMPv4, AnsweredSTAMPv6:
			default:
				continue
			}
			c := config(Strict)
			c.PartialChecksums = true
			whole := reply(t, &c, q.frame)
			l3 := 14 + 4*tags
			l4, n := l3+20, int(be.Uint16(q.frame[l3+2:]))-20
			hosts := q.frame[l3+12 : l3+20]
			if q.kind == AnsweredUDPv6 || q.kind == AnsweredSTAMPv6 {
				l4, n = l3+40, int(be.Uint16(q.frame[l3+4:]))
				hosts = q.frame[l3+8 : l3+40]
			}
			if be.Uint16(q.frame[l4+6:]) == 0 {
				continue // sent without a checksum: there is nothing to complete
			}
			if !bytes.Equal(whole, expected(&c, q.frame)) {
				t.Errorf("%d tags, %s: a finished checksum was changed", tags, q.name)
			}
			f := bytes.Clone(q.frame)
			be.PutUint16(f[l4+6:], naiveSum(hosts, []byte{0, 17, byte(n >> 8), byte(n)}))
			if got := reply(t, &c, f); !bytes.Equal(got, whole) {
				t.Errorf("%d tags, %s: completed\n%x, want\n%x", tags, q.name, got, whole)
			}
			c.PartialChecksums, c.ChecksumBytes = false, 9000
			if r := responder(t, c); poll(r, f) != 0 || r.Stats()[RefusedChecksum] != 1 {
				t.Errorf("%d tags, %s: answered without being told of partial checksums", tags, q.name)
			}
		}
	}
}
