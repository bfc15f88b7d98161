// Package fastpath decides what is answered and rewrites a request into its reply in place.
//
// A driver's Poll hands every received frame to it: to Reply first, which answers echo requests, datagrams and test
// packets, untagged and under one tag, and to Slow if that turns it down. Both are calls: nothing of this package is
// inlined into a Poll, except for the test in Departing. No function here allocates or locks. A frame is referred to
// until Departing has written its time of sending.
//
// # What a Poll does with each frame
//
// frame is the received frame without FCS, n its length, h its head. m becomes the reply's length; 0 means that
// nothing is sent and the buffer goes back to the receive ring.
//
//	h, m := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), n
//	if !r.Reply(h, n) {
//		m = r.Slow(h, n)
//	}
//	r.Departing()
//
// Departing comes before the device can read the reply: before the doorbell, once for all of a pass, where that is
// what the device reads frames after, and before a frame is copied to the device. A buffer whose reply is not sent is
// given back after it, too.
//
// Reply checks the limit of rates last: only a frame that will be answered is taken from its source's rate. Whatever it
// turned down is unchanged and has not been counted, and Slow then answers it or counts why not. So every frame is
// counted exactly once. The same is true of the leaves in AnswerPacket, whose order is part of the contract: each
// relies on those before it.
//
// The MinBuffer bytes at h must be readable and writable whatever n is: a receive buffer is always longer. What is
// beyond n may be read and may decide which way a frame takes, never whether it is answered: no frame is answered
// whose headers do not are within n, and nothing beyond n is written but by the replies of Slow that are longer.
// Frames that are shorter than their headers are refused by Slow.
//
// # Packets without an Ethernet header
//
// On InfiniBand a packet has IPoIB's encapsulation in front of it (RFC 4391 §6), and the device says who sent it. The
// driver gives each station a generated MAC, hands both ends' over as LinkAddress, and has h point to where an
// Ethernet header would begin, so that the packet lies where it always does. PingPacket4 and AnswerPacket take the
// place of Reply, and look at nothing before h[10]. What both turn down gets the header that it stands
// for, and goes to Slow as any frame does: so guards, reasons and replies are the same. ARP and neighbour discovery,
// which name hardware addresses, are translated besides (github.com/rebound-nic/rebound/nic/ib).
//
// The loop must call Responder.Loop.Begin before its first Poll, and Loop.Pass after each: that is the clock of the
// limit, and the time at which test packets came.
package fastpath
