// Package mlx5sim models one function of an NVIDIA (Mellanox) ConnectX adapter, physical or virtual: a ConnectX-4
// (15b3:1013) with the capabilities recorded from a real one; its successors up to ConnectX-7 and BlueField-3, with the
// differences that an Ethernet driver sees; and their virtual functions (Profile).
//
// It is written from the public parts of the adapters' Programmer's Reference Manual (field names and offsets are the
// manual's), and compared with Linux's unmodified mlx5_core (proof/lab) and with the recording of a ConnectX-4 with
// firmware 14.12.1220: the model answers each of its commands as the card did, except for the capabilities that it does
// not report. It shares nothing with nic/drivers/mlx5.
//
// # Features
//
// Initialization segment with health buffer and software reset, command queue with mailboxes, tokens and signatures,
// EQs with command, page request, port and completion events, pages given and taken, capabilities, UARs, PDs, transport
// domains, queue counters, CQs with moderation and compressed receive completions, physical and translated memory keys,
// the reserved LKey, send and receive queues with their states, TIS, TIR, RQT, RSS, flow tables that are actually
// walked, with counters on newer firmware, vport context and counters, local loopback, the port's registers, a
// free-running and a real-time clock that stamp completions, checksums in both directions, LSO, VLAN stripping,
// BlueFlame. For RDMA: QPs of RC and UD, and QP1, with their states; RoCE version 1 and 2 over IPv4 and IPv6 with the
// invariant checksum; SEND and RDMA WRITE, with and without immediate, RDMA READ; acknowledgements, retransmission, RNR
// NAKs; shared receive queues (RMP), XRC's objects, memory keys that are changed by UMR.
//
// # Differences between generations and virtual functions
//
// Newer firmware reports device_frequency_khz, without which Linux has no hardware clock, and permits switching local
// loopback. From ConnectX-5 on, no headers need to be inline in a send WQE. A virtual function does not manage vports
// or the switch: it has no L2 table, receives only its own addresses whatever it requests, may have no MAC address
// assigned, and uses its own ID in page commands (or needs no pages, Options.HostPages). Port registers can be read;
// writes are accepted and ignored, which is inferred from Linux, whose driver writes the MTU on virtual functions too
// and gives up if that fails. BAR 0 is 1 MB. Other differences between real generations are in the features listed
// below as missing. Speeds above 100 Gb/s are not modelled.
//
// # Local loopback
//
// Two settings control it. The vport loops back unicast frames for its own addresses, and copies of multicast frames
// for its groups, unless disable_uc_local_lb and disable_mc_local_lb are set; firmware starts with both clear (Linux
// sets them at start). A TIR drops frames from a queue of the same transport domain unless its bits permit unicast, or
// multicast. Linux calls that field self_lb_block and sets it to permit them, and so do rdma-core and DPDK: the
// self-test of Linux's driver, which sends a frame to its own address, passes on this model (proof/lab). The bits are
// for the send queues that existed when they were set: Linux, whose TIRs are older than its queues, sets them again
// whenever it has created queues. Firmware without self_lb_en_modifiable keeps the bits from the TIR's creation, and
// later queues' frames are not dropped: Linux warns that "self loop back prevention is not supported".
//
// # Missing features
//
// A driver that requests one of these gets an error status and a violation, and the capability is not reported:
// striding receive queues, LRO, compressed send completions, multi-packet WQEs, inner headers of tunnels, QPs of UC and
// DC, XRC's data path, atomic operations, multicast groups of RoCE, congestion control and pause frames (what is set is
// stored, with a warning), KLM keys, dumps of flow counters, header rewriting, operations of device memory, transmit
// steering, several vports (SR-IOV: a virtual function is modelled without its physical one), ETS and PPS. Firmware
// syndromes are the model's own, except for known ones. Commands take no time: each is done in the Step after its
// doorbell. A connection sends up to 64 packets ahead; an RDMA READ is sent alone.
//
// # Errors and warnings
//
// Firmware rejects a command with a status, a queue rejects a WQE with an error completion: both are errors, as are
// doorbells of objects that do not exist. Actions that the manual forbids and cards tolerate are warnings: reserved
// bits in commands, registers and WQEs, objects that still exist at the end, a doorbell of a CQ that was
// destroyed, a doorbell record or a ring that is written after the doorbell, a page that is not aligned to its size.
//
// # Firmware pages
//
// Each object's context is in a page that the driver supplied, 64 to a page, and is read back when the object is
// destroyed, which detects a host that wrote there. Firmware without free pages rejects commands with status 0fh and
// requests pages with an event.
//
// # Doorbells
//
// Drivers only write to UAR pages. The model leaves a pattern in each word, so that a word with another value was
// written: either through a pointer, which Step detects, or by a trapped access, which is served immediately. A
// BlueFlame register with all words of the WQE that its first word announces has a pushed WQE. With fewer words, it is
// a doorbell: immediately if it was trapped on a page where nothing was ever pushed, otherwise when no more words come
// (the next Step, or 100 µs for trapped ones). Unlike a card, the model sees two stores to one doorbell through a
// pointer between two Steps as one. A driver that arms more than one CQ by pointer has to expect that.
//
// # PCIe transactions per frame
//
// A send: a store for each 64 bytes pushed (write-combined; eight bytes for a plain doorbell); one DMA read for the
// WQEs if they were not pushed (up to 256 bytes at once); one for each data segment; one write for a CQE if the WQE
// requested one. A receive: one read of the doorbell record when the queue looks empty; one of up to 512 bytes of WQEs;
// a write for each data segment; a write for the CQE or, in a compressed session, one for its title and one for each
// eight; an EQE and an interrupt if the CQ is armed. A real card reads in bursts of its read request size; the model
// does not split reads.
package mlx5sim
