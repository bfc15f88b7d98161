package probe_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/oracle"
)

var (
	here, there = [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	be          = binary.BigEndian
)

func flow(p probe.Proto, v6 bool, size int) probe.Flow {
	f := probe.Flow{Proto: p, SrcMAC: here, DstMAC: there, Src: netip.MustParseAddr("10.0.0.1"),
		Dst:     netip.MustParseAddr("10.0.0.2"),
		SrcPort: 50000, DstPort: 7, ID: 0x1234, Run: 0xdeadbeef, Size: size}
	if v6 {
		f.Src, f.Dst = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	}
	if size == 0 {
		f.Size = probe.MinSize(p, v6)
	}
	return f
}

func pseudo(b []byte, v6 bool, next byte, length int) []byte {
	if v6 {
		p := bytes.Clone(b[22:54])
		return append(p, 0, 0, byte(length>>8), byte(length), 0, 0, 0, next)
	}
	p := bytes.Clone(b[26:34])
	return append(p, 0, next, byte(length>>8), byte(length))
}

// l4sum sums a frame's segment, with its pseudo-header unless the protocol next has none.
func l4sum(b []byte, v6 bool, next byte) uint16 {
	segment := b[l4(v6):]
	if next == 1 {
		return oracle.Sum(segment)
	}
	return oracle.Sum(append(pseudo(b, v6, next, len(segment)), segment...))
}

// l4 is where a frame's segment starts.
func l4(v6 bool) int {
	if v6 {
		return 54
	}
	return 34
}

// answer turns a request into its reply as a host would, without any code of the package.
func answer(f probe.Flow, req []byte) []byte {
	b := bytes.Clone(req)
	v6 := f.Src.Is6()
	l4 := l4(v6)
	copy(b[0:6], req[6:12])
	copy(b[6:12], req[0:6])
	if v6 {
		copy(b[22:38], req[38:54])
		copy(b[38:54], req[22:38])
		b[21] = 61
	} else {
		copy(b[26:30], req[30:34])
		copy(b[30:34], req[26:30])
		b[22] = 61
		be.PutUint16(b[18:], 0x4711) // the host's own identification
	}
	switch {
	case f.Proto == probe.ICMP && v6:
		b[l4] = 129
	case f.Proto == probe.ICMP:
		b[l4] = 0
	default:
		copy(b[l4:l4+2], req[l4+2:l4+4])
		copy(b[l4+2:l4+4], req[l4:l4+2])
	}
	if f.Proto == probe.STAMP { // RFC 8762 §4.3.1
		p := b[l4+8:]
		q := req[l4+8:]
		be.PutUint64(p[4:], 0x1122334455667788)
		be.PutUint16(p[12:], 0x8105)
		be.PutUint64(p[16:], 0x1122334400000000)
		copy(p[24:28], q[0:4])
		copy(p[28:36], q[4:12])
		copy(p[36:38], q[12:14])
		p[40] = 63
	}
	correct(b, f.Proto, v6)
	return b
}

// sumAt is where a frame's segment has its checksum.
func sumAt(p probe.Proto, v6 bool) int {
	if p == probe.ICMP {
		return l4(v6) + 2
	}
	return l4(v6) + 6
}

// correct sets the checksums of a frame.
func correct(b []byte, p probe.Proto, v6 bool) {
	next, at := byte(17), sumAt(p, v6)
	if p == probe.ICMP {
		next = map[bool]byte{false: 1, true: 58}[v6]
	}
	if !v6 {
		b[24], b[25] = 0, 0
		be.PutUint16(b[24:], ^oracle.Sum(b[14:34]))
	}
	b[at], b[at+1] = 0, 0
	s := ^l4sum(b, v6, next)
	if s == 0 && next == 17 {
		s = 0xffff
	}
	be.PutUint16(b[at:], s)
}

type kind struct {
	proto probe.Proto
	v6    bool
	size  int
}

func kinds() (all []kind) {
	for _, p := range []probe.Proto{probe.ICMP, probe.UDP, probe.STAMP} {
		for _, v6 := range []bool{false, true} {
			for _, more := range []int{0, 1, 2, 3, 4, 7, 8, 38} {
				all = append(all, kind{p, v6, probe.MinSize(p, v6) + more})
			}
			all = append(all, kind{p, v6, 1514}, kind{p, v6, 9014})
		}
	}
	return all
}

func (k kind) codec(t testing.TB) (probe.Flow, *probe.Codec) {
	t.Helper()
	f := flow(k.proto, k.v6, k.size)
	return f, must.Get(probe.New(f))(t)
}

func (k kind) String() string { return fmt.Sprintf("%v/v6=%t/%d", k.proto, k.v6, k.size) }

// verdict fails the test unless a frame has the verdict, and the wrong field, if that is not None.
func verdict(t *testing.T, what any, c *probe.Codec, frame []byte, want probe.Verdict,
	field probe.Field) (r probe.Reply) {
	t.Helper()
	if v := c.Check(frame, &r); v != want || field != probe.None && r.Field != field {
		t.Fatalf("%v: %v %v, want %v %v", what, v, r.Field, want, field)
	}
	return r
}

func TestRequestsAreValid(t *testing.T) {
	for _, k := range kinds() {
		_, c := k.codec(t)
		for _, seq := range []uint32{0, 1, 0xffff, 0x10000, 0xffffffff} {
			b := c.Build(seq, 42)
			next := b[23]
			if k.v6 {
				next = b[20]
			} else if oracle.Sum(b[14:34]) != 0xffff {
				t.Errorf("%v: IP checksum %x", k, oracle.Sum(b[14:34]))
			}
			if got := l4sum(b, k.v6, next); got != 0xffff || len(b) != k.size {
				t.Errorf("%v: probe %d of %d bytes sums to %#x", k, seq, len(b), got)
			}
		}
	}
}

func TestTrafficClassOfProbe(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		f := flow(probe.UDP, v6, 100)
		f.TOS = 0xB9
		b := must.Get(probe.New(f))(t).Build(1, 42)
		want := map[bool][]byte{false: {0x45, 0xB9, 0, 86}, true: {0x6B, 0x90, 0, 0, 0, 46, 17}}[v6]
		check.Same(t, b[14:14+len(want)], want, "% x")
	}
}

func TestGoodReplies(t *testing.T) {
	for _, k := range kinds() {
		f, c := k.codec(t)
		for _, seq := range []uint32{0, 1, 0xffff, 0x10000, 0xffffffff} {
			reply := answer(f, c.Build(seq, 42))
			c.Build(seq+1, 43) // a Codec keeps no state of an earlier probe
			r := verdict(t, k, c, reply, probe.Good, probe.None)
			if !r.HasSeq || r.Seq != seq {
				t.Fatalf("%v: seq %d instead of %d", k, r.Seq, seq)
			}
			if k.proto == probe.STAMP && (r.Stamped.T1 != 42 || r.Stamped.T3 != 0x1122334455667788 ||
				r.Stamped.Seq != seq || r.Stamped.TTL != 63) {
				t.Fatalf("%v: %+v", k, r.Stamped)
			}
		}
	}
}

// Each byte of a reply is changed to each other value. Only the fields that a network may choose, and which no checksum
// covers, may pass: traffic class, flow label and hop limit of IPv6.
func TestEveryWrongByteIsFound(t *testing.T) {
	for _, k := range kinds() {
		if k.size > 200 {
			continue
		}
		f, c := k.codec(t)
		good := answer(f, c.Build(7, 42))
		free := func(i int, x byte) bool {
			return k.v6 && (i == 14 && x>>4 == good[14]>>4 || i > 14 && i < 18 || i == 21 && x != 0)
		}
		b := make([]byte, len(good))
		for i := range good {
			for x := range 256 {
				if byte(x) == good[i] {
					continue
				}
				copy(b, good)
				b[i] = byte(x)
				var r probe.Reply
				switch v := c.Check(b, &r); {
				case free(i, byte(x)):
					if v != probe.Good {
						t.Fatalf("%v: byte %d = %#x: %v %v, though the network may choose it", k, i, x, v, r.Field)
					}
				case v != probe.Corrupt || r.Field == probe.None:
					t.Fatalf("%v: byte %d = %#x instead of %#x passes as %v", k, i, x, good[i], v)
				}
			}
		}
		for n := range good { // also every truncation, and additional bytes
			var r probe.Reply
			if v := c.Check(good[:n], &r); v != probe.Corrupt && v != probe.Foreign {
				t.Fatalf("%v: %d of %d bytes pass as %v", k, n, len(good), v)
			}
		}
		verdict(t, k, c, append(good, make([]byte, 12)...), probe.Good, probe.None) // a trailer
	}
}

// A reply with a correct checksum but the payload of another probe is corrupt.
func TestPayloadOfAnotherProbe(t *testing.T) {
	for _, k := range []kind{{probe.ICMP, false, 98}, {probe.UDP, true, 128}} {
		f, c := k.codec(t)
		l4 := l4(k.v6)
		other := bytes.Clone(c.Build(8, 0))
		req := bytes.Clone(c.Build(7, 0))
		copy(req[l4+16:], other[l4+16:])
		verdict(t, k, c, answer(f, req), probe.Corrupt, probe.Payload)
	}
}

func TestUnsummed(t *testing.T) {
	for _, k := range kinds() {
		if k.proto == probe.ICMP {
			continue
		}
		f, c := k.codec(t)
		b := answer(f, c.Build(7, 42))
		l4 := l4(k.v6)
		be.PutUint16(b[l4+6:], oracle.Sum(pseudo(b, k.v6, 17, len(b)-l4))) // CHECKSUM_PARTIAL as seen on a veth pair
		verdict(t, k, c, b, probe.Unsummed, probe.None)
		// if there is a pattern: without pattern and checksum, a wrong sequence number cannot be detected
		if k.proto == probe.UDP && len(b) > l4+16 {
			b[len(b)-1] ^= 1
			verdict(t, k, c, b, probe.Corrupt, probe.Payload)
			b[len(b)-1] ^= 1
		}
		b[l4+6], b[l4+7] = 0, 0
		want := probe.Unsummed // RFC 768
		if k.v6 {
			want = probe.Corrupt // RFC 8200 §8.1
		}
		verdict(t, k, c, b, want, probe.None)
	}
}

func TestForeign(t *testing.T) {
	f := flow(probe.UDP, false, 100)
	c, _ := probe.New(f)
	icmp := flow(probe.ICMP, false, 100)
	icmp.Run++
	other := f
	other.SrcPort, other.Run = 50001, 1
	for name, g := range map[string]probe.Flow{"ping of the same host": icmp, "another port": other} {
		d, _ := probe.New(g)
		b := answer(g, d.Build(3, 0))
		if g.Proto == probe.UDP {
			b = b[:90] // if both a field and the length differ, it is another flow
		}
		verdict(t, name, c, b, probe.Foreign, probe.None)
	}
	for n := range 100 {
		verdict(t, n, c, make([]byte, n), probe.Foreign, probe.None)
	}
}

func TestRefused(t *testing.T) {
	for _, k := range []kind{{probe.UDP, false, 100}, {probe.ICMP, false, 100}, {probe.UDP, true, 100},
		{probe.STAMP, true, 150}} {
		f, c := k.codec(t)
		l4, kind, code := l4(k.v6), byte(3), byte(3)
		if k.v6 {
			kind, code = 1, 4
		}
		b := refusal(f, c.Build(1, 0), kind, code)
		r := verdict(t, k, c, b, probe.Refused, probe.None)
		check.Equal(t, r.Code, uint16(kind)<<8|uint16(code), "refused with %#x")
		errors := map[byte]bool{3: true, 11: true, 12: true} // of RFC 792, except for source quench and redirect
		if k.v6 {
			errors = map[byte]bool{1: true, 2: true, 3: true, 4: true} // of RFC 4443
		}
		for kind := range byte(20) {
			of := refusal(f, c.Build(1, 0), kind, 0)
			if v := c.Check(of, &r); (v == probe.Refused) != errors[kind] {
				t.Errorf("%v: ICMP of type %d is %v", k, kind, v)
			}
		}
		b[l4+8+12] ^= 0xff // quotes another process's packet
		if k.v6 {
			b[l4+8+8] ^= 0xff
		}
		if v := c.Check(b, &r); v == probe.Refused {
			t.Errorf("%v: an error about another packet counts as ours", k)
		}
	}
}

// Only a reply with both ECN bits has the congestion mark.
func TestCongestionMark(t *testing.T) {
	for _, k := range []kind{{probe.UDP, false, 100}, {probe.UDP, true, 100}} {
		f, c := k.codec(t)
		for _, class := range []byte{0, 1, 2, 3, 46<<2 | 2, 46<<2 | 3} {
			b := answer(f, c.Build(1, 0))
			if b[15] = class; k.v6 {
				b[14], b[15] = 6<<4|class>>4, class<<4
			}
			correct(b, k.proto, k.v6)
			check.Equal(t, verdict(t, k, c, b, probe.Good, probe.None).CE, class&3 == 3,
				fmt.Sprintf("%v, class %#x: %%t", k, class))
		}
	}
}

// A payload that is like a PTP message starts with the type 0, Sync, and the version 2.
func TestLikePTP(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		f := flow(probe.UDP, v6, probe.MinPTPSize(v6))
		f.Run = 0xffffffff
		f.LikePTP()
		b := must.Get(probe.New(f))(t).Build(1, 0)[l4(v6)+8:]
		if len(b) != 34 || b[0] != 0xf0 || b[1] != 0xf2 {
			t.Errorf("a payload of %d bytes, %x", len(b), b)
		}
	}
}

// What is left of a STAMP probe behind its TLVs is a padding TLV, or nothing.
func TestPaddingNeedsRoom(t *testing.T) {
	f := flow(probe.STAMP, false, 0)
	f.Test.Ask = []probe.Ask{probe.AskTiming()}
	low := f.Size + f.Test.Extra()
	for more, good := range []bool{true, false, false, false, true, true} {
		f.Size = low + more
		if _, err := probe.New(f); good != (err == nil) {
			t.Errorf("%d bytes for padding: %v", more, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		proto probe.Proto
		v6    bool
		min   int
	}{{probe.ICMP, false, 60}, {probe.UDP, false, 60}, {probe.ICMP, true, 70}, {probe.UDP, true, 70},
		{probe.STAMP, false, 86}, {probe.STAMP, true, 106}} {
		check.Equal(t, probe.MinSize(c.proto, c.v6), c.min, fmt.Sprint(c.proto)+": %d bytes")
		for size, ok := range map[int]bool{c.min - 1: false, c.min: true, 1514: true, 1515: false} {
			if err := probe.CheckSize(c.proto, c.v6, size, 0, 1500); (err == nil) != ok {
				t.Errorf("%v, v6 %t, size %d: %v", c.proto, c.v6, size, err)
			}
		}
	}
}

func TestNoAllocation(t *testing.T) {
	for _, k := range []kind{{probe.ICMP, false, 98}, {probe.UDP, true, 1514}, {probe.STAMP, false, 150}} {
		f, c := k.codec(t)
		reply := answer(f, c.Build(7, 42))
		var r probe.Reply
		if n := testing.AllocsPerRun(100, func() { c.Build(7, 42); c.Check(reply, &r) }); n != 0 {
			t.Errorf("%v: %v allocations", k, n)
		}
	}
}

// Whatever arrives, Check does not crash, and does not accept a frame that differs from the reply in a fixed byte.
func FuzzCheck(f *testing.F) {
	for i, k := range kinds() {
		fl, c := k.codec(f)
		f.Add(i, answer(fl, c.Build(7, 42)))
	}
	f.Fuzz(func(t *testing.T, i int, b []byte) {
		all := kinds()
		k := all[uint(i)%uint(len(all))]
		fl, c := k.codec(t)
		var r probe.Reply
		switch v := c.Check(b, &r); v {
		case probe.Good, probe.Unsummed:
			want := answer(fl, c.Build(r.Seq, r.Stamped.T1))
			l4 := l4(k.v6)
			if len(b) != len(want) || string(b[:12]) != string(want[:12]) ||
				k.proto == probe.UDP && string(b[l4+8:]) != string(want[l4+8:]) || k.proto == probe.ICMP &&
				string(b[l4+4:]) != string(want[l4+4:]) {
				t.Fatalf("%v: %x passes for %x", k, b, want)
			}
		}
	})
}

// Each 16-bit word of a reply is changed and the checksums corrected: the error must be found without a checksum. Only
// fields that a network or a host may choose may change: TOS, identification, DF and hop limit.
func TestEveryWrongWordIsFound(t *testing.T) {
	for _, k := range []kind{{probe.ICMP, false, 98}, {probe.ICMP, true, 98}, {probe.UDP, false, 99},
		{probe.UDP, true, 99}} {
		f, c := k.codec(t)
		good := answer(f, c.Build(7, 42))
		free := map[int]bool{14: true, 18: true, 22: true}
		if k.v6 {
			free = map[int]bool{14: true, 16: true, 20: true}
		}
		for i := 0; i+1 < len(good); i += 2 {
			if i == 24 && !k.v6 || i == sumAt(k.proto, k.v6) { // checksums
				continue
			}
			b := bytes.Clone(good)
			b[i] ^= 0x01
			b[i+1] ^= 0x10
			if free[i] { // the other half of the word is fixed
				b = bytes.Clone(good)
				b[map[int]int{14: 15, 16: 16, 18: 18, 20: 21, 22: 22}[i]] ^= 0x10
			}
			correct(b, k.proto, k.v6)
			var r probe.Reply
			v := c.Check(b, &r)
			if free[i] != (v == probe.Good) || !free[i] && v != probe.Corrupt && v != probe.Foreign ||
				r.Field == probe.L4Checksum || r.Field == probe.IPChecksum {
				t.Errorf("%v: word at %d: %v %v", k, i, v, r.Field)
			}
		}
	}
}
