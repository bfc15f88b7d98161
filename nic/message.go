package nic

import (
	"fmt"
	"net/netip"
)

// Messages. An EFA's queues, and InfiniBand's datagram queues, carry messages, not frames: there is no Ethernet, IP or UDP
// header, and a sender is known by what the device says of it. Such a port has the same life, counters and recording as one
// of frames, and its own roles:
//
//   - it is an Answerer: Serve is the fused loop, and the Responder counts, rations and records as ever. What it answers is
//     decided by the leaves of fastpath that are for messages;
//   - a Messenger sends and receives single messages, for a bench.
//
// Where a message goes is an Address. A sender learns it outside of the wire, for there is neither ARP nor a well-known port:
// from a TCP connection, as ibv_ud_pingpong and perftest do (package handover).

// Service is what a queue pair does with the messages that it receives, and over which transport.
type Service uint8

// The services, in the order of their ports in the hand-over.
const (
	EchoUD   Service = iota // sent back as they are, over unreliable datagrams
	EchoSRD                 // the same over Scalable Reliable Datagrams: each delivered once, in any order
	STAMPUD                 // answered as a stateless STAMP Session-Reflector
	STAMPSRD                // likewise
	Services = iota         // how many there are
)

var serviceNames = [Services]string{"ud", "srd", "stamp-ud", "stamp-srd"}

// String returns the service's name: "ud", "srd", "stamp-ud" or "stamp-srd".
func (s Service) String() string {
	if int(s) < len(serviceNames) {
		return serviceNames[s]
	}
	return fmt.Sprintf("service %d", uint8(s))
}

// ParseService is the inverse of String.
func ParseService(name string) (Service, error) {
	for s := range Service(Services) {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, fmt.Errorf("%q is none of ud, srd, stamp-ud, stamp-srd", name)
}

// Reliable reports whether the transport delivers each message once, or tells that it could not.
func (s Service) Reliable() bool { return s == EchoSRD || s == STAMPSRD }

// STAMP reports whether test packets are answered, not any message.
func (s Service) STAMP() bool { return s == STAMPUD || s == STAMPSRD }

// Address is where a queue pair is found.
type Address struct {
	GID  netip.Addr // the port's, 16 bytes
	QPN  uint32     // the queue pair's number, up to 24 bits (16 on EFA)
	QKey uint32     // what a message has to bring to be taken
}

// String writes an address as the responder's ready line has it: "fe80::1/17/0x11111111".
func (a Address) String() string { return fmt.Sprintf("%v/%d/%#x", a.GID, a.QPN, a.QKey) }

// Endpoint is one open queue pair.
type Endpoint struct {
	Address
	Queue   int // the loop that answers it
	Service Service
}

// Peer is an address that Resolve has made ready to be sent to.
type Peer int

// Messenger is a port whose queue pairs carry messages.
type Messenger interface {
	Answerer

	// Endpoints are the open queue pairs. A restart of the device may change their numbers.
	Endpoints() []Endpoint

	// Resolve makes the device ready to send to a, which takes a command to it and may be called from any goroutine.
	// The same address is the same Peer.
	Resolve(a Address) (Peer, error)

	// Prewarm makes the device ready to answer gid, so that its first message is answered as fast as later ones. It
	// takes a command to the device and may be called from any goroutine.
	Prewarm(gid netip.Addr) error

	// Send sends one message now, through queue 0's queue pair of that service. It returns ErrFull if there is no room, and
	// ErrFrameSize if the message is longer than the device takes. Send and Recv own queue 0 where no Serve does, and are for
	// one goroutine.
	Send(from Service, to Peer, message []byte) error

	// Recv copies the next message of queue 0 into buf without waiting: n is 0 if there is none. at is polling.TSC() when the
	// host saw it.
	Recv(buf []byte) (n int, at int64, err error)
}
