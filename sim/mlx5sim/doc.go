// Package mlx5sim models one function of an NVIDIA (Mellanox) ConnectX adapter, physical or virtual: a ConnectX-4
// (15b3:1013) with the capabilities of a real one that was recorded, and, with what they differ in for an Ethernet
// driver, its successors to ConnectX-7 and BlueField-3, and their virtual functions (Profile).
//
// It is written from what is public of the adapters' Programmer's Reference Manual (field names and offsets are the
// manual's), and compared with Linux's unmodified mlx5_core (proof/lab), and against the recording of a ConnectX-4
// with firmware 14.12.1220: the model answers each of its commands as the card did, except for the capabilities that
// it does not claim. It shares nothing with nic/drivers/mlx5.
//
// # What there is
//
// Initialization segment with health buffer and software reset, command queue with mailboxes, tokens and signatures,
// EQs with command, page request, port and completion events, pages given and taken, capabilities, UARs, PDs,
// transport domains, queue counters, CQs with moderation and compressed receive completions, physical and translated
// memory keys, the reserved LKey, send and receive queues with their states, TIS, TIR, RQT, RSS, flow tables that are
// really walked, vport context and counters, local loopback, the port's registers, a free-running and a real-time
// clock that stamp completions, checksums in both directions, LSO, VLAN stripping, BlueFlame. For RDMA: QPs of RC and
// UD, and QP1, with their states; RoCE version 1 and 2 over IPv4 and IPv6 with the invariant checksum; SEND, RDMA
// WRITE, with and without immediate, RDMA READ; acknowledgements, repeats, receivers that are not ready; shared
// receive queues (RMP), XRC's objects, memory keys that are changed by UMR.
//
// # What a generation or a virtual function differs in
//
// Newer firmware tells device_frequency_khz, without which Linux has no hardware clock, and lets local loopback be
// switched. From ConnectX-5 on no headers need to be inline in a send WQE. A virtual function does not manage vports
// or the switch: it has no L2 table, hears only its own addresses however it asks, may have been given none, and has
// its own ID where pages are spoken of (or needs none, Options.HostPages). Port registers can be read; that writes
// are taken and do nothing is inferred from Linux, whose driver writes the MTU on virtual functions too and gives up
// where that fails. BAR 0 is 1 MB. More than this, real generations differ in what is listed below. Speeds above 100
// Gb/s are not modelled.
//
// # Local loopback
//
// Two things have a say. The vport turns unicast frames for its own addresses round, and copies of those for its
// groups, unless disable_uc_local_lb and disable_mc_local_lb are set; firmware begins with both clear (Linux sets
// them at start). A TIR drops what a queue of the same transport domain sent unless its bits say that it lets
// unicast, or multicast, in. Linux calls that field self_lb_block and sets it to let in, and so do rdma-core and
// DPDK: its driver's self-test, which sends a frame to its own address, is passed by this model (proof/lab). Firmware
// without self_lb_en_modifiable keeps what the TIR was made with.
//
// # What there is not
//
// A driver that requests one of these gets an error status and a violation, and the capability is not claimed:
// striding receive queues, LRO, compressed send completions, multi-packet WQEs, inner headers of tunnels, QPs of UC
// and DC, XRC's data path, atomic operations, multicast groups of RoCE, congestion control (its parameters are kept),
// KLM keys, flow counters and header rewriting, transmit steering, several vports (SR-IOV: a virtual function is
// modelled without its physical one), ETS and PPS. Firmware syndromes are the model's own except for those that are
// known. Commands take no time: each is done in the Step after its doorbell. A connection sends up to 64 packets
// ahead; an RDMA READ goes alone.
//
// # Refusals and warnings
//
// Firmware refuses a command by its status, a queue a WQE by an error completion: both are refused, as are doorbells
// of objects that do not exist. Told is what the manual forbids and cards tolerate: reserved bits in commands,
// registers and WQEs, objects that are left at the end, a doorbell record or a ring that is written after the
// doorbell, a page that is not aligned to its size.
//
// # Whose pages are whose
//
// Each object's context is in a page that the driver gave, 64 to a page, and is read back when the object goes: a
// host that wrote there is found out. A firmware with no room refuses with status 0fh and requests pages by an event.
//
// # Doorbells
//
// Drivers only ever write UAR pages. The model leaves a pattern in each word, so that a word that holds something
// else was stored to: by a pointer, then Step finds it, or by a trapped access, then it is served at once. A
// BlueFlame register with all words of the WQE that its first word announces holds a pushed WQE. With fewer, it is a
// doorbell: at once if it was trapped on a page where nothing was ever pushed, otherwise when no more words come (the
// next Step, or 100 µs for trapped ones). Two stores to one doorbell through a pointer between two Steps are one to
// the model, as they are not to a card: who arms more than one CQ by pointer has to expect that.
//
// # What a frame costs on the bus
//
// A send: a store for each 64 bytes pushed (write-combined; eight bytes for a plain doorbell); one DMA read for the
// WQEs if they were not pushed (up to 256 bytes at once); one for each data segment; one write for a CQE if the WQE
// requested one. A receive: one read of the doorbell record when the queue looks empty; one of up to 512 bytes of
// WQEs; a write for each data segment; a write for the CQE, or, of a compressed session, one for its title and one
// for each eight; an EQE and an interrupt if the CQ is armed. A real card reads in bursts of its read request size;
// the model does not split.
package mlx5sim
