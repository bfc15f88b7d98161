package fastpath

import (
	"net/netip"

	"rebound/latency/hot"
)

// Mode says how much of a request is checked before it is answered.
type Mode uint8

const (
	Strict Mode = iota // every guard; replies leave with hop limit 64
	Open               // the seeds' cropped checks, for a wire you own; the hop limit stays
)

// Config is what a Responder answers. It does not change while a Responder is in use.
type Config struct {
	Mode      Mode
	MAC       [6]byte
	Addresses []netip.Prefix // our addresses, each with its subnet (/32 or /128 where that is unknown)
	UDPPorts  []uint16       // answered by echo
}

// Responder answers frames for one queue. One goroutine uses it at a time; its counters and Loop may be read by others.
type Responder struct {
	Loop hot.Loop

	cfg Config
}

// New returns a Responder, or an error that names the address or port that cannot be used.
func New(c Config) (*Responder, error) {
	return &Responder{cfg: c}, nil
}

// Slow answers frame in place if it is for us and passes every guard, and returns the reply's length, which is never
// more than len(frame). It returns 0 where there is nothing to send; the reason is counted.
//
//go:noinline
func (r *Responder) Slow(frame []byte) int { return 0 }
