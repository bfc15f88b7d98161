package fastpath

// Verdict is the outcome for a frame: the kind that was answered, or the reason for the refusal.
type Verdict uint8

// Answered frames, by kind.
const (
	AnsweredICMPv4 Verdict = iota
	AnsweredUDPv4
	AnsweredICMPv6
	AnsweredUDPv6
	AnsweredARP
	AnsweredND
	AnsweredSTAMPv4
	AnsweredSTAMPv6
)

// Reasons for a refusal, in the order in which Slow checks them within each protocol.
const (
	RefusedShort Verdict = iota + AnsweredSTAMPv6 + 1 // the frame ends before its headers do
	RefusedVLAN                                       // of a VLAN that is not answered
	// neither IPv4, IPv6 nor ARP, or under more than two VLAN tags
	RefusedEtherType
	RefusedMAC            // neither to our MAC nor to the group that ARP or ND uses
	RefusedSourceMAC      // from a group MAC
	RefusedVersion        // the IP version contradicts the EtherType
	RefusedOptions        // IPv4 header length is not 20 bytes
	RefusedFragment       // part of a packet, or the reserved flag set
	RefusedExtension      // IPv6 extension header
	RefusedLength         // lengths contradict each other or the frame
	RefusedHeaderChecksum // IPv4 header checksum is wrong
	RefusedAddress        // to an address that is not ours
	RefusedSource         // from an address that is not unicast
	RefusedOwnSource      // from our own MAC or address
	RefusedProtocol       // neither ICMP nor UDP
	RefusedICMP           // ICMP of a type or code that is not answered
	RefusedPort           // UDP to a port that is not ours
	RefusedServicePort    // UDP from a port where a service may answer the reply
	RefusedHopLimit       // UDP with a TTL or hop limit below 2: the reply's would be 0
	RefusedNoChecksum     // UDP over IPv6 without a checksum
	RefusedSTAMPShort     // test packet too short to contain the reply
	RefusedChecksum       // ICMP or UDP checksum is wrong
	RefusedLoop           // equal datagrams from this source, more than Config.Loop
	RefusedRate           // more from this source than Config.Rate
	RefusedARP            // ARP other than a request for IPv4 over Ethernet
	RefusedAnnouncement   // ARP request for the sender's own address (RFC 5227 §2.3)
	RefusedND             // neighbour solicitation that is invalid according to RFC 4861 §7.1.1

	// Messages, which use another type of port (see NewMessages). Those with a STAMP packet that is too short, or over
	// their sender's rate, count as RefusedSTAMPShort and RefusedRate.
	AnsweredMessage      // sent back unchanged
	AnsweredSTAMPMessage // test packet, answered as a STAMP reflector
	RefusedReply         // a responder's reply: with ReplyMark
	RefusedSender        // its sender could not be reached, or had too many messages waiting
	RefusedMessage       // its length, or the way it arrived according to the device, is invalid

	// STAMP beyond stateless and unauthenticated mode (see Reflector).
	RefusedSTAMPHMAC     // test packet to an authenticated port whose HMAC is not right
	RefusedSTAMPSessions // test packet of a new session, for which there is no room

	verdicts
)

// Verdicts is the number of verdicts.
const Verdicts = int(verdicts)

var verdictNames = [Verdicts]string{
	"icmpv4", "udpv4", "icmpv6", "udpv6", "arp", "nd", "stampv4", "stampv6",
	"short", "vlan", "ethertype", "mac", "source_mac", "version", "options", "fragment", "extension", "length",
	"header_checksum", "address", "source", "own_source", "protocol", "icmp_type", "port", "service_port",
	"hop_limit", "no_checksum", "stamp_short", "checksum", "loop", "rate", "arp_other", "arp_announcement",
	"nd_invalid",
	"message", "stamp_message", "reply", "sender", "message_invalid",
	"stamp_hmac", "stamp_sessions",
}

// String returns the verdict's unique name: lower case with underscores, suitable as a Prometheus label.
func (v Verdict) String() string {
	if int(v) >= Verdicts {
		return "unknown"
	}
	return verdictNames[v]
}

// Answered reports whether a frame with this verdict was answered.
func (v Verdict) Answered() bool {
	return v <= AnsweredSTAMPv6 || v == AnsweredMessage || v == AnsweredSTAMPMessage
}

// Stats counts frames by verdict since the Responder was made.
type Stats [Verdicts]uint64

// Answered is the number of replies.
func (s *Stats) Answered() (n uint64) {
	for v := range s {
		if Verdict(v).Answered() {
			n += s[v]
		}
	}
	return n
}

// Refused is the number of frames that were not answered.
func (s *Stats) Refused() (n uint64) {
	for v := range s {
		if !Verdict(v).Answered() {
			n += s[v]
		}
	}
	return n
}

// Add adds t to s, for example to sum over the queues.
func (s *Stats) Add(t *Stats) {
	for v := range s {
		s[v] += t[v]
	}
}

// Stats returns the counters. Any goroutine may call it at any time: each counter is exact, but counters that change
// while they are read may be a few frames apart.
func (r *Responder) Stats() Stats {
	var s Stats
	for v := range s {
		s[v] = r.stats[v].Load()
	}
	return s
}
