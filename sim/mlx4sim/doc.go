// Package mlx4sim models a Mellanox ConnectX-3 with one port: 15b3:1003, and 15b3:1007 (ConnectX-3 Pro).
//
// It is written from the vendor's bit layouts as iPXE publishes them (MT25408_PRM.h; field names are the PRM's), from
// observations of real cards, and, for firmware that is later than the PRM, from the requests of Linux's unmodified
// mlx4_core and mlx4_en. It is compared with them, and with iPXE's driver (proof/lab). It shares no code with
// nic/drivers/mlx4.
//
// # Implemented
//
// The command register with toggle, polled and by event; ownership, semaphore, reset; firmware area, context memory
// (ICM) that is really mapped; physical and translated memory regions, the reserved LKey; EQs, CQs with arming by
// sequence numbers, moderation, timestamps, CQEs and EQEs of 32 and 64 bytes; QPs with their states; raw Ethernet: send
// with data and inline segments, checksums, LSO, VLAN insertion, BlueFlame; receive with checksums, VLAN stripping, the
// FCS on request, RSS (Toeplitz and XOR); steering by the MAC table ("A0") and by flow rules ("device-managed"); VLAN
// and multicast filters, pause frames and priority flow control with their counters, the port's counters and events,
// the counters of transport errors (DIAG_RPRT), the catastrophic error buffer.
//
// On an InfiniBand port: the subnet management agent behind MAD_IFC (NodeDescription, NodeInfo, GUIDInfo, PortInfo,
// P_KeyTable, SLtoVL, VLArbitration, LED; performance management's PortCounters, 32 and 64 bits wide; Mellanox's
// ExtendedPortInfo and versions; the trap of a changed node), port states and management events, QP0 and QP1 with
// packets that the driver builds, virtual lane 15, multicast groups by table and by rule.
//
// On ports of both kinds, on Ethernet as RoCE version 1: datagram queues, and connections (RC) with SEND, RDMA WRITE
// and READ, immediate data, acknowledgements, retries and their errors (package rdma), and with shared receive queues.
//
// # Not implemented
//
// A driver that requests one of these gets an error status and a violation, and the capability is not reported: a
// second port, B0 steering (VEP), virtual functions, UC and XRC, RoCE version 2 and RoCE with VLANs, datagram queues on
// an SRQ, limits of SRQs, resizing of CQs, traps of violated keys (they are counted), memory windows, fast
// registration, atomic operations, more than one READ at a time, end-to-end credits, path migration, counters of
// interfaces, QoS, VXLAN, strides of CQEs above 64 bytes, PTYS, CONFIG_DEV. A software reset takes no time, but loses
// configuration space, so COMMAND must be restored. Commands take no time: each is done in the Step after its go bit.
//
// # Context memory
//
// Every object's entries must be mapped when it is created, otherwise the command fails with status 0ch. The context is
// written there and read back when the object is destroyed, so a write by the host is detected. MTT entries are read
// from there: for rings when the object is created, for regions when a page is first used. Unmapping the context of a
// live object is reported.
//
// # Prefetch
//
// A send doorbell has no index: the device reads up to 2 KB of the ring at once and executes the WQEs whose ownership
// bit was valid when they were read. A stride that was the inside of a WQE and was not stamped since may look valid: it
// is then executed, and reported as a violation.
//
// # Errors and warnings
//
// Firmware refuses a command with a status, a queue refuses a WQE with an error completion. Both are errors, and so are
// doorbells of objects that do not exist. Warnings are for what the PRM forbids and cards tolerate: reserved bits in
// mailboxes, a toggle that does not flip, objects that are left at the end, a doorbell of a CQ that was destroyed, a
// pushed WQE that is not in the ring. A field that a card acts on and the model does not is accepted with a warning.
// There is none for hints that only change how long something takes (cache line size, static rates, arbitration of
// WQEs), for permissions of operations that the model refuses (fast registration, remote invalidation, atomics), for
// what firmware only tells others (driver version, the user's MTU), and for forced priorities until a tag has another.
//
// # Doorbells
//
// Drivers only ever write UAR pages. The model fills each word with a pattern, so any other value means a store:
// through a pointer, which Step finds, or by a trapped access, which is handled immediately. Two stores to one doorbell
// through a pointer between two Steps look like one, so the model then checks the arm record of each CQ of the page,
// and the next WQE of each queue.
//
// # Cost of a frame on the bus
//
// A send: a store for each 64 bytes pushed (write-combined) and nothing else, or four bytes for a plain doorbell and
// one DMA read of up to 2 KB for the WQEs; one read for each data segment; one write for a CQE if the WQE requested
// one. A receive: one read of the doorbell record when the queue looks empty; one of up to 512 bytes of WQEs; a write
// for each data segment; a write for the CQE; an EQE and an interrupt if the CQ is armed. A real card reads in bursts
// of its read request size; the model does not split.
package mlx4sim
