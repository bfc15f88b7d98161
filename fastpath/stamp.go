package fastpath

import (
	"math"
	"math/bits"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/polling"
)

// Clock converts ticks of the cycle counter to the time of day. It is created outside the loop, whenever the relation
// is measured, and never changes.
type Clock struct {
	TSC uint64 // the counter at a moment
	// the time at that moment: seconds since 1900 in the high half, their fraction in the low half (RFC 5905 §6)
	NTP           uint64
	Rate          uint64 // NTP units (2^-32 s) per tick, as a fixed-point number with 32 fractional bits
	ErrorEstimate uint16 // in the format of ErrorEstimate
}

// At returns the time at which the counter was tsc, which may be before c.TSC.
func (c *Clock) At(tsc uint64) uint64 {
	d := tsc - c.TSC
	hi, lo := bits.Mul64(d, c.Rate)
	hi -= uint64(int64(d)>>63) & c.Rate // d is signed
	return c.NTP + (hi<<32 | lo>>32)
}

// ErrorEstimate returns the field of that name (RFC 4656 §4.1.2) for NTP timestamps: whether the clock is synchronised
// to UTC by an external source, and an upper bound of its error in seconds, rounded up to 8 bits of precision. An
// unknown error (zero, negative, or not a number) becomes the maximum.
func ErrorEstimate(synchronised bool, seconds float64) uint16 {
	var s uint16
	if synchronised {
		s = 1 << 15
	}
	units := math.Ceil(seconds * (1 << 32)) // the error is Multiplier * 2^Scale of these units
	if !(units >= 1 && units <= 255<<31) {
		return s | 31<<8 | 255 // 127 s; a greater Scale would not be meaningful
	}
	scale := 0
	for ; units > 255; scale++ {
		units = math.Ceil(units / 2)
	}
	return s | uint16(scale)<<8 | uint16(units)
}

// UnknownError reports whether the kernel's bound in µs (adjtimex(2): maxerror) was counted from 0, and so is not a
// bound: the program that last set the clock reported no error, and the kernel has added 500 µs each second since.
// phc2sys, ptp4l and systemd-timesyncd write 0 each time; chronyd and ntpd write their estimate, which is a multiple of
// 500 once in 500 times.
func UnknownError(maxerror int64) bool { return maxerror%500 == 0 }

// KernelEstimate is the error estimate of a clock for which only the kernel's maxerror in µs is known. If that is not a
// bound, the estimate is the maximum.
func KernelEstimate(synchronised bool, maxerror int64) uint16 {
	if UnknownError(maxerror) {
		maxerror = 0
	}
	return ErrorEstimate(synchronised, float64(maxerror)/1e6)
}

// stampLength is how much of a test packet a reflector needs: everything up to the sender's TTL. STAMP's packets have
// 44 bytes or more (RFC 8762 §4.2.1). TWAMP-Light's may be as short as 14; those of less than 41 bytes are refused,
// because the reply would be longer than the request (RFC 5357 §4.2.1 has the sender pad by 27 bytes for this reason),
// unless Config.STAMPBase permits that.
const (
	stampLength = 41
	stampSender = 14 // the shortest test packet of a TWAMP-Light sender (RFC 4656 §4.1.2)
	stampBase   = 44 // the base packet that is the reply to it if Config.STAMPBase permits that
)

// grow extends datagram d by n zeros. Its checksum stays right, wrong or absent as it was: only the length changes in
// the sum, twice.
func grow(d []byte, n int) []byte {
	was := uint16(len(d))
	d = d[:len(d)+n]
	clear(d[was:])
	be.PutUint16(d[4:], uint16(len(d)))
	if hc := be.Uint16(d[6:]); hc != 0 {
		hc = cksum.Update16(hc, was, uint16(len(d)))
		be.PutUint16(d[6:], cksum.UDP(cksum.Update16(hc, was, uint16(len(d)))))
	}
	return d
}

// reflect turns the test packet in datagram d into a reflector's (RFC 8762 §4.3, RFC 5357 §4.2.1; both have the same
// layout if unauthenticated), and returns the TOS of the reply. Unless Reflector requires more, the bytes from 41 on
// are unchanged: zeros or TLVs in STAMP, padding in TWAMP. So are the two after the error estimate, where RFC 8972 §3
// has the session identifier. The checksum is updated for the changes, so a corrupt datagram remains corrupt, and one
// without a checksum has none.
//
// In a test packet that had to grow, these two bytes were padding, and become zeros.
func (r *Responder) reflect(d []byte, in *arrival, s *session, auth bool) (tos uint8) {
	p := d[8:]
	changes := p[:stampLength]
	if auth || (r.tlvs || r.timing.plain) && len(p) > stampBase {
		changes = p
	}
	before := cksum.Sum(changes, 0)
	tos = r.mirror(p, in, s, auth)
	if hc := be.Uint16(d[6:]); hc != 0 {
		be.PutUint16(d[6:], cksum.UDP(cksum.Update16(hc, before, cksum.Sum(changes, 0))))
	}
	return tos
}

// mirror turns the Session-Sender's packet in p into a Session-Reflector's. s is its session, nil in a stateless
// reflector. The transmit timestamp is written last, followed only by the HMAC over it.
func (r *Responder) mirror(p []byte, in *arrival, s *session, auth bool) (tos uint8) {
	c, base := r.clock.Load(), stampBase
	if auth {
		base = authBase
	}
	var e extensions
	if r.tlvs && len(p) > base {
		e = r.inspect(p[base:], p[:4], auth)
	}
	times := p[4:]
	if auth {
		mirrorSealed(p, in.hop)
		times = p[authTime:]
	} else {
		copy(p[24:38], p[:14]) // the sender's sequence number, timestamp and error estimate
		p[38], p[39], p[40] = 0, 0, in.hop
		if in.grown > 0 {
			p[14], p[15] = 0, 0
		}
	}
	if s != nil {
		be.PutUint32(p, s.sent)
	}
	tos = in.tos
	if e.tlvs != nil {
		tos = e.reflect(r, p[:4], in, s, c)
	} else if r.timing.plain && !auth && len(p) > base {
		r.timingFirst(p[base:], in.seen, c)
	}
	be.PutUint16(times[8:], c.ErrorEstimate)
	if auth {
		be.PutUint64(p[authReceived:], c.At(in.seen))
	} else {
		be.PutUint64(p[16:], c.At(in.seen))
	}
	now := c.At(polling.TSC())
	be.PutUint64(times, now)
	if auth {
		copy(p[authSeal:authBase], r.seal.hmac(p[:authSeal], nil))
	}
	if s != nil {
		s.sent++
		s.sentAt = now
	}
	return tos
}
