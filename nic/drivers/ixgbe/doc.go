// Package ixgbe drives the Intel 82599 10 Gigabit Ethernet controller from user space, polling, with receive, rewrite
// and transmit fused into one loop.
//
// Source: Intel 82599 10 GbE Controller Datasheet, revision 3.4 (331520); section numbers in this package are its
// own.
//
//	8086:10fb  82599ES, SFP+
//	8086:10f7  82599 backplane, KX4
//	8086:10f8  82599 backplane, combined (KX, KX4, KR)
//	8086:10fc  82599 XAUI on a mezzanine card
//	8086:1528  X540-AT2, 10GBASE-T
//
// The X540 shares rings, filters, RSS and statistics. Its PHY, semaphores, NVM, reset and packet buffer are as
// Linux's ixgbe treats them, which is the source for them, and IEEE 802.3 clause 45 for the PHY's registers.
//
// Each receive slot owns one buffer permanently. A frame is rewritten in the buffer of its slot, a transmit
// descriptor points there, and the slot is posted again, in order, once that transmit is done. So there is no free
// list, no copy, and no way for a buffer to be received into while it is being sent.
//
// What one reply costs on the bus: one MMIO write (TDT), one transmit descriptor read, one payload read, one
// write-back. RDT is written once for many slots.
package ixgbe
