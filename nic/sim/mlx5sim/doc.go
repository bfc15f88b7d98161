// Package mlx5sim models one physical function of an NVIDIA (Mellanox) ConnectX adapter: a ConnectX-4 (15b3:1013) with the
// capabilities of a real one that was recorded, and, with what they differ in for an Ethernet driver, a ConnectX-4 Lx (1015),
// a ConnectX-5 (1017) and a ConnectX-6 Dx (101d).
//
// It is written from what is public of the adapters' Programmer's Reference Manual (field names and offsets are the manual's),
// and held against Linux's unmodified mlx5_core (nic/lab), and against the recording of a ConnectX-4 with firmware 14.12.1220:
// the model answers each of its commands as the card did, but for the capabilities that it does not claim. It shares nothing
// with nic/mlx5.
//
// # What there is
//
// Initialization segment with health buffer and software reset, command queue with mailboxes, tokens and signatures, EQs with
// command, page request, port and completion events, pages given and taken, capabilities, UARs, PDs, transport domains, queue
// counters, CQs with moderation, physical and translated memory keys, the reserved LKey, send and receive queues with their
// states, TIS, TIR, RQT, RSS, flow tables that are really walked, vport context and counters, the port's registers, checksums
// in both directions, LSO, VLAN stripping, BlueFlame.
//
// # What there is not
//
// A driver that asks for one of these is told so by a status and a violation, and the capability is not claimed: striding
// receive queues, shared receive memory (RMP), LRO, CQE compression, multi-packet WQEs, inner headers of tunnels, queue pairs
// and RoCE, UMR, KLM keys, flow counters and header rewriting, transmit steering, several vports (SR-IOV), ETS. Firmware
// syndromes are the model's own. Commands take no time: each is done in the Step after its doorbell.
//
// # Whose pages are whose
//
// Each object's context lies in a page that the driver gave, 64 to a page, and is read back when the object goes: a host that
// wrote there is found out. A firmware with no room refuses with status 0fh and asks for pages by an event.
//
// # Doorbells
//
// Drivers only ever write UAR pages. The model leaves a pattern in each word, so that a word that holds something else was
// stored to: by a pointer, then Step finds it, or by a trapped access, then it is served at once. A BlueFlame register with
// all words of the WQE that its first word announces holds a pushed WQE. With fewer, it is a doorbell: at once if it was
// trapped on a page where nothing was ever pushed, else when no more words come (the next Step, or 100 µs for trapped ones). Two
// stores to one doorbell through a pointer between two Steps are one to the model, as they are not to a card: who arms more
// than one CQ by pointer has to expect that.
//
// # What a frame costs on the bus
//
// A send: a store for each 64 bytes pushed (write-combined; eight bytes for a plain doorbell); one DMA read for the WQEs if
// they were not pushed (up to 256 bytes at once); one for each data segment; one write for a CQE if the WQE asked for one. A
// receive: one read of the doorbell record when the queue looks empty; one of up to 512 bytes of WQEs; a write for each data
// segment; a write for the CQE; an EQE and an interrupt if the CQ is armed. A real card reads in bursts of its read request
// size; the model does not split.
package mlx5sim
