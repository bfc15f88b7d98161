// Package mlx4sim models a Mellanox ConnectX-3 with one port: 15b3:1003, and 15b3:1007 (ConnectX-3 Pro).
//
// It is written from the vendor's bit layouts as iPXE publishes them (MT25408_PRM.h; field names are the PRM's), from
// what real cards showed, and, where firmware later than the PRM has more, from what Linux's unmodified mlx4_core and
// mlx4_en ask of it. It is compared with them, and against iPXE's driver (proof/lab). It shares nothing with
// nic/drivers/mlx4.
//
// # What there is
//
// The command register with toggle, polled and by event; ownership, semaphore, reset; firmware area, context memory
// (ICM) that is really mapped; physical and translated memory regions, the reserved LKey; EQs, CQs with arming by
// sequence numbers, moderation, timestamps, CQEs and EQEs of 32 and 64 bytes; QPs with their states; raw
// Ethernet: send with data and inline segments, checksums, LSO, VLAN insertion, BlueFlame; receive with checksums,
// VLAN stripping, the FCS on request, RSS (Toeplitz and XOR); steering by the MAC table ("A0") and by flow rules ("device-managed"); VLAN
// and multicast filters, the port's counters and events, the catastrophic error buffer. On an InfiniBand port: the
// subnet management agent behind MAD_IFC (NodeDescription, NodeInfo, GUIDInfo, PortInfo, P_KeyTable, SLtoVL,
// VLArbitration; performance management's PortCounters, 32 and 64 bits wide; Mellanox's ExtendedPortInfo and versions; the trap of a changed node), port states and management
// events, QP0 and QP1 with packets that the driver builds, virtual lane 15, multicast groups by table and by rule. On
// ports of both kinds, on Ethernet as RoCE version 1: datagram queues, and connections (RC) with SEND, RDMA WRITE and
// READ, immediate data, acknowledgements, retries and their errors (package rdma), and with shared receive queues.
//
// # What there is not
//
// A driver that requests one of these gets an error status and a violation, and the capability is not claimed: a
// second port, B0 steering (VEP), virtual functions, UC and XRC, RoCE version 2 and RoCE with VLANs, datagram queues
// on an SRQ, limits of SRQs, CQs that are resized, traps of violated keys (they are counted), memory windows, fast registration, atomic operations, more
// than one READ at a time, end-to-end credits, path migration, counters of interfaces, QoS, VXLAN,
// strides of CQEs above 64 bytes, PTYS, CONFIG_DEV. A software reset takes no time, but loses configuration space, so
// that COMMAND has to be restored. Commands take no time: each is done in the Step after its go bit.
//
// # Context memory
//
// Every object's entries have to be mapped when it is made, otherwise its command fails with status 0ch. The context
// is written there and read back when the object goes: a host that wrote there is found out. MTT entries are read
// from there, for rings when the object is made, for regions when a page is used first. Unmapping what holds the
// context of a live object is reported.
//
// # Prefetch
//
// A send doorbell has no index: the device reads up to 2 KB of the ring at once and executes what is valid by its
// ownership bit, as it was when it was read. A stride that was the inside of a WQE and was not stamped since may look
// valid: it is then executed, and refused as a violation.
//
// # Refusals and warnings
//
// Firmware refuses a command by its status, a queue a WQE by an error completion: both are refused, as are doorbells
// of objects that do not exist. Told is what the PRM forbids and cards tolerate: reserved bits in mailboxes, the
// toggle that does not flip, objects that are left at the end, a pushed WQE that is not in the ring.
//
// # Doorbells
//
// Drivers only ever write UAR pages. The model leaves a pattern in each word, so that a word that holds something
// else was stored to: by a pointer, then Step finds it, or by a trapped access, then it is served at once. Two stores
// to one doorbell through a pointer between two Steps are one word: so the model then looks at the arm record of each
// CQ of the page, and at the next WQE of each queue.
//
// # What a frame costs on the bus
//
// A send: a store for each 64 bytes pushed (write-combined) and nothing else, or four bytes for a plain doorbell and
// one DMA read of up to 2 KB for the WQEs; one read for each data segment; one write for a CQE if the WQE requested
// one. A receive: one read of the doorbell record when the queue looks empty; one of up to 512 bytes of WQEs; a write
// for each data segment; a write for the CQE; an EQE and an interrupt if the CQ is armed. A real card reads in bursts
// of its read request size; the model does not split.
package mlx4sim
