// Package echohost serves a card's model to a program under test. At the other end of its wire is a host that answers
// ARP, neighbour discovery and UDP datagrams.
package echohost

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// MAC is the host's.
var MAC = [6]byte{2, 0, 0, 0, 0, 2}

// Start returns the name of the card's device. answer gets the payload of each datagram to the host's IPv4 address,
// with its ports, and returns those of the replies.
func Start(t testing.TB, address netip.Addr, answer func(from, to uint16, payload []byte) [][]byte) (device string) {
	_, far, device := simtest.Serve(t, ixgbesim.New(ixgbesim.Options{MAC: [6]byte{2, 0, 0, 0, 0, 1}}))
	own := route.NewNeighbour(address, MAC)
	go func() {
		for ; t.Context().Err() == nil; time.Sleep(100 * time.Microsecond) {
			for b := far.Recv(0); b != nil; b = far.Recv(0) {
				if a := own.Answer(b); a != nil {
					far.Send(0, a)
				}
				if len(b) < 42 || b[12] != 8 || b[13] != 0 || b[23] != 17 || [6]byte(b) != MAC {
					continue
				}
				end := 14 + int(binary.BigEndian.Uint16(b[16:]))
				for _, payload := range answer(binary.BigEndian.Uint16(b[34:]), binary.BigEndian.Uint16(b[36:]),
					b[42:end]) {
					far.Send(0, slices.Concat(b[6:12], b[:6], b[12:26], b[30:34], b[26:30], b[36:38], b[34:36],
						b[38:40],
						[]byte{0, 0}, payload)) // without a UDP checksum
				}
			}
		}
	}()
	return device
}

// Reflect returns a stateless STAMP reflector's reply to a test packet (RFC 8762 §4.3.1), with the same times in each.
func Reflect(b []byte) []byte {
	out := make([]byte, len(b))
	copy(out, b[:4])
	out[4], out[12], out[13], out[16] = 1, 1, 1, 1 // timestamps and the error estimate
	copy(out[24:], b[:14])                         // the sender's number, timestamp and error estimate
	out[40] = 64
	return out
}
