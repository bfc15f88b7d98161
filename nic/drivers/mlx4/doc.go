// Package mlx4 drives Mellanox ConnectX-3 from user space by polling, on Ethernet ports, and on InfiniBand ports with
// IP over InfiniBand. Replies are pushed inline through BlueFlame.
//
// Sources: Linux 6.1, drivers/net/ethernet/mellanox/mlx4 (mlx4_core, mlx4_en), drivers/infiniband/hw/mlx4 and
// include/linux/mlx4, whose structures this package names; rdma-core, providers/mlx4, and DPDK, drivers/net/mlx4, for
// send queues in user space. The vendor's manual for this generation is not public. docs/cards/mlx4.md records the
// answers of one card with firmware 2.30.8000, and reports about others.
//
//	15b3:1003  ConnectX-3
//	15b3:1007  ConnectX-3 Pro
//
// A card with two ports has both on one PCI function: Options.Port selects one. The card's configuration sets whether a
// port is Ethernet or InfiniBand; a port that may be either is used as Ethernet. Virtual functions (1004) have no
// command register of their own and are not supported.
//
// # Start-up
//
// Like Linux, the driver takes the ownership register, resets the whole card by its reset register, restores
// configuration space, and starts firmware in host memory. The card keeps the contexts of its objects in host memory
// too (ICM): tables in its own address space, of which only those parts are mapped that contain our objects and the
// ones that firmware reserves before them. Commands go through one register, one at a time, and are polled. The
// watchdog reads one event queue; nothing raises an interrupt. One memory key covers all memory, by address.
//
// Frames are steered by one rule per address if firmware has device-managed flow steering, and by the port's table of
// addresses (A0) otherwise. RSS spreads them over a power of two of queues.
//
// # Cost of a reply on the bus
//
// A receive QP and a send QP, each with its completion queue, make a queue pair, as in mlx4_en. A work queue entry
// (WQE) is 16 bytes of control and then the inline frame: each line of 64 bytes starts with the header of an inline
// segment, so the first block has 44 bytes of the frame and each following one 60. The WQE is built in the send queue
// and copied from there to BlueFlame: with registers of 512 bytes, the device reads nothing to send a frame of up to
// 224 bytes. The WQE of a longer frame is one block with a pointer, sent the same way, and costs one payload read.
// Without BlueFlame the device reads the WQE too.
//
// A receive slot owns one buffer permanently. The slot of a frame that was sent inline is free at once; the slot of a
// frame that was sent by pointer waits for the send completion. Slots are returned in order. One completion is
// requested per about 32 blocks. Free blocks are stamped, and 33 blocks are never posted, because the device
// prefetches.
//
// # InfiniBand
//
// An InfiniBand port has one queue pair for datagrams, which carries IPoIB in datagram mode (RFC 4391) in the partition
// of the first P_Key. Groups are entries of the multicast table. Package nic/ib implements the rest of InfiniBand,
// which is not time-critical:
//
//   - requests of the subnet manager arrive on queue pair 0 and are passed to the agent in firmware (MAD_IFC), as in
//     Linux;
//   - when the port is active, the driver asks subnet administration on queue pair 1 to make the port a member of the
//     broadcast group, and of the groups of the IPv6 addresses that it answers for. The Q_Key of the broadcast group
//     starts the queue pair;
//   - without a subnet manager Open succeeds, the link is down, and one log line says what the driver waits for. The
//     same applies if subnet administration does not answer or refuses a group. The driver tries again every second;
//   - a new LID or manager, or an event that requests it, renews the memberships; a new Q_Key restarts the device.
//
// fastpath's leaves see only the packet. All other code sees an artificial Ethernet header, in which the MAC of a
// station is its LID and queue pair. So guards, reasons and STAMP are the same as on Ethernet, and a bench can use Send
// and Recv without knowledge of InfiniBand. ARP and neighbour discovery are translated. Recv holds back what it learns
// of a sender until subnet administration has reported the path to its GID, which Send then uses. A static rate is
// never set: flow control of a slower link limits ours.
//
// A reply's WQE is a block of control and address, built from the request's completion (and the GID in its GRH, if it
// had one), and the payload inline in up to three more blocks: payloads of up to 180 bytes, including the
// encapsulation, need no DMA read.
//
// Both IDs open and answer on the model in both steering modes. The conformance suite runs on it in process and over
// vfio-user. Neither has run on silicon.
package mlx4
