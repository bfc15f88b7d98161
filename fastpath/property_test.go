package fastpath

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/oracle"
)

// sameButZero reports whether two frames are equal except for zero's two forms in one checksum: two adjacent bytes.
func sameButZero(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	var at []int
	for i := range a {
		if a[i] != b[i] {
			at = append(at, i)
		}
	}
	if len(at) != 2 || at[1] != at[0]+1 || at[0]&1 != 0 {
		return false
	}
	x, y := be.Uint16(a[at[0]:]), be.Uint16(b[at[0]:])
	return min(x, y) == 0 && max(x, y) == 0xffff
}

func judge(c *Config, fast, slow *Responder, f []byte) error {
	return agree(expected(c, f), fast, slow, f)
}

func agree(want []byte, fast, slow *Responder, f []byte) error {
	for _, way := range []struct {
		name string
		r    *Responder
		do   func(*Responder, []byte) int
	}{{"snippet", fast, poll}, {"Slow", slow, slowly}} {
		g := inBuffer(f)
		before, judged := way.r.Stats(), way.r.Slowed()
		n := way.do(way.r, g)
		judged = way.r.Slowed() - judged
		after := way.r.Stats()
		var v Verdict
		counted := uint64(0)
		for i := range after {
			if d := after[i] - before[i]; d != 0 {
				counted += d
				v = Verdict(i)
			}
		}
		switch {
		case counted != 1:
			return fmt.Errorf("%s counted %d verdicts for\n%x", way.name, counted, f)
		case v.Answered() != (n != 0):
			return fmt.Errorf("%s returned %d and counted %s for %d bytes\n%x", way.name, n, v, len(f), f)
		case !bytes.Equal(g[max(n, len(g)):cap(g)], bytes.Repeat([]byte{0xa5}, cap(g)-max(n, len(g)))):
			return fmt.Errorf("%s wrote behind the frame\n%x", way.name, f)
		case n == 0 && !bytes.Equal(g, f):
			return fmt.Errorf("%s changed what it refused (%s)\n%x\n%x", way.name, v, f, g)
		case n == 0 && want != nil:
			return fmt.Errorf("%s refused (%s), the oracle answers\n%x\n%x", way.name, v, f, want)
		case n != 0 && want == nil:
			return fmt.Errorf("%s answered (%s), the oracle does not\n%x\n%x", way.name, v, f, g)
		case n != 0 && !bytes.Equal(g[:n], want) && !sameButZero(g[:n], want):
			return fmt.Errorf("%s answered (%s) otherwise than the oracle\n%x\n%x\n%x", way.name, v, f, g[:n], want)
		case n != 0 && way.r == fast && fast != slow && (judged != 0) != onlySlow(fast, f, v):
			return fmt.Errorf("Slow judged %d frames (%s) of which Reply answers some\n%x", judged, v, f)
		}
	}
	return nil
}

// onlySlow reports whether Reply leaves a frame that is answered with this verdict to Slow.
func onlySlow(r *Responder, f []byte, v Verdict) bool {
	l3 := 14
	if be.Uint16(f[12:]) == etherType8021Q {
		l3 += 4
	}
	p := f[l3:]
	if t := be.Uint16(f[l3-2:]); t != etherTypeIPv4 && t != etherTypeIPv6 || v == AnsweredND { // other tags, ARP
		return true
	}
	header, n, hosts := 20, int(be.Uint16(p[2:])), p[12:20]
	if p[0]>>4 == 6 {
		header, n, hosts = 40, 40+int(be.Uint16(p[4:])), p[8:40]
	}
	seg := p[header:n]
	data := len(seg) - 8
	right := true
	switch v {
	case AnsweredICMPv4:
		if be.Uint16(seg[2:]) == 0xf7ff { // its reply has the checksum 0
			return true
		}
		right = naiveSum(seg) == 0xffff
	case AnsweredICMPv6:
		right = oracle.PseudoSum(hosts, protocolICMPv6, seg) == 0xffff
	default:
		right = be.Uint16(seg[6:]) == 0 || oracle.PseudoSum(hosts, protocolUDP, seg) == 0xffff
	}
	switch {
	case len(p) > n && len(p) > 50: // a trailer
		return true
	case r.mode == Open && !r.vlan(0):
		return true
	case !right && (data < wideBytes || data < r.unverified):
		return true
	case v == AnsweredSTAMPv4, v == AnsweredSTAMPv6:
		return r.sessions != nil || slices.Contains(r.auth, be.Uint16(seg[2:])) || data < stampLength ||
			r.tlvs && data > stampBase
	}
	return false
}

func each(t *testing.T, do func(t *testing.T, c *Config, q request)) {
	for _, mode := range []Mode{Strict, Open} {
		for tags := range 3 {
			for _, q := range requests(tags) {
				t.Run(fmt.Sprintf("%s/%d tags/%s", []string{"strict", "open"}[mode], tags, q.name), func(t *testing.T) {
					c := config(mode)
					do(t, &c, q)
				})
			}
		}
	}
}

func TestReplies(t *testing.T) {
	each(t, func(t *testing.T, c *Config, q request) {
		fast, slow := responder(t, *c), responder(t, *c)
		must.OK(t, judge(c, fast, slow, q.frame))
		for _, r := range []*Responder{fast, slow} {
			if s := r.Stats(); s[q.kind] != 1 || s.Answered() != 1 || s.Refused() != 0 {
				t.Fatalf("counted %v, want one %s", s, q.kind)
			}
		}
		if want := expected(c, q.frame); want == nil {
			t.Fatal("the oracle does not answer")
		} else if !bytes.Equal(want, reply(t, c, q.frame)) {
			t.Fatal("zero in its other form") // a correct request gets exactly these bytes
		}
	})
}

func reply(t *testing.T, c *Config, f []byte) []byte {
	t.Helper()
	g := answers(responder(t, *c))(f)
	if g == nil {
		t.Fatal("no reply")
	}
	return g
}

// A reply is not a request, neither to us nor to a responder at the other end that answers for its addresses.
func TestReplyDrawsNoReply(t *testing.T) {
	each(t, func(t *testing.T, c *Config, q request) {
		g := reply(t, c, q.frame)
		check.Equal(t, poll(responder(t, *c), inBuffer(g)), 0, "we answer our own reply with %d bytes")
		check.Equal(t, poll(responder(t, peerOf(*c)), inBuffer(g)), 0, "a peer answers the reply with %d bytes")
	})
}

// peerOf is the configuration of a responder with the client's addresses.
func peerOf(c Config) Config {
	c.MAC, c.Addresses = theirMAC, []netip.Prefix{netip.PrefixFrom(their4, 24), netip.PrefixFrom(their6, 64)}
	return c
}

// gopacket, a third-party decoder, must decode every reply completely and find no wrong checksum.
func TestRepliesDecoded(t *testing.T) {
	each(t, func(t *testing.T, c *Config, q request) {
		p := gopacket.NewPacket(reply(t, c, q.frame), layers.LayerTypeEthernet, gopacket.Default)
		if e := p.ErrorLayer(); e != nil {
			t.Fatal(e.Error())
		}
		for _, l := range p.Layers() {
			if l, ok := l.(interface {
				SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
			}); ok {
				must.OK(t, l.SetNetworkLayerForChecksum(p.NetworkLayer()))
			}
		}
		err, bad := p.VerifyChecksums()
		if err != nil || len(bad) > 0 {
			t.Fatalf("checksums: %v %v\n%s", err, bad, p.Dump())
		}
		want := map[Verdict]gopacket.LayerType{
			AnsweredICMPv4: layers.LayerTypeICMPv4, AnsweredICMPv6: layers.LayerTypeICMPv6Echo,
			AnsweredARP:   layers.LayerTypeARP,
			AnsweredUDPv4: layers.LayerTypeUDP, AnsweredUDPv6: layers.LayerTypeUDP,
			AnsweredND:      layers.LayerTypeICMPv6NeighborAdvertisement,
			AnsweredSTAMPv4: layers.LayerTypeUDP, AnsweredSTAMPv6: layers.LayerTypeUDP,
		}[q.kind]
		if p.Layer(want) == nil {
			t.Fatalf("no %s layer\n%s", want, p.Dump())
		}
		tags := 0
		for _, l := range p.Layers() {
			if l.LayerType() == layers.LayerTypeDot1Q {
				tags++
			}
		}
		if !strings.Contains(t.Name(), fmt.Sprintf("/%d_tags/", tags)) {
			t.Fatalf("%d tags in the reply", tags)
		}
	})
}

func TestTruncations(t *testing.T) {
	each(t, func(t *testing.T, c *Config, q request) {
		fast, slow := responder(t, *c), responder(t, *c)
		for n := range len(q.frame) {
			must.OK(t, judge(c, fast, slow, q.frame[:n]))
		}
		if s := fast.Stats(); s.Answered()+s.Refused() != uint64(len(q.frame)) {
			t.Fatalf("%d frames, counted %v", len(q.frame), s)
		}
	})
}

func TestSingleByteMutations(t *testing.T) {
	step := needs.Cases(1, 51) // a divisor of 255
	each(t, func(t *testing.T, c *Config, q request) {
		fast, slow := responder(t, *c), responder(t, *c)
		f := bytes.Clone(q.frame)
		for i := range f {
			for d := 1; d < 256; d += step {
				f[i] = q.frame[i] + byte(d)
				if err := judge(c, fast, slow, f); err != nil {
					t.Fatalf("byte %d: %v", i, err)
				}
			}
			f[i] = q.frame[i]
		}
		if s := fast.Stats(); s.Answered()+s.Refused() != uint64(255/step*len(f)) {
			t.Fatalf("%d frames, counted %v", 255/step*len(f), s)
		}
	})
}

// A million frames with several changes each. proof/differential tests any number.
func TestRandomMutations(t *testing.T) {
	frames := needs.Cases(uint64(1_000_000), 100_000)
	for _, mode := range []Mode{Strict, Open} {
		m := corpus.NewMutator(3, uint64(mode))
		c := config(mode)
		fast, slow := responder(t, c), responder(t, c)
		for range frames / 2 {
			must.OK(t, judge(&c, fast, slow, m.Next()))
		}
		s := fast.Stats()
		if s.Answered()+s.Refused() != frames/2 {
			t.Fatalf("counted %v", s)
		}
		if testing.Short() {
			continue // too few frames for every rule
		}
		for v, n := range s { // every rule has been applied
			if Verdict(v) == RefusedAnnouncement {
				continue // too rare at one in a million
			}
			if open := mode == Open && slices.Contains(strictOnly, Verdict(v)); n == 0 != (open ||
				slices.Contains(never, Verdict(v))) {
				t.Errorf("mode %d: %d frames with verdict %s", mode, n, Verdict(v))
			}
		}
	}
}

// Rules that Open does not apply, and rules that require a separate Config.
var (
	strictOnly = []Verdict{RefusedHeaderChecksum, RefusedServicePort, RefusedHopLimit, RefusedChecksum}
	never      = []Verdict{RefusedVLAN, RefusedLoop, RefusedRate, AnsweredMessage, AnsweredSTAMPMessage, RefusedReply,
		RefusedSender, RefusedMessage,
		RefusedSTAMPHMAC, RefusedSTAMPSessions}
)
