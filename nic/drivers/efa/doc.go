// Package efa drives Amazon's Elastic Fabric Adapter from user space, polling, with replies pushed into the device
// (low-latency queues, LLQ).
//
//	1d0f:efa0 to 1d0f:efa4  capabilities are queried; the ID does not determine them
//
// Source: the device definitions that Amazon publishes with its Linux driver (efa_regs_defs, efa_admin_defs,
// efa_io_defs of amzn-drivers r3.1.0) and the data path of rdma-core's provider (providers/efa); there is no public
// datasheet. Commands and descriptors are named as there.
//
// An EFA carries messages between queue pairs, over unreliable datagrams (UD) or Scalable Reliable Datagrams (SRD):
// no frame, no ARP, no ICMP. A receive completion names its sender by address handle and queue pair, and the message
// goes back there from in place.
//
// # How buffers go round
//
// A slot is a buffer for one message with room in front of it, and its number is the request ID of whatever the
// device has of it. A receive slot belongs to one queue pair permanently. It is posted, then filled, then sent from,
// and posted again when its send is completed: so the device never has one request ID twice, and a message that a
// peer does not take holds its own buffer only. The device may complete in any order.
//
// In front of each message there is room for the first 32 bytes of a work queue entry (the meta descriptor), so that
// the entry of a short message is made in place, and stored from there into the device: 32 bytes of data in an entry
// of 64, or 80 in one of 128 where the device has those. Of a longer one the entry has a pointer, and the device
// fetches the message.
//
// A datagram's buffer begins with 40 bytes that are the device's (InfiniBand's global route header has its place
// there). What it writes into them is not public, and nothing here reads them.
//
// # Senders
//
// A sender that the device has no address handle for comes as 0xFFFF, with its GID in the extended completion. Its
// message waits in its slot while another goroutine has the device make a handle; a few may wait so, further ones are
// refused. Who came through the responder's hand-over has a handle before its first message. There are up to 1024
// handles; the oldest is evicted.
package efa
