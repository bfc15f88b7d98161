package efa

import "unsafe"

// Descriptors are arrays of whole words, and are written and read as such, because the copy into an LLQ entry loads
// more than one field at a time.

// A work queue entry of the send queue starts with a meta descriptor (efa_io_tx_meta_desc), written by software:
//
//	word 0  15:0 request ID, 23:16 ctrl1, 31:24 ctrl2, 47:32 destination queue pair, 63:48 bytes of data or number of pointers
//	word 1  31:0 immediate data, 47:32 address handle
//	word 2  31:0 Q_Key
//	word 3  must be zero
//
// and continues with the data, or with a pointer to it (efa_io_tx_buf_desc): 31:0 bytes, 55:32 local key; then the
// address.
type txMeta [4]uint64

const (
	txImmediate = 1 << (16 + 4) // ctrl1: word 1 has immediate data
	txInline    = 1 << (16 + 5) // data follows, not a pointer
	txIsMeta    = 1 << (16 + 7)
	txPhase     = 24 // ctrl2: 0 in the first round
	txFirst     = 1 << (24 + 2)
	txLast      = 1 << (24 + 3)
	txCompReq   = 1 << (24 + 4) // every send is completed: the provider refuses sends without a completion request
	txAlways    = txIsMeta | txFirst | txLast | txCompReq

	txDestination, txLength = 32, 48 // of word 0
	txHandle                = 32     // of word 1
	txKey                   = 32     // of a pointer's first word
)

// Receive descriptor (efa_io_rx_desc): written by software.
type rxDesc struct {
	addr uint64
	ctrl uint64 // request ID 15:0, bytes 31:16, local key 55:32, first 62, last 63
}

const (
	rxLength = 16
	rxKey    = 32
	rxWhole  = 1<<62 | 1<<63
)

// Completions (efa_io_cdesc_common): written by the device, the phase last. The first word has the same layout for
// sends and receives:
//
//	15:0 request ID, 23:16 status, 24 phase (1 in the first round), 26:25 queue, 27 immediate, 30:28 operation,
//	31 unsolicited, 47:32 queue pair; and for a receive 63:48 bytes
const (
	cqPhase     = 24
	cqStatus    = 16
	cqImmediate = 1 << 27
	cqKind      = 0xFF<<16 | 3<<25 | 7<<28 | 1<<31 // the bits that identify a good completion of the expected kind
	cqSent      = 1 << 25                          // queue 1, operation 0 (send)
	cqReceived  = 2 << 25                          // queue 2
	cqPair      = 32
	cqLength    = 48
)

// Receive completion, extended (efa_io_rx_cdesc_ex).
type rxCompletion struct {
	common uint64
	from   uint64 // address handle 15:0, source queue pair 31:16, immediate data 63:32
	gid    [16]byte
}

// noHandle is the address handle of a sender that the device does not know.
const noHandle = 0xFFFF

const (
	rxCQE    = 32
	txCQE    = 16
	descSize = 16
	metaSize = 32
	grh      = 40 // before each datagram
	room     = 64 // before each message in its slot
)

var (
	_ [rxCQE]byte    = [unsafe.Sizeof(rxCompletion{})]byte{}
	_ [descSize]byte = [unsafe.Sizeof(rxDesc{})]byte{}
	_ [metaSize]byte = [unsafe.Sizeof(txMeta{})]byte{}
	_ [room - grh]struct{}
	_ [room - metaSize]struct{}
)

// Outcomes of a send or receive (efa_io_comp_status).
const (
	statusOK      = 0
	statusFlushed = 1
	statuses      = 19
)

var statusNames = [statuses]string{
	1: "flushed", 2: "qp_internal", 3: "unsupported_op", 4: "invalid_ah", 5: "invalid_lkey", 6: "bad_length",
	7: "remote_bad_address", 8: "remote_abort", 9: "remote_bad_qpn", 10: "remote_rnr", 11: "remote_bad_length",
	12: "remote_bad_status", 13: "unresponsive_remote", 14: "remote_unknown_peer", 15: "unreachable_remote",
	18: "remote_feature_mismatch",
}
