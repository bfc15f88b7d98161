package fastpath

import (
	"net/netip"
	"sync/atomic"

	"github.com/rebound-nic/rebound/polling"
)

// Mode says how much of a request is checked before it is answered.
type Mode uint8

const (
	Strict Mode = iota // every guard

	// Open answers every host that asks on the wire: MACs, IP addresses, checksums and the source port are not looked at, the hop
	// limit stays, and nothing is rationed. Kind, lengths, UDP ports and VLANs still have to be right, and ARP and ND are as
	// in Strict. It is for a wire you own: a reply to a broadcast has a broadcast source, and two responders can loop.
	Open
)

// Config is what a Responder answers. It does not change while a Responder is in use.
type Config struct {
	Mode      Mode
	MAC       [6]byte
	Addresses []netip.Prefix // our addresses, each with its subnet (/32 or /128 where that is unknown)
	UDPPorts  []uint16       // answered by echo

	// STAMPPorts are UDP ports answered as a stateless STAMP or TWAMP-Light reflector. They need Clock.
	STAMPPorts []uint16
	// Clock holds how cycles relate to time. It is loaded for each test packet and may be replaced at any time.
	Clock *atomic.Pointer[Clock]

	// VLANs are the VLAN identifiers (0 to 4094) whose frames are answered, ARP and ND included; 0 stands for frames
	// outside any VLAN: untagged, or with a tag for the priority alone (IEEE 802.1Q §6.9.1). Under two tags both must be
	// named. nil is any.
	VLANs []uint16

	// Rate is how many echo requests, datagrams and test packets a second Strict answers to one source address, and Burst
	// how many at once after a pause. 0 is no limit. It bounds a loop with an echo service that renews its TTL, which no
	// look at a single frame can tell from a client. Addresses share 4096 counters of fixed size, so that two sources may
	// share a limit, and each Responder counts for itself.
	Rate, Burst    uint64
	TicksPerSecond uint64 // of polling.TSC, as measured: needed with Rate, which goes by Loop's time

	// ChecksumBytes is the longest IP packet, in bytes, of which Strict verifies the ICMP or UDP checksum before it answers
	// (RFC 1122 §3.2.2 and §4.1.3.4, RFC 4443 §2.1): DefaultChecksumBytes for all, 0 for none. A longer one that is wrong is answered
	// with a reply that is wrong in the same way.
	ChecksumBytes int

	// STAMPBase has test packets of 14 to 40 bytes answered by STAMP's base packet of 44 (RFC 8762 §4.6), as TWAMP-Light
	// senders that do not pad expect it. It makes replies that are longer than their requests, by 30 bytes at most.
	STAMPBase bool

	// Reflector is what is answered to test packets beyond that.
	Reflector Reflector

	// PartialChecksums says that frames may come from a kernel on this machine (over veth, say), whose UDP checksums
	// hold only the pseudo-header's sum and wait for a device to complete them. A reply is completed here instead,
	// otherwise the peer's kernel would drop it. The price: a wrong checksum that equals that sum, one in 65536, is
	// fixed, not kept.
	PartialChecksums bool
}

// Defaults for a Config of a live network.
const (
	DefaultRate          = 2_000_000 // four times what a bench reaches on a socket
	DefaultBurst         = 1 << 16   // what waits after a pause of 30 ms at that rate
	DefaultChecksumBytes = 1<<16 - 1 // every packet
)

// Responder answers frames for one queue. One goroutine uses it at a time; its counters and Loop may be read by others.
type Responder struct {
	// What the leaves read, together and first: a field that is within a page of the start needs no check for nil.
	mac           uint64 // as they load it: shifted up by two bytes; all ones where untagged frames are not answered
	macTagged     uint64 // the same of frames with a tag
	mul6          uint64 // the multipliers that give each address its own slot
	mul4          uint32
	open, partial bool                             // open: the leaves skip what Open does not look at
	skip          struct{ macs, hosts, hops bool } // open for Reply, which would keep a field that it reads often in a register
	checksumBytes int
	stats         [Verdicts]polling.Counter
	limit         limiter
	own4          [slots4]uint32 // our addresses as loaded, each in its slot
	not4          [slots4]uint32 // the same and our subnets' broadcasts: no sources
	own6          [slots6]ip6
	echo          portSet // indexed by ports as loaded
	service       portSet // source ports that are not answered

	reflects   portSet // STAMP ports that Reply answers
	stampMost  int     // the longest test packet that it answers
	left       int     // of a long packet, for long
	tail       uint64  // its sum, from long
	unverified int     // from so many bytes behind a segment of eight on no checksum has to be verified, by Config.ChecksumBytes
	stamps     int     // test packets that wait for the time
	stamp      [maxStamps]stamped

	// Verified says that the device has found the UDP checksum of the frame that Reply gets next to be right. A driver that knows sets it for
	// each frame of LongFrame bytes and more; the payload of such a datagram is not read then. It is not looked at for shorter ones, nor for ICMP.
	Verified bool

	Loop polling.Loop

	mode       Mode
	macAddress [6]byte
	stampPorts []uint16
	stampLeast int // bytes of a test packet
	clock      *atomic.Pointer[Clock]

	sessions           *sessions // nil of a stateless reflector
	sealed             *guarded
	auth               []uint16
	seal               *seal // nil without a key
	tlvs, hideLocation bool
	dscps              uint64

	vlans [1 << 12 / 64]uint64
}

// guarded is what authenticated packets have to themselves, so that nothing without a key can exhaust it.
type guarded struct {
	sessions *sessions // nil of a stateless reflector
	limit    limiter
}

// ip6 is an IPv6 address as the leaves load it.
type ip6 struct{ hi, lo uint64 }

// portSet is a set of UDP ports, each as a little-endian load sees it.
type portSet [1 << 16 / 64]uint64

func (s *portSet) add(port uint16)      { p := port<<8 | port>>8; s[p>>6] |= 1 << (p & 63) }
func (s *portSet) has(port uint16) bool { p := port<<8 | port>>8; return s[p>>6]>>(p&63)&1 != 0 }

// systemPorts are the UDP ports below it: services', never a client's (RFC 6335 §6). Whatever listens there may
// answer a datagram that it did not request, so that a reply to it would be answered in turn, continuously
// (CVE-2024-2169), or be half of a reflection attack. STAMP's port 862 is one of them, and 0 is no port to reply to.
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
