// Package efa drives Amazon's Elastic Fabric Adapter from user space, by polling, with replies pushed into the device
// (low-latency queues, LLQ).
//
//	1d0f:efa0 to 1d0f:efa4  capabilities are queried; the ID does not determine them
//
// Source: the device definitions that Amazon publishes with its Linux driver (efa_regs_defs, efa_admin_defs,
// efa_io_defs of amzn-drivers r3.1.0) and the data path of rdma-core's provider (providers/efa); there is no public
// datasheet. Commands and descriptors have the names used there.
//
// An EFA carries messages between queue pairs, over unreliable datagrams (UD) or Scalable Reliable Datagrams (SRD): no
// frames, no ARP, no ICMP. A receive completion identifies its sender by address handle and queue pair, and the reply
// is sent back there from the same buffer.
//
// # Buffers
//
// A slot is a buffer for one message with room before it, and its number is the request ID of all its descriptors. A
// receive slot belongs to one queue pair permanently. It is posted, filled, sent from, and posted again when its send
// is completed: so the device never has one request ID twice, and a message that a peer does not accept only occupies
// its own buffer. The device may complete in any order.
//
// Before each message there is room for the first 32 bytes of a work queue entry (the meta descriptor), so that the
// entry of a short message is built in place, and stored from there into the device: 32 bytes of data in an entry of
// 64, or 80 in one of 128 if the device supports those. For a longer message the entry has a pointer, and the device
// fetches the message.
//
// A datagram's buffer starts with 40 bytes that the device writes (the position of InfiniBand's global route header).
// Their content is not public, and nothing here reads them.
//
// # Senders
//
// A sender without an address handle in the device is reported as 0xFFFF, with its GID in the extended completion. Its
// message waits in its slot while another goroutine has the device create a handle; only a few messages may wait, and
// further ones are refused. Senders that used the responder's handover have a handle before their first message. There
// are up to 1024 handles; the oldest is evicted.
package efa
