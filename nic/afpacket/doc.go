// Package afpacket drives an interface through packet(7) sockets: a TPACKET_V2 receive ring that is polled without a
// syscall, and one sendto for each reply, from the ring slot in which the request lies, past the queueing discipline.
//
// It runs on every interface that Linux has, needs CAP_NET_RAW only (in an unprivileged user namespace, too), and leaves
// all traffic with the kernel: the socket gets a copy. So it can answer only for addresses that the kernel does not own.
// Several queues are several sockets in one PACKET_FANOUT group, by flow hash.
//
// Sources: packet(7), Documentation/networking/packet_mmap.rst and linux/if_packet.h. What is proven: the package's tests
// run against the kernel's own ICMP, ARP, ND and UDP over veth.
package afpacket
