package ena

import "unsafe"

// Descriptors are two words each, and written as such. The copy to an LLQ entry and the compiler's own copies load more
// than one field at a time, and would stall on narrower stores just before.

// Transmit descriptor (ena_eth_io_tx_desc): written by software.
type txDesc struct {
	ctrl uint64 // length 15:0 without the pushed part, request ID 15:10 in 21:16 and 9:0 in 63:54, see txXxx
	addr uint64 // address 47:0, header length 63:56
}

const (
	txMeta    = 1 << 23 // a meta descriptor
	txPhase   = 24
	txFirst   = 1 << 26
	txLast    = 1 << 27
	txCompReq = 1 << 28 // post a completion

	txIDHi, txIDLo = 16, 54 // position of a request ID's bits 15:10 and 9:0
	txHeader       = 56

	// Meta descriptor (ena_eth_io_tx_meta_desc): this one requests no offload.
	metaExtValid = 1 << 14
	metaExtended = 1 << 20
	metaStore    = 1 << 21
)

// Transmit completion (ena_eth_io_tx_cdesc): written by the device, read as one word.
//
//	15:0 request ID, 23:16 status, 24 phase, 47:32 queue, 63:48 submission queue head
type txCompletion uint64

// Receive descriptor (ena_eth_io_rx_desc): written by software.
type rxDesc struct {
	ctrl uint64 // length 15:0, phase 24 and rxWhole, request ID 47:32
	addr uint64 // 47:0
}

// rxWhole: first, last, completion requested. The definitions request bit 5 to be set; no published driver sets it,
// and devices take it so.
const rxWhole = 1<<26 | 1<<27 | 1<<28

const rxDescPhase, rxDescID = 24, 32

// Receive completion (ena_eth_io_rx_cdesc_base): written by the device.
type rxCompletion struct {
	status uint32
	length uint16
	id     uint16
	hash   uint32
	queue  uint16
	offset uint8
	_      uint8
}

const (
	rxPhase     = 24
	rxFirst     = 1 << 26
	rxLast      = 1 << 27
	rxL3Err     = 1 << 13
	rxL4Err     = 1 << 14
	rxL4Checked = 1 << 16 // with rxL4Err: wrong; without: right (ena_eth_io_defs.h; Linux's ena_rx_checksum uses both)
	rxFragment  = 1 << 15
	rxL3IPv4    = 8 // l3_proto_idx, 4:0
	rxL3Mask    = 0x1f
)

const (
	descSize = 16 // of both descriptors and the receive completion
	txCQE    = 8
	room     = 2 * descSize // in front of each frame, for an LLQ entry's descriptors
)

var (
	_ [descSize]byte = [unsafe.Sizeof(txDesc{})]byte{}
	_ [descSize]byte = [unsafe.Sizeof(rxDesc{})]byte{}
	_ [descSize]byte = [unsafe.Sizeof(rxCompletion{})]byte{}
)
