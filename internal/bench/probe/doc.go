// Package probe builds the frames that a bench sends and checks the frames that come back.
//
// A probe is an ICMP echo request, a UDP datagram for an echo service, or a STAMP test packet (RFC 8762), over IPv4 or
// IPv6. Its payload is the run's tag, the probe's sequence number and a pattern that depends on both, so that every
// byte of a reply is known in advance: a reply is compared field by field and byte by byte with the expected one, and
// only the fields that a network or a host may choose (hop limit, traffic class, flow label, IPv4 identification, DF)
// may differ.
//
// The checksums are computed here and not by the code that the responder uses: a bench that shared this code with the
// responder could not find an error in it.
package probe
