package fastpath

import (
	"net/netip"
	"sync/atomic"

	"rebound/polling"
)

// Mode says how much of a request is checked before it is answered.
type Mode uint8

const (
	Strict Mode = iota // every guard; replies leave with hop limit 64

	// Open answers whoever asks on the wire: MACs, IP addresses, the IPv4 header checksum and the source port are not
	// looked at, and the hop limit stays. Kind, lengths and UDP ports still have to be right, and ARP and ND are as in
	// Strict. It is for a wire you own: a reply to a broadcast has a broadcast source, and two responders can loop.
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

	// PartialChecksums says that frames may come from a kernel on this machine (over veth, say), whose UDP checksums hold
	// only the pseudo-header's sum and wait for a device to complete them. A reply is completed here instead, else the
	// peer's kernel would drop it. The price: a wrong checksum that equals that sum, one in 65536, is mended, not kept.
	PartialChecksums bool
}

// Responder answers frames for one queue. One goroutine uses it at a time; its counters and Loop may be read by others.
type Responder struct {
	Loop polling.Loop

	// What the leaves read, together.
	mac           uint64 // as they load it: shifted up by two bytes
	mul6          uint64 // the multipliers that give each address a slot of its own
	mul4          uint32
	open, partial bool
	stats         Stats
	own4          [slots4]uint32 // our addresses as loaded, each in its slot
	not4          [slots4]uint32 // the same and our subnets' broadcasts: no sources
	own6          [slots6]ip6
	echo          portSet // indexed by ports as loaded
	service       portSet // source ports that are not answered

	stamp      []uint16
	clock      *atomic.Pointer[Clock]
	macAddress [6]byte
}

// ip6 is an IPv6 address as the leaves load it.
type ip6 struct{ hi, lo uint64 }

// portSet is a set of UDP ports, each as a little-endian load sees it.
type portSet [1 << 16 / 64]uint64

func (s *portSet) add(port uint16)      { p := port<<8 | port>>8; s[p>>6] |= 1 << (p & 63) }
func (s *portSet) has(port uint16) bool { p := port<<8 | port>>8; return s[p>>6]>>(p&63)&1 != 0 }

// servicePorts are UDP ports where something that answers datagrams it did not ask for is common: a reply to them would
// be answered in turn, without end (CVE-2024-2169), or be half of a reflection attack. 0 is no port to reply to.
var servicePorts = [...]uint16{
	0,
	7,     // echo
	11,    // systat
	13,    // daytime
	17,    // quote of the day
	19,    // character generator
	37,    // time
	53,    // DNS
	69,    // TFTP
	111,   // portmapper
	123,   // NTP
	137,   // NetBIOS name service
	138,   // NetBIOS datagram
	161,   // SNMP
	389,   // connectionless LDAP
	427,   // service location
	520,   // RIP
	1434,  // SQL server resolution
	1900,  // SSDP
	3702,  // WS-Discovery
	5353,  // mDNS
	5355,  // LLMNR
	11211, // memcached
}
