package fastpath

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/oracle"
)

var (
	ourMAC, theirMAC           = corpus.OurMAC, corpus.TheirMAC
	our4, their4, our6, their6 = corpus.Our4, corpus.Their4, corpus.Our6, corpus.Their6
	eth, pad, ip4, echo, udp   = corpus.Eth, corpus.Pad, corpus.IPv4, corpus.Echo, corpus.UDP
	icmp4, icmp6               = corpus.ICMPv4, corpus.ICMPv6
	solicit, testPacket        = corpus.Solicit, corpus.TestPacket
)

const clockNTP = 0xe8d4_a510_8000_0000 // timestamp of every test packet while the rate is 0

func config(m Mode) Config {
	c := Config{
		Mode:       m,
		MAC:        ourMAC,
		Addresses:  slices.Clone(corpus.Addresses),
		UDPPorts:   slices.Clone(corpus.UDPPorts),
		STAMPPorts: slices.Clone(corpus.STAMPPorts),
		Clock:      new(atomic.Pointer[Clock]),

		ChecksumBytes: 100, // some of the frames are longer
	}
	c.Clock.Store(&Clock{NTP: clockNTP, ErrorEstimate: ErrorEstimate(true, 1e-6)})
	return c
}

func responder(t testing.TB, c Config) *Responder {
	t.Helper()
	return must.Get(New(c))(t)
}

func naiveSum(parts ...[]byte) uint16 { return oracle.Sum(slices.Concat(parts...)) }

func l4sum(src, dst []byte, protocol byte, seg []byte) uint16 {
	return oracle.PseudoSum(slices.Concat(src, dst), protocol, seg)
}

func expected(c *Config, f []byte) []byte { return rules(c).Answer(f, nil) }

func rules(c *Config) *oracle.Rules {
	f := &c.Reflector
	return &oracle.Rules{
		Open: c.Mode == Open, MAC: c.MAC, Addresses: c.Addresses, UDPPorts: c.UDPPorts, STAMPPorts: c.STAMPPorts,
		VLANs:         c.VLANs,
		ChecksumBytes: c.ChecksumBytes, STAMPBase: c.STAMPBase, Time: clockNTP,
		ErrorEstimate: ErrorEstimate(true, 1e-6),
		ServicePorts:  servicePorts[:],
		Reflector: oracle.Reflector{Stateful: f.Sessions > 0, AuthPorts: f.AuthPorts, Key: f.Key, TLVs: f.TLVs,
			HideLocation: f.HideLocation, DSCPs: f.DSCPs,
			Timing: f.Timing},
	}
}

type request struct {
	name  string
	frame []byte
	kind  Verdict
}

func requests(tags int) (all []request) {
	for _, q := range corpus.Requests(tags) {
		kind := Verdict(slices.Index(verdictNames[:], q.Kind))
		all = append(all, request{q.Name, q.Frame, kind})
	}
	return all
}

// hosts returns the addresses of the client and of the responder.
func hosts(v6 bool) (from, to netip.Addr) {
	if v6 {
		return their6, our6
	}
	return their4, our4
}

// toUs is a frame to the responder with a packet of either IP version.
func toUs(tags int, packet []byte) []byte {
	return eth(ourMAC, theirMAC, tags, map[byte]uint16{4: 0x0800, 6: 0x86dd}[packet[0]>>4], packet)
}

// fixHeader corrects the checksum of the IPv4 header at the start of b.
func fixHeader(b []byte) {
	b[10], b[11] = 0, 0
	be.PutUint16(b[10:], ^naiveSum(b[:20]))
}

// inBuffer returns a copy of f at the start of a receive buffer with old data.
func inBuffer(f []byte) []byte {
	b := make([]byte, max(len(f), MinBuffer)+64)
	for i := range b {
		b[i] = 0xa5
	}
	return b[:copy(b, f)]
}
