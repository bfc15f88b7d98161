// Package fastpath decides which frames are answered and rewrites a request into its reply in place.
//
// A driver's Poll passes every received frame to it: to Reply first, which answers echo requests, datagrams and test
// packets, untagged or with one tag, and to Slow if Reply turns it down. Both are calls: nothing of this package is
// inlined into a Poll, except for the test in Departing. No function here allocates or locks. A frame is referenced
// until Departing has written its transmit timestamp.
//
// # What a Poll does with each frame
//
// frame is the received frame without FCS, n its length, h its head. m becomes the reply's length; 0 means that nothing
// is sent and the buffer goes back to the receive ring.
//
//	h, m := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), n
//	if !r.Reply(h, n) {
//		m = r.Slow(h, n)
//	}
//	r.Departing()
//
// Departing must be called before the device can read the reply: before the doorbell, once per pass, if the device
// reads frames after the doorbell, or before a frame is copied to the device. A buffer whose reply is not sent must
// also be returned only after Departing.
//
// Reply checks the rate limit last: only a frame that will be answered is charged to its source's rate. A frame that it
// turns down is unchanged and has not been counted, and Slow then answers it or counts the reason for a refusal. So
// every frame is counted exactly once.
//
// The MinBuffer bytes at h must be readable and writable whatever n is: a receive buffer is always longer. Bytes beyond
// n may be read and may determine which code handles a frame, but never whether it is answered: no frame is answered
// whose headers are not within n, and only longer replies of Slow write beyond n. Slow refuses frames that are shorter
// than their headers.
//
// # Packets without an Ethernet header
//
// On InfiniBand a packet starts with IPoIB's encapsulation (RFC 4391 §6), and the device reports its sender. The driver
// assigns a generated MAC to each station and writes the Ethernet header with those of both ends in front of the
// packet, which then is a frame. ARP and neighbour discovery, which contain hardware addresses, are also translated
// (github.com/rebound-nic/rebound/nic/ib).
//
// The loop must call Responder.Loop.Begin before its first Poll, and Loop.Pass after each: they set the time for the
// rate limit and for the receive timestamps of test packets.
package fastpath
