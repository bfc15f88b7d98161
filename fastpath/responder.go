package fastpath

import (
	"math"
	"net/netip"
	"sync/atomic"

	"github.com/rebound-nic/rebound/polling"
)

// Mode determines how much of a request is checked before it is answered.
type Mode uint8

const (
	Strict Mode = iota // every guard

	// Open answers every host on the wire: MACs, IP addresses, checksums and the source port are not checked, the hop
	// limit is unchanged, and nothing is rate-limited. Kind, lengths, UDP ports and VLANs still have to be right, and
	// ARP and ND are as in Strict. It is for a wire that you own: a reply to a broadcast has a broadcast source, and
	// two responders can loop.
	Open
)

// Config defines which requests a Responder answers. It does not change while a Responder is in use.
type Config struct {
	Mode      Mode
	MAC       [6]byte
	Addresses []netip.Prefix // our addresses, each with its subnet (/32 or /128 if that is unknown)
	UDPPorts  []uint16       // answered by echo

	// STAMPPorts are UDP ports answered as a stateless STAMP or TWAMP-Light reflector. They need Clock.
	STAMPPorts []uint16
	// Clock converts ticks to time. It is loaded for each test packet and may be replaced at any time.
	Clock *atomic.Pointer[Clock]

	// VLANs are the VLAN identifiers (0 to 4094) whose frames are answered, ARP and ND included; 0 stands for frames
	// outside any VLAN: untagged, or with a priority tag (IEEE 802.1Q §6.9.1). With two tags, both must be listed. nil
	// means any.
	VLANs []uint16

	// Rate is how many echo requests, datagrams and test packets per second Strict answers for one source address, and
	// Burst how many at once after a pause. 0 means no limit. Addresses share 4096 counters of fixed size,
	// so two sources may share a limit, and each Responder counts separately.
	Rate, Burst uint64

	// Loop is how many equal datagrams (by UDP checksum and length) from one source address Strict answers by echo
	// within 10 ms; it refuses more of them as a loop with an echo service. 0 means no limit. See repeats.
	Loop uint32

	TicksPerSecond uint64 // of polling.TSC, as measured; required with Rate and Loop, which use Responder.Loop's time

	// ChecksumBytes is the longest IP packet, in bytes, of which Strict verifies the ICMP or UDP checksum before it
	// answers (RFC 1122 §3.2.2 and §4.1.3.4, RFC 4443 §2.1): DefaultChecksumBytes for all, 0 for none. A longer packet
	// with a wrong checksum gets a reply that is wrong in the same way.
	ChecksumBytes int

	// STAMPBase makes test packets of 14 to 40 bytes get STAMP's base packet of 44 bytes as reply (RFC 8762 §4.6), as
	// TWAMP-Light senders without padding expect. Such replies are longer than their requests, by at most 30 bytes.
	STAMPBase bool

	// Reflector configures further features for test packets.
	Reflector Reflector

	// PartialChecksums means that frames may come from a kernel on this machine (over veth, for example), whose UDP
	// checksums only contain the pseudo-header's sum and would be completed by a device. The reply's checksum is then
	// completed here, because the peer's kernel would drop it otherwise. The price: a wrong checksum that equals that
	// sum, one in 65536, is repaired rather than kept.
	PartialChecksums bool
}

// Defaults for a Config of a live network.
const (
	DefaultRate  = 2_000_000 // four times the rate that a bench reaches on a socket
	DefaultBurst = 1 << 16   // the backlog after a pause of 30 ms at that rate
	DefaultLoop  = 64        // the rate of constant data that is never refused is 64 in 10 ms: 6,400 a second
)

// DefaultChecksumBytes is the greatest length of an IP packet.
const DefaultChecksumBytes = math.MaxUint16

// Responder answers frames for one queue. One goroutine uses it at a time; its counters and Loop may be read by others.
type Responder struct {
	// The fields that the leaves read, together and first: a field within a page of the start needs no nil check.
	mac           uint64 // as loaded: shifted left by two bytes; all ones if untagged frames are not answered
	macTagged     uint64 // the same for tagged frames
	mul6          uint64 // the multipliers that give each address a unique slot
	mul4          uint32
	open, partial bool // open: the leaves skip the checks that Open does not make
	// open, in a form for Reply, which would keep a frequently read field in a register
	skip          struct{ macs, hosts, hops bool }
	checksumBytes int
	stats         [Verdicts]polling.Counter
	limit         limiter
	repeats       repeats
	own4          [slots4]uint32 // our addresses as loaded, each in its slot
	not4          [slots4]uint32 // the same, and our subnets' broadcast addresses: invalid as sources
	own6          [slots6]ip6
	echo          portSet // indexed by ports as loaded
	service       portSet // source ports that are not answered

	reflects  portSet // STAMP ports that Reply answers
	stampMost int     // the longest test packet that Reply answers
	left      int     // of a long packet, for long: bytes to sum
	tail      uint64  // of a long packet, from long: its sum
	// with this many bytes or more after a segment's first eight, Config.ChecksumBytes requires no verification
	unverified int
	stamps     int // test packets waiting for their timestamp
	stamp      [maxStamps]stamped

	// Verified means that the device has found the UDP checksum of the next frame for Reply to be right. A driver with
	// this information sets it for each frame of LongFrame bytes or more; the payload of such a datagram is then not
	// read. It has no effect for shorter frames and for ICMP.
	Verified bool

	Loop polling.Loop

	mode       Mode
	macAddress [6]byte
	stampPorts []uint16
	stampLeast int // bytes of a test packet
	clock      *atomic.Pointer[Clock]

	sessions           *sessions // nil for a stateless reflector
	sealed             *guarded
	auth               []uint16
	seal               *seal // nil without a key
	tlvs, hideLocation bool
	dscps              uint64
	timing             timing

	slow uint64 // see Slowed

	vlans [1 << 12 / 64]uint64
}

// SetMAC changes Config.MAC. The Responder must not be in use.
func (r *Responder) SetMAC(mac [6]byte) {
	m := le.Uint64(append([]byte{0, 0}, mac[:]...))
	for _, p := range []*uint64{&r.mac, &r.macTagged} {
		if *p != ^uint64(0) {
			*p = m
		}
	}
	r.macAddress = mac
}

// guarded has the tables that only authenticated packets use, so that senders without a key cannot exhaust them.
type guarded struct {
	sessions *sessions // nil for a stateless reflector
	limit    limiter
}

// ip6 is an IPv6 address as the leaves load it.
type ip6 struct{ hi, lo uint64 }

// portSet is a set of UDP ports, each in the format of a little-endian load.
type portSet [1 << 16 / 64]uint64

func (s *portSet) add(port uint16)      { p := port<<8 | port>>8; s[p>>6] |= 1 << (p & 63) }
func (s *portSet) has(port uint16) bool { p := port<<8 | port>>8; return s[p>>6]>>(p&63)&1 != 0 }

// systemPorts is the limit below which UDP ports belong to services, never to a client (RFC 6335 §6). A service there
// may answer a datagram that it did not request, so that a reply to it would be answered in turn, continuously
// (CVE-2024-2169), or would be half of a reflection attack. STAMP's port 862 is one of them, and port 0 cannot be
// replied to.
const systemPorts = 1024

// servicePorts are the ports above where such services are common.
var servicePorts = [...]uint16{
	1434,  // SQL server resolution
	1900,  // SSDP
	3702,  // WS-Discovery
	5353,  // mDNS
	5355,  // LLMNR
	11211, // memcached
}
