// Package handover tells two ends of an EFA (or InfiniBand datagram) connection each other's addresses over TCP, as
// the tools that people measure with do: libibverbs' ibv_ud_pingpong, and perftest's ib_send_lat. Their clients find
// a responder by it with no change, and so does our bench.
//
// Both protocols have fixed texts, and the client begins. Which of them it speaks shows in its first five bytes, so
// that one port serves both. Each service of a responder has its own port, in the order of nic.Service: perftest does
// not say over which transport it is going to send.
//
// Source: libibverbs/examples/ud_pingpong.c of rdma-core, src/perftest_communication.c of perftest 25.01 (version
// 6.24 of its protocol).
package handover
