// Package afpacket drives an interface through packet(7) sockets: a TPACKET_V2 receive ring that is polled without a
// system call, and one sendto per reply, from the ring slot of the request, bypassing the queueing discipline
// unless Options.Qdisc is set.
//
// It runs on every Linux interface, needs only CAP_NET_RAW (in an unprivileged user namespace, too), and leaves all
// traffic with the kernel: the socket gets a copy. So it can answer only for addresses that the kernel does not own.
// Several queues are several sockets in one PACKET_FANOUT group, by flow hash.
//
// The transmit ring of packet(7) is not used: on veth, Linux 6.18, sending one frame through it takes 1.34 times the
// time of sendto, and it would need a copy from the receive ring. Other variants, measured with a loop in C
// (proof/peers), 11 to 13 alternating rounds, as the median ratio of p50 to that of sendto from the ring's own socket:
// write 1.02, a second socket for sending 1.00, a send buffer of 100 MB 0.99, PAUSE between polls 1.00, 64 slots or
// 2048 instead of 512 1.01. An AF_XDP socket that only sends takes 0.95, but needs another socket per queue, locked
// memory and a copy, and is not AF_PACKET.
//
// The kernel's own copy of a request costs time: the kernel looks for a route to an address that it does not have, and
// frees the result later, by RCU, on the core that received it. With a MAC other than the interface's (nic.mac) the
// kernel drops its copy earlier. Ten alternating runs of that loop on veth, one core receiving: 20,000 runs of the RCU
// softirq a second against 120, 0.82 % of the round trips above 10 µs against 0.30 %, p50 0.98.
//
// Sources: packet(7), Documentation/networking/packet_mmap.rst and linux/if_packet.h. Tested: the package's tests run
// against the kernel's own ICMP, ARP, ND and UDP over veth.
package afpacket
