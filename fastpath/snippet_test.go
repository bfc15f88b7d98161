package fastpath

import "unsafe"

// poll is the snippet that doc.go gives to the drivers, for one frame.
func poll(r *Responder, frame []byte) int {
	n := len(frame)
	h, m := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), n
	switch k := Match(h); {
	case k == ICMPv4 && r.IPv4(h, n) && r.Sum4(h) && r.Hosts4(h) && Echo4(h) && r.Admit(h, k):
		r.Pong4(h)
		r.Fresh4(h)
		Swap4(h)
	case k == UDPv4 && r.IPv4(h, n) && r.Sum4(h) && r.Hosts4(h) && r.Ports4(h) && r.Datagram4(h) && r.Admit(h, k):
		r.Bounce4(h)
		r.Lower4(h)
		Swap4(h)
	case k == ICMPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && Echo6(h) && r.Admit(h, k):
		r.Pong6(h)
		Swap6(h)
	case k == UDPv6 && r.IPv6(h, n) && r.To6(h) && r.From6(h) && r.Ports6(h) && r.Datagram6(h) && r.Admit(h, k):
		r.Bounce6(h)
		Swap6(h)
	default:
		m = r.Slow(h, n)
	}
	return m
}

// slowly is Slow for one frame.
func slowly(r *Responder, frame []byte) int {
	return r.Slow((*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), len(frame))
}
