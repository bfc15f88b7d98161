package nic

import (
	"fmt"
	"net/netip"
)

// Messages. The queues of EFA, and InfiniBand's datagram queues, carry messages instead of frames: there is no
// Ethernet, IP or UDP header, and the device reports the sender. Such a port has the same lifetime, counters and
// recording as one for frames, but other roles:
//
//   - It is an Answerer: Serve is the fused loop, and the Responder counts, limits and records as usual. The message
//     functions of package
// fastpath decide what is answered.
//   - A Messenger sends and receives single messages, for a bench.
//
// The destination of a message is an Address. There is neither ARP nor a well-known port, so a sender learns it outside
// of the protocol, from a TCP connection (package handover), as with ibv_ud_pingpong and perftest.

// Service is what a queue pair does with received messages, and over which transport.
type Service uint8

// The services, in the order of their ports in the hand-over.
const (
	EchoUD   Service = iota // echo over unreliable datagrams
	EchoSRD                 // echo over Scalable Reliable Datagrams: each delivered once, in any order
	STAMPUD                 // stateless STAMP Session-Reflector over unreliable datagrams
	STAMPSRD                // the same over Scalable Reliable Datagrams
	Services = iota         // number of services
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

// Reliable reports whether the transport delivers each message once, or reports that it could not.
func (s Service) Reliable() bool { return s == EchoSRD || s == STAMPSRD }

// STAMP reports whether the service answers STAMP test packets instead of echoing any message.
func (s Service) STAMP() bool { return s == STAMPUD || s == STAMPSRD }

// Address identifies a queue pair.
type Address struct {
	GID  netip.Addr // of the port, 16 bytes
	QPN  uint32     // queue pair number, up to 24 bits (16 on EFA)
	QKey uint32     // key that a message must carry to be accepted
}

// String returns the address in the format of the responder's ready line: "fe80::1/17/0x11111111".
func (a Address) String() string { return fmt.Sprintf("%v/%d/%#x", a.GID, a.QPN, a.QKey) }

// Endpoint is one open queue pair.
type Endpoint struct {
	Address
	Queue   int // the polling loop that serves it
	Service Service
}

// Peer is an address that Resolve has prepared for sending.
type Peer int

// Messenger is a port whose queue pairs carry messages.
type Messenger interface {
	Answerer

	// Endpoints returns the open queue pairs. A restart of the device may change their numbers.
	Endpoints() []Endpoint

	// Resolve prepares the device to send to a, which takes a device command. It may be called from any goroutine. The
	// same address always yields the same Peer.
	Resolve(a Address) (Peer, error)

	// Prewarm prepares the device to answer gid, so that its first message is answered as fast as later ones. It takes
	// a device command and may be called from any goroutine.
	Prewarm(gid netip.Addr) error

	// Send sends one message at once, through queue 0's queue pair of that service. It returns ErrFull if there is no
	// room, and ErrFrameSize if the message is longer than the device supports. Send and Recv own queue 0 unless Serve
	// runs on it, and may be called from one goroutine only.
	Send(from Service, to Peer, message []byte) error

	// Recv copies the next message of queue 0 into buf without waiting; n is 0 if there is none. at is polling.TSC()
	// when the host saw it.
	Recv(buf []byte) (n int, at int64, err error)

	// From reports whether the last message that Recv returned came from a Peer's queue pair. It may be called where
	// Recv may.
	From(p Peer) bool
}
