package probe_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

var key = []byte("0123456789abcdef0123456789abcdef")

func digest(parts ...[]byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(slices.Concat(parts...))
	return m.Sum(nil)[:16]
}

func asks(t testing.TB, list ...string) (all []probe.Ask) {
	t.Helper()
	for _, text := range list {
		all = append(all, must.Get(probe.ParseAsk(text))(t))
	}
	return all
}

func sealedFlow(t testing.TB, authenticated bool, padding int, list ...string) probe.Flow {
	f := flow(probe.STAMP, false, 0)
	f.Layer = probe.Datagram
	f.Test = probe.TestPacket{SSID: 0x1234, Key: key, Authenticated: authenticated, Ask: asks(t, list...)}
	f.Size += f.Test.Extra() + padding
	return f
}

// An authenticated probe with TLVs, field by field (RFC 8762 §4.2.2, RFC 8972 §3, §4).
func TestSealedProbe(t *testing.T) {
	c := must.Get(probe.New(sealedFlow(t, true, 6, "cos:46", "direct")))(t)
	c.SetErrorEstimate(0x8587)
	c.Build(41, 0)
	got := c.Build(42, 0xe8d4a50f11223344)
	want := slices.Concat(
		[]byte{0, 0, 0, 42}, make([]byte, 12), // Sequence Number, MBZ
		[]byte{0xe8, 0xd4, 0xa5, 0x0f, 0x11, 0x22, 0x33, 0x44}, []byte{0x85, 0x87}, []byte{0x12, 0x34},
		make([]byte, 68), // Timestamp, Error Estimate, SSID, MBZ
	)
	want = append(want, digest(want)...)
	tlvs := slices.Concat(
		[]byte{0x80, 4, 0, 4, 46 << 2, 0, 0, 0},             // Class of Service: U, DSCP1
		[]byte{0x80, 5, 0, 12, 0, 0, 0, 2}, make([]byte, 8), // Direct Measurement: the second probe
		[]byte{0x80, 1, 0, 2}, got[112+8+16+4:][:2]) // Extra Padding, with any content
	want = slices.Concat(want, tlvs, []byte{0x80, 8, 0, 16}, digest([]byte{0, 0, 0, 42}, tlvs))
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

// reflectSealed answers a probe as a stateless reflector with TLV support does, in either mode, without any code of the
// package.
func reflectSealed(f probe.Flow, b []byte) []byte {
	r := bytes.Clone(b)
	base := 44
	if f.Test.Authenticated {
		base = 112
		clear(r[26+2 : 96])
		copy(r[48:], b[:4])
		copy(r[64:], b[16:26])
		be.PutUint64(r[16:], 0x1122334455667788)
		be.PutUint64(r[32:], 0x1122334400000000)
		be.PutUint16(r[24:], 0x8105)
		r[80] = 63
		copy(r[96:], digest(r[:96]))
	} else {
		be.PutUint64(r[4:], 0x1122334455667788)
		be.PutUint16(r[12:], 0x8105)
		be.PutUint64(r[16:], 0x1122334400000000)
		copy(r[24:], b[:14])
		r[40] = 63
	}
	for at := base; at < len(r); at += 4 + int(be.Uint16(r[at+2:])) {
		if r[at] = 0; r[at+1] == 8 {
			copy(r[at+4:], digest(r[:4], r[base:at]))
		}
	}
	return r
}

// Every changed bit of a reply that an HMAC covers is detected: in an authenticated base, and in TLVs. Bytes after the
// base without an HMAC are compared, except for flags and answers.
func TestEveryForgedBitIsFound(t *testing.T) {
	for _, authenticated := range []bool{true, false} {
		f := sealedFlow(t, authenticated, 20, "time", "location", "hmac")
		c := must.Get(probe.New(f))(t)
		good := reflectSealed(f, c.Build(7, 42))
		var r probe.Reply
		if v := c.Check(good, &r); v != probe.Good || r.Stamped.Untrusted || len(r.Stamped.Answers) != 2 ||
			!r.Stamped.Answers[1].Usable() ||
			r.Stamped.SSID != 0x1234 || r.Stamped.T1 != 42 || r.Stamped.T3 != 0x1122334455667788 ||
			r.Stamped.TTL != 63 || r.Seq != 7 {
			t.Fatalf("%v %v %+v", v, r.Field, r)
		}
		from := 44 // the part that the HMAC TLV covers
		if authenticated {
			from = 0
		}
		for i := from; i < len(good); i++ {
			for bit := range 8 {
				if i == len(good)-20 && bit < 5 {
					continue // reserved flags of the HMAC TLV itself, which must be ignored
				}
				b := bytes.Clone(good)
				b[i] ^= 1 << bit
				v := c.Check(b, &r)
				if v == probe.Good && !r.Stamped.Untrusted {
					t.Errorf("authenticated %t: bit %d of byte %d passes", authenticated, bit, i)
				}
			}
		}
	}
}

// A flag in a reply determines which TLVs are used (RFC 8972 §4): U invalidates one TLV, M ends them, I discards all.
func TestFlagsOfReplies(t *testing.T) {
	f := sealedFlow(t, false, 0, "time", "cos:1", "direct")
	f.Test.Key = nil
	c := must.Get(probe.New(f))(t)
	good := reflectSealed(f, c.Build(7, 42))
	second := 44 + 8
	for flags, want := range map[byte]string{0: "true true true false", 0x80: "true false true false",
		0x40: "true false false false", 0x20: "true false true true"} {
		b := bytes.Clone(good)
		b[second] = flags
		r := verdict(t, flags, c, b, probe.Good, probe.None)
		a := r.Stamped.Answers
		check.Equal(t, fmt.Sprint(a[0].Usable(), a[1].Usable(), a[2].Usable(), r.Stamped.Untrusted), want,
			"usable and untrusted %s")
	}
}

func TestParseAsk(t *testing.T) {
	for text, want := range map[string]string{
		"cos": "want cos:DSCP", "cos:64": "0 to 63", "cos:x": "0 to 63", "time:1": "want time alone",
		"access:3:1": "ID 1 for a 3GPP", "access:1": "want access:ID:CODE",
		"access:1:256": "up to 255", "access:0:1": "ID 1", "ping": "want time, location, cos:DSCP", "": "want time",
		"padding": "want time",
	} {
		check.Fails(t, text, check.Err(probe.ParseAsk(text)), nil, want)
	}
	check.Fails(t, "3 bytes more", check.Err(probe.New(sealedFlow(t, true, 3, "time"))), nil,
		"leave 3 for a padding TLV")
	f := sealedFlow(t, true, 0)
	f.Test.Key = nil
	check.Fails(t, "no key", check.Err(probe.New(f)), nil, "HMACs need a key")
}

func TestSealedAllocatesNothing(t *testing.T) {
	f := sealedFlow(t, true, 40, "time", "followup")
	c := must.Get(probe.New(f))(t)
	reply := reflectSealed(f, c.Build(7, 42))
	var r probe.Reply
	if n := testing.AllocsPerRun(100, func() { c.Build(7, 42); c.Check(reply, &r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Whatever is received, Check does not crash, and does not accept a packet as authentic with a wrong HMAC.
func FuzzSealed(f *testing.F) {
	var codecs []*probe.Codec
	for _, authenticated := range []bool{true, false} {
		fl := sealedFlow(f, authenticated, 20, "time", "location", "hmac")
		c := must.Get(probe.New(fl))(f)
		codecs = append(codecs, c)
		f.Add(authenticated, reflectSealed(fl, c.Build(7, 42)))
	}
	f.Fuzz(func(t *testing.T, authenticated bool, b []byte) {
		i, base := 1, 44
		if authenticated {
			i, base = 0, 112
		}
		var r probe.Reply
		if codecs[i].Check(b, &r) != probe.Good {
			return
		}
		if authenticated && !hmac.Equal(b[96:112], digest(b[:96])) {
			t.Fatalf("%x passes", b)
		}
		if end := len(b) - 20; !r.Stamped.Untrusted && !hmac.Equal(b[end+4:], digest(b[:4], b[base:end])) {
			t.Fatalf("TLVs of %x pass", b)
		}
	})
}
