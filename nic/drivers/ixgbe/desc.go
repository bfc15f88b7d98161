package ixgbe

import (
	"unsafe"
)

// Advanced receive descriptor, read format (§7.1.6.1): written by software.
type rxRead struct {
	pkt uint64 // address of the buffer
	hdr uint64 // address of the header buffer, unused with one buffer; bit 0 is DD and must be zero
}

// Advanced receive descriptor, write-back format (§7.1.6.2): written by the device over the read format.
type rxWriteback struct {
	info   uint32 // packet type, RSS type
	rss    uint32 // RSS hash
	status uint32 // extended status 19:0, extended error 31:20
	length uint16 // bytes in the buffer, CRC stripped
	vlan   uint16
}

// position of length in the 64 bits from status on, which the device writes in one write, and Poll reads at once
const rxLength = 32

const (
	rxDD  = 1 << 0 // Descriptor Done
	rxEOP = 1 << 1 // End of Packet

	rxStamp = 1 << 16 // TS: RXSTMP has the frame's timestamp

	// Extended error: length error, undersize, oversize, CRC or symbol error. RXE (bit 29) is the OR of them; IPE (bit
	// 31) is the IPv4 header checksum, which fastpath verifies itself.
	rxErrors = 1 << 29

	// L4I: the device verified the UDP or TCP checksum; L4E: it is wrong (§7.1.11). Linux's ixgbe_rx_checksum uses
	// both. Because of an erratum, L4E may be set for a datagram without a checksum; L4I alone is never set for a wrong
	// one.
	rxL4I = 1 << 5
	rxL4E = 1 << 30
)

// Advanced transmit data descriptor, read format (§7.2.3.2.4): written by software.
type txRead struct {
	addr   uint64
	cmd    uint32 // DTALEN 15:0, DTYP 23:20, DCMD 31:24
	status uint32 // STA 3:0 with DD, POPTS 13:8, PAYLEN 31:14
}

const (
	txData     = 3 << 20 // DTYP 0011b: advanced data
	txStamp    = 1 << 19 // MAC.1588: keep a timestamp in TXSTMP
	txEOP      = 1 << 24 // DCMD.EOP
	txIFCS     = 1 << 25 // DCMD.IFCS: insert the CRC
	txRS       = 1 << 27 // DCMD.RS: write DD back
	txDEXT     = 1 << 29 // DCMD.DEXT: advanced format
	txWhole    = txData | txEOP | txIFCS | txDEXT
	txPayShift = 14

	txDD = 1 << 0 // STA.DD in the write-back format (§7.2.3.2.4)
)

const descSize = 16

// Compile-time checks of the device's layout.
var (
	_ [descSize]byte = [unsafe.Sizeof(rxRead{})]byte{}
	_ [descSize]byte = [unsafe.Sizeof(rxWriteback{})]byte{}
	_ [descSize]byte = [unsafe.Sizeof(txRead{})]byte{}
)
