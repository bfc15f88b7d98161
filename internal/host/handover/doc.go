// Package handover exchanges the addresses of both ends of an EFA (or InfiniBand datagram) connection over TCP, with
// the protocols of common measuring tools: libibverbs' ibv_ud_pingpong, and perftest's ib_send_lat. Their clients can
// use a responder without a change, and so does our bench.
//
// Both protocols have fixed texts, and the client starts. Its first five bytes show which protocol it uses, so one port
// serves both. Each service of a responder has its own port, in the order of nic.Service, because perftest does not
// send its transport.
//
// Source: libibverbs/examples/ud_pingpong.c of rdma-core, src/perftest_communication.c of perftest 25.01 (version 6.24
// of its protocol).
package handover
