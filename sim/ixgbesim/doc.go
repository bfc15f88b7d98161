// Package ixgbesim models the Intel 82599 10 GbE controller and its successor X540: one port of a card of some Kind.
//
// It is written from the 82599 datasheet (section numbers are revision 3.4's), and compared with Linux's unmodified
// ixgbe driver, which probes it, brings its link up and passes traffic (proof/lab). It shares nothing with
// nic/drivers/ixgbe. If the X540 differs (PHY, semaphores, NVM, reset, packet buffer) what Linux's driver does is the
// source, and IEEE 802.3 for the PHY's registers: there the model proves no more than that driver does.
//
// # What there is
//
// EEPROM by EERD and bit by bit, SFP+ module by I2CCTL, the X540's PHY by MSCA, the semaphores SWSM and SW_FW_SYNC,
// reset by CTRL, link by AUTOC, the PHY and LINKS, 128 receive and 128 transmit queues, legacy and advanced
// one-buffer descriptors, frames over several descriptors, jumbo frames, address, multicast and VLAN filters, VLAN
// insertion and stripping, queue filters by EtherType and by five-tuple, RSS, checksums in both directions, TCP and
// UDP segmentation, tail and head write-back, interrupts by MSI-X, MSI or INTx with throttling and automatic masking,
// the statistics with clear on read, pause frames in both directions.
//
// # What there is not
//
// A driver that requests one of these is refused with a violation: receive side coalescing, header split,
// virtualisation (VMDq, SR-IOV), traffic classes (DCB), MACsec and IPsec offload, FCoE, EEPROM writes. Flow director
// filters are taken and never match: RSS distributes all. SCTP checksums are not inserted. The receive packet buffer
// is one FIFO, so a queue without descriptors and without drop enable holds back all (§7.1.8 has it so for one
// traffic class).
//
// The two functions of a dual-port card share nothing here: no semaphore, no EEPROM. MSI, VPD, I/O BAR, AER, ARI and
// SR-IOV are not in configuration space.
//
// # Warnings
//
// The datasheet's order of enabling (§4.6), waits after a reset, reserved bits of registers and descriptors and a
// tail that moves before ENABLE reads 1 are reported and executed: iPXE, ixy and others leave them out on real cards.
//
// # What a frame costs on the bus
//
// Descriptors are fetched in batches into an on-chip cache of 40 for each queue (§7.1.9, §7.2.3.4.1): one DMA read
// fetches all that is contiguous and fits, when the cache is empty and the tail moved, or, with PTHRESH set, when the
// cache holds less than PTHRESH and the host at least HTHRESH. A payload is one DMA read or write for each buffer. A
// receive descriptor is written back on its own (§7.1.10), a transmit descriptor with RS on its own if WTHRESH is
// zero, otherwise WTHRESH or more in one write (§7.2.3.5). So one frame echoed alone, at WTHRESH 0, is: payload
// write, descriptor write (received), tail write, descriptor read, payload read, descriptor write (sent); the receive
// descriptor's own read comes in a batch with others. A real card splits at its read request size and at cache lines;
// the model does not.
package ixgbesim
