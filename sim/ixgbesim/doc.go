// Package ixgbesim models the Intel 82599 10 GbE controller and its successor X540: one port of a card of some Kind.
//
// It is written from the 82599 datasheet (section numbers refer to revision 3.4), and compared with Linux's unmodified
// ixgbe driver, which probes it, brings its link up and passes traffic (proof/lab). It shares no code with
// nic/drivers/ixgbe. Where the X540 differs (PHY, semaphores, NVM, reset, packet buffer), the sources are Linux's
// driver, and IEEE 802.3 for the PHY's registers. There the model proves no more than that driver does.
//
// # Implemented
//
// EEPROM by EERD and bit-banged, SFP+ module by I2CCTL, the X540's PHY by MSCA, the semaphores SWSM and SW_FW_SYNC,
// reset by CTRL, link by AUTOC, the PHY and LINKS, 128 receive and 128 transmit queues, legacy and advanced one-buffer
// descriptors, frames over several descriptors, jumbo frames, address, multicast and VLAN filters, VLAN insertion and
// stripping, queue filters by EtherType and by five-tuple, RSS, checksums in both directions, TCP and UDP segmentation,
// tail and head write-back, interrupts by MSI-X, MSI or INTx with throttling and automatic masking, statistics that are
// cleared on read, pause frames in both directions, the clock and the time stamps of PTP.
//
// # Not implemented
//
// A driver that requests one of these is refused with a violation: header split, virtualisation (VMDq, SR-IOV), traffic
// classes (DCB), MACsec and IPsec offload, FCoE, EEPROM writes. A queue with receive side coalescing receives each
// frame by itself. Flow director filters are accepted but never match: RSS distributes all frames. SCTP checksums are
// not inserted. The receive packet buffer is one FIFO, so a queue without descriptors and without drop enable blocks
// all others (as §7.1.8 describes for one traffic class).
//
// The two functions of a dual-port card share nothing here, neither semaphore nor EEPROM. MSI, VPD, I/O BAR, AER, ARI
// and SR-IOV are not in configuration space.
//
// # Warnings
//
// Deviations from the datasheet's order of enabling (§4.6), missing waits after a reset, reserved bits of registers and
// descriptors, and a tail that moves before ENABLE reads 1 are reported and executed, because iPXE, ixy and others do
// this on real cards.
//
// # Cost of a frame on the bus
//
// Descriptors are fetched in batches into an on-chip cache of 40 for each queue (§7.1.9, §7.2.3.4.1): one DMA read
// fetches all that is contiguous and fits, when the cache is empty and the tail moved, or, with PTHRESH set, when the
// cache contains fewer than PTHRESH and the host at least HTHRESH. A payload is one DMA read or write for each buffer.
// A receive descriptor is written back separately (§7.1.10), and so is a transmit descriptor with RS if WTHRESH is
// zero; otherwise WTHRESH or more are written back in one write (§7.2.3.5). So the echo of a single frame at WTHRESH 0
// is: payload write, descriptor write (received), tail write, descriptor read, payload read, descriptor write (sent);
// the receive descriptor itself is read in a batch with others. A real card splits at its read request size and at
// cache lines; the model does not.
package ixgbesim
