// Package mlx4 drives Mellanox ConnectX-3 from user space, polling, on Ethernet ports, and on InfiniBand ports by IP
// over InfiniBand, with replies pushed inline through BlueFlame.
//
// Sources: Linux 6.1, drivers/net/ethernet/mellanox/mlx4 (mlx4_core, mlx4_en), drivers/infiniband/hw/mlx4 and
// include/linux/mlx4, whose structures this package names; rdma-core, providers/mlx4, and DPDK, drivers/net/mlx4, for
// send queues in user space. The vendor's manual for this generation is not public. What one card with firmware
// 2.30.8000 was seen to answer, and what others say of themselves, is in docs/bring-up-mlx4.md.
//
//	15b3:1003  ConnectX-3
//	15b3:1007  ConnectX-3 Pro
//
// A card with two ports has both on one PCI function: Options.Port chooses. Whether a port is Ethernet's or
// InfiniBand's is set in the card; where it may be either it is taken as Ethernet's. Virtual functions (1004) have no
// command register of their own and are not driven.
//
// # How the card is started
//
// As Linux does on every start the driver takes the ownership register, resets the whole card by its register, brings
// back what configuration space had, and starts firmware in memory of the host. The card keeps the contexts of its
// objects in host memory too (ICM): tables in its own address space, of which those parts are mapped that hold our
// objects and the ones in front of them that firmware keeps for itself. Commands go through one register, one at a
// time, and are polled. One event queue is read by the watch; nothing raises an interrupt. One memory key stands for
// all memory, by address.
//
// Frames are steered by rules for each address where firmware has device-managed flow steering, and by the port's
// table of addresses (A0) where it has not. RSS spreads them over a power of two of queues.
//
// # What one reply costs on the bus
//
// A receive QP and a send QP each with its completion queue make a queue pair, as in mlx4_en. A work queue entry
// (WQE) is 16 bytes of control and then the frame, inline: each line of 64 bytes begins with the header of an inline
// segment, so 44 bytes of the frame are in the first block and 60 in each that follows. It is made in the send queue
// and stored from there into BlueFlame: for a frame of up to 224 bytes, with registers of 512 bytes, nothing is read
// on the way to the wire. Of a longer frame the WQE is one block with a pointer, which goes the same way: one payload
// read. Without BlueFlame the device reads the WQE too.
//
// A receive slot owns one buffer permanently. A frame that went inline leaves its slot free at once; the slot of one
// that is pointed to waits for the completion. Slots are handed back in order. Completions are requested once in some
// 32 blocks. Blocks that are free again are stamped, and 33 blocks are never posted, since the device reads ahead.
//
// # InfiniBand
//
// An InfiniBand port has one queue pair for datagrams, which carries IPoIB in datagram mode (RFC 4391), in the
// partition of the first P_Key. Groups are entries of the multicast table. What else there is of InfiniBand is
// github.com/rebound-nic/rebound/nic/ib's, and may wait:
//
//   - the subnet manager's questions come over queue pair 0 and go to the agent in firmware (MAD_IFC), as Linux has it;
//   - once the port is active, subnet administration is asked over queue pair 1 to make the port a member of the broadcast
//     group, and of those of the IPv6 addresses that are answered for. With the Q_Key of the first the queue pair is started;
//   - without a subnet manager Open succeeds, the link is down, and one line of the log says what is waited for. The same goes
//     for administration that does not answer, or refuses a group. It is tried on, every second;
//   - another LID or manager, and an event that requests it, have the memberships made again; another Q_Key restarts the device.
//
// Of what comes in, fastpath's leaves look at the packet alone. All others see a made-up Ethernet header, in which a
// station's MAC is its LID and queue pair: so guards, reasons and STAMP are Ethernet's, and Send and Recv are for a
// bench that knows nothing of InfiniBand. ARP and neighbour discovery are translated; what Recv hears of a sender is
// held until administration has told the path to the GID that it says, by which Send then goes. A static rate is
// never set: a slower port's link has to brake ours.
//
// A reply's WQE is a block of control and address, made of the request's completion (and the GID in its GRH, if it
// had one), and the payload inline in up to three more: 180 bytes, encapsulation included, are the longest that
// nothing is read for.
//
// Both IDs are opened and answer on the model, with either way of steering; the conformance suite runs on it in
// process and over vfio-user. Neither has been opened on silicon.
package mlx4
