// Package fastpath decides what is answered and rewrites a request into its reply where it lies.
//
// A driver's Poll hands every received frame to it: common requests through leaves that the compiler inlines into the
// Poll, all others through Slow. No function here allocates, locks or keeps a reference to a frame.
//
// # What a Poll does with each frame
//
// frame is the received frame without FCS, n its length, h its head. m becomes the reply's length; 0 means that nothing
// is sent and the buffer goes back to the receive ring.
//
//	h, m := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), n
//	switch k := fastpath.Match(h); {
//	case k == fastpath.ICMPv4 && r.IPv4(h, n) && r.Sum4(h) && r.Hosts4(h) && fastpath.Echo4(h) && r.Admit(h, k):
//		r.Pong4(h)
//		r.Fresh4(h)
//		fastpath.Swap4(h)
//	case k == fastpath.UDPv4 && r.IPv4(h, n) && r.Sum4(h) && r.Hosts4(h) && r.Ports4(h) && r.Datagram4(h) && r.Admit(h, k):
//		r.Bounce4(h)
//		r.Lower4(h)
//		fastpath.Swap4(h)
//	case k == fastpath.ICMPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && fastpath.Echo6(h) && r.Admit(h, k):
//		r.Pong6(h)
//		fastpath.Swap6(h)
//	case k == fastpath.UDPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && r.Ports6(h) && r.Datagram6(h) && r.Admit(h, k):
//		r.Bounce6(h)
//		fastpath.Swap6(h)
//	default:
//		m = r.Slow(h, n)
//	}
//
// The order of the leaves is part of the contract: each relies on those before it. Admit comes last of the
// conditions: only a frame that will be answered is taken from its source's rate. Whatever a leaf turned down is unchanged
// and has not been counted, and Slow then answers it or counts why not. So every frame is counted exactly once.
//
// The MinBuffer bytes at h must be readable and writable whatever n is: a receive buffer is always longer. What lies beyond
// n may be read and may decide which way a frame takes, never whether it is answered: no leaf answers a frame whose headers
// do not lie within n, and nothing beyond n is written but by the replies of Slow that are longer. Frames that are shorter
// than their headers are refused by Slow.
//
// # Packets without an Ethernet header
//
// On InfiniBand a packet has IPoIB's encapsulation in front of it (RFC 4391 §6), and the device says who sent it. The driver
// gives each station a MAC of its own making, hands the leaves both ends' as LinkAddress, and has h point to where an Ethernet header
// would begin, so that the packet lies where it always does. MatchIPoIB, Packet4, Packet6, Turn4 and Turn6 take the places of
// Match, IPv4, IPv6, Swap4 and Swap6, and look at nothing before h[10]. What the leaves turn down gets the header that they
// stand for, and goes to Slow as any frame does: so guards, reasons and replies are the same. ARP and neighbour discovery, which
// name hardware addresses, are translated besides (rebound/nic/ib).
//
// Where Config.Rate is set, the loop must call Responder.Loop.Pass after each Poll: that is the limit's clock.
package fastpath
