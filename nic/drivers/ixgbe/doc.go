// Package ixgbe drives the Intel 82599 10 Gigabit Ethernet controller from user space by polling, with receive, rewrite
// and transmit fused into one loop.
//
// Source: Intel 82599 10 GbE Controller Datasheet, revision 3.4 (331520); section numbers in this package refer to it.
//
//	8086:10fb  82599ES, SFP+
//	8086:10f7  82599 backplane, KX4
//	8086:10f8  82599 backplane, combined (KX, KX4, KR)
//	8086:10fc  82599 XAUI on a mezzanine card
//	8086:1528  X540-AT2, 10GBASE-T
//
// The X540 has the same rings, filters, RSS and statistics. The sources for its PHY, semaphores, NVM, reset and packet
// buffer are Linux's ixgbe, and IEEE 802.3 clause 45 for the PHY's registers.
//
// Each receive slot owns one buffer permanently. A frame is rewritten in the buffer of its slot, a transmit descriptor
// points to it, and the slot is posted again, in order, when that transmit is done. So there is no free list, no copy,
// and a buffer never receives while it is being sent.
//
// Cost of a reply on the bus: one MMIO write (TDT), one transmit descriptor read, one payload read, one write-back. RDT
// is written once for many slots.
package ixgbe
