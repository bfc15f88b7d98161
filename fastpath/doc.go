// Package fastpath decides what is answered and rewrites a request into its reply in place.
//
// A driver's Poll hands every received frame to it: to Ping4 first, which answers an echo request over IPv4, and to
// Answer if that turns it down, which has a function like Ping4 for UDP over IPv4, leaves for the common requests
// over IPv6, and Slow. Both are calls: nothing of this package is inlined into a Poll. No function here allocates,
// locks or keeps a reference to a frame.
//
// # What a Poll does with each frame
//
// frame is the received frame without FCS, n its length, h its head. m becomes the reply's length; 0 means that
// nothing is sent and the buffer goes back to the receive ring.
//
//	h, m := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), n
//	if !r.Ping4(h, n) {
//		m = r.Answer(h, n)
//	}
//
// The order of the leaves, in Answer and AnswerPacket, is part of the contract, and Ping4 and what is like it keep it
// too: each relies on those before it. Admit comes last of the conditions: only a frame that will be answered is
// taken from its source's rate. Whatever Ping4 or a leaf turned down is unchanged and has not been counted, and Slow
// then answers it or counts why not. So every frame is counted exactly once.
//
// The MinBuffer bytes at h must be readable and writable whatever n is: a receive buffer is always longer. What is
// beyond n may be read and may decide which way a frame takes, never whether it is answered: no leaf answers a frame
// whose headers do not are within n, and nothing beyond n is written but by the replies of Slow that are longer.
// Frames that are shorter than their headers are refused by Slow.
//
// # Packets without an Ethernet header
//
// On InfiniBand a packet has IPoIB's encapsulation in front of it (RFC 4391 §6), and the device says who sent it. The
// driver gives each station a generated MAC, hands both ends' over as LinkAddress, and has h point to where an
// Ethernet header would begin, so that the packet lies where it always does. PingPacket4 and AnswerPacket take the
// places of Ping4 and Answer, and look at nothing before h[10]. What both turn down gets the header that it stands
// for, and goes to Slow as any frame does: so guards, reasons and replies are the same. ARP and neighbour discovery,
// which name hardware addresses, are translated besides (github.com/rebound-nic/rebound/nic/ib).
//
// Where Config.Rate is set, the loop must call Responder.Loop.Pass after each Poll: that is the limit's clock.
package fastpath
