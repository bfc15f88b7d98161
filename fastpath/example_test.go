package fastpath_test

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"

	"github.com/rebound-nic/rebound/fastpath"
)

// ping is an ICMP echo request from 10.0.0.1 to 10.0.0.2, in a receive buffer, with its length n.
func ping() (buffer []byte, n int) {
	frame, _ := hex.DecodeString("020000000002" + "020000000001" + "0800" + // Ethernet
		"4500001e000000004001" + "66dd" + "0a000001" + "0a000002" + // IPv4
		"0800" + "8f94" + "0001" + "0001" + "6869") // ICMP: identifier 1, sequence number 1, "hi"
	buffer = make([]byte, 2048)
	return buffer, copy(buffer, frame)
}

func responder() *fastpath.Responder {
	r, err := fastpath.New(fastpath.Config{
		MAC:       [6]byte{2, 0, 0, 0, 0, 2},
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")},
		UDPPorts:  []uint16{7},

		ChecksumBytes: fastpath.DefaultChecksumBytes,
	})
	if err != nil {
		panic(err)
	}
	return r
}

// What a driver does with each received frame: the reply is in the request's own buffer.
func Example() {
	r := responder()
	buffer, n := ping()

	head := (*[64]byte)(buffer)
	if !r.Reply(head, n) { // the common requests
		n = r.Slow(head, n) // 0 if nothing is to be sent
	}
	r.Departing()
	fmt.Printf("send %d bytes to %v: %v > %v, ICMP type %d, %q\n", n, net.HardwareAddr(buffer[:6]),
		netip.AddrFrom4([4]byte(buffer[26:])), netip.AddrFrom4([4]byte(buffer[30:])), buffer[34], buffer[42:n])

	// Output: send 44 bytes to 02:00:00:00:00:01: 10.0.0.2 > 10.0.0.1, ICMP type 0, "hi"
}

// Each frame is counted once, by the kind that was answered or by the reason for the refusal.
func ExampleResponder_Stats() {
	r := responder()
	for _, spoil := range []func(frame []byte){
		func([]byte) {},
		func(f []byte) { f[33]++; f[25]-- }, // to 10.0.0.3, with a correct header checksum
		func(f []byte) { f[29]++; f[25]-- }, // from 10.0.0.2, our own address
		func(f []byte) { f[42] ^= 1 },       // the ICMP checksum is wrong
	} {
		buffer, n := ping()
		spoil(buffer)
		if head := (*[64]byte)(buffer); !r.Reply(head, n) {
			r.Slow(head, n)
		}
		r.Departing()
	}
	stats := r.Stats()
	for v, n := range stats {
		if n > 0 {
			fmt.Println(fastpath.Verdict(v), n)
		}
	}
	fmt.Println(stats.Answered(), "answered,", stats.Refused(), "refused")

	// Output:
	// icmpv4 1
	// address 1
	// own_source 1
	// checksum 1
	// 1 answered, 3 refused
}
