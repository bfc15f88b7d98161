// Package outcome classifies the replies to probes, and says why one is rejected. Every transport and driver of the
// bench uses it: raw frames, sockets, messages and the watch. The table in docs/use/reports.md says what each of them
// can see.
package outcome

// Kind is the class of a reply.
type Kind uint8

const (
	Answered  Kind = iota // the first accepted reply to a probe, within the timeout
	Late                  // the same after the timeout
	Duplicate             // a further accepted reply
	Rejected              // something in it is wrong: see Reason
	Stray                 // accepted, but the probe was forgotten, or never sent
)

// Reason is the first thing that is wrong in a reply.
type Reason uint8

const (
	None Reason = iota
	Length
	MAC         // of the Ethernet header
	Header      // a field of an IP, ICMP or UDP header that none of the other reasons covers
	Source      // not from the target's address
	Destination // not to the bench's address
	Identifier  // ICMP identifier, UDP ports, or the number of the run
	Sequence    // the number of a probe that was not sent, or two numbers that disagree
	Checksum    // of the IP, ICMP or UDP header
	Payload
	Authentication // HMAC of STAMP
	Reasons        // number of reasons
)

func (r Reason) String() string {
	return [...]string{"accepted", "wrong length", "wrong MAC address", "wrong header", "wrong source",
		"wrong destination", "wrong identifier",
		"wrong sequence", "bad checksum", "wrong payload", "bad HMAC"}[r]
}

// Of classifies a reply by what is wrong with it, whether the bench remembers the probe with its number, whether that
// probe was answered before, and whether its timeout has not passed.
func Of(wrong Reason, known, answered, inTime bool) (Kind, Reason) {
	switch {
	case wrong == Payload && !known: // the payload depends on the number
		return Rejected, Sequence
	case wrong != None:
		return Rejected, wrong
	case !known:
		return Stray, None
	case answered:
		return Duplicate, None
	case inTime:
		return Answered, None
	}
	return Late, None
}
