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
// Where Config.Rate is set, the loop must call Responder.Loop.Pass after each Poll: that is the limit's clock.
package fastpath
