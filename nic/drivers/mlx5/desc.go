package mlx5

import (
	"unsafe"

	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

const (
	cqeSize   = 64
	wqebb     = mlxkit.Block // a send WQE is made of basic blocks
	rxWQE     = 16           // a receive WQE is one data segment
	maxBlocks = 4            // of a send WQE: half a BlueFlame register

	// room is left before each frame for its send WQE: control segment, and Ethernet segment up to its inline header.
	room = 30
)

// cqe is a completion (PRM, CQE Format). All fields are big-endian.
type cqe struct {
	tunneled   uint8 // lowest bit: parsed as a tunnel; the flags then refer to its inner headers
	_          [27]byte
	headers    uint16 // hds_ip_ext and l4_l3_hdr_type, as loaded by a little-endian host
	_          [14]byte
	byteCount  uint32
	_          [6]byte
	vendor     uint8  // of an error: vendor_error_syndrome
	syndrome   uint8  // of an error
	opcodeQPN  uint32 // s_wqe_opcode 31:24, of a send's error; qpn 23:0
	counterOwn uint32 // wqe_counter 31:16, signature 15:8, opcode 7:4, format 3:2, solicited 1, owner 0
}

// The value of headers for a datagram whose checksums the device found right: l3_ok, l4_ok, and UDP as l4_hdr_type
// (PRM, CQE Format; Linux's mlx5e_handle_csum uses the first two for CHECKSUM_UNNECESSARY, for tunnels with the inner
// headers).
const (
	cqeHeaders  = 7<<12 | 1<<2 | 1<<1
	cqeGoodUDP  = 2<<12 | 1<<2 | 1<<1
	cqeTunneled = 1
)

// Fields of the last dword, as loaded by a little-endian host.
const (
	cqeOwner  = 24 // lowest bit of the last byte
	cqeFormat = 26 // opcode and format start here

	cqeSend       = 2 << 2 // a frame was received (Responder, Send)
	cqeRequest    = 0 << 2 // a WQE was sent (Requester)
	cqeCompressed = 3      // format: the entry represents several completions

	cqeOpReqErr  = 13
	cqeOpRespErr = 14

	cqeInvalid = 0xF1 // opcode Invalid, owned by hardware in the first round
)

// emptyCQ marks all entries as owned by hardware.
func emptyCQ(mem unsafe.Pointer, entries uint32) {
	b := unsafe.Slice((*byte)(mem), entries*cqeSize)
	clear(b)
	for i := cqeSize - 1; i < len(b); i += cqeSize {
		b[i] = cqeInvalid
	}
}

// Send WQE (PRM, Send WQE Construction): control segment, Ethernet segment, then data segments, each aligned to 16
// bytes. In host byte order:
//
//	0  opmod 31:24, wqe_index 23:8, opcode 7:0
//	4  qpn 31:8, ds 5:0 (length in units of 16 bytes)
//	8  signature 31:24, fm_ce_se 7:0
//	12 immediate
//	16 checksum offloads, mss: none
//	28 inline_hdr_sz 25:16, then the inline header from byte 30
const (
	wqeSend = 0x0A
	wqeNop  = 0x00

	// ceAlways requests a completion: ce 2 in fm_ce_se, the last byte of the third dword.
	ceAlways = uint64(2<<2) << 24
)

// control returns the first eight bytes of a WQE, which are also the value of a doorbell.
func control(op, index, sqn, ds uint32) uint64 {
	return uint64(swap(index&0xFFFF<<8|op)) | uint64(swap(sqn<<8|ds))<<32
}

// Sizes of the device's structures, checked by the compiler.
var (
	_ [cqeSize]byte = [unsafe.Sizeof(cqe{})]byte{}
	_ [rxWQE]byte   = [unsafe.Sizeof(mlxkit.DataSegment{})]byte{}
	_ [28]byte      = [unsafe.Offsetof(cqe{}.headers)]byte{}
	_ [55]byte      = [unsafe.Offsetof(cqe{}.syndrome)]byte{}
)
