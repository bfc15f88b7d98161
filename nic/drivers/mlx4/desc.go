package mlx4

import (
	"unsafe"

	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

const (
	cqeSize   = 32
	txbb      = mlxkit.Block // size of the basic blocks of a send WQE
	rxWQE     = 16           // a receive WQE is one data segment
	maxBlocks = 4            // per send WQE here: half of a 512-byte BlueFlame register

	// A WQE with an inline frame: 16 bytes of control, then inline segments. A segment must not cross a 64-byte line,
	// so each block starts with the four-byte header of one, which contains its length.
	inlineFirst = txbb - 16 - 4 // bytes of the frame in the first block
	inlineNext  = txbb - 4      // and in each following block

	// The device prefetches up to 2 KiB after the current WQE. This part of the ring is never posted, so that the
	// prefetched blocks are stamped (Linux, mlx4_en.h: HEADROOM).
	headroom = 2048/txbb + 1

	// shortest is the minimum inline length of a WQE (Linux, mlx4_en: MIN_PKT_LEN).
	shortest = 17
)

// inlineMax returns the longest frame that fits a WQE of that many blocks.
func inlineMax(blocks uint32) uint32 { return inlineFirst + (blocks-1)*inlineNext }

// cqe is a completion (Linux, include/linux/mlx4/cq.h: mlx4_cqe, mlx4_err_cqe). All fields are big-endian; last is
// loaded in memory order.
type cqe struct {
	qpn       uint32 // 23:0
	rss       uint32
	remote    uint32 // of a datagram: with a GRH 31, our path bits 30:24, the sender's QP 23:0
	source    uint32 // of a datagram: SL 31:28, the sender's LID 15:0
	flags     uint32 // in our order: bad FCS in 31:24
	byteCount uint32
	last      uint64
}

// Fields of a completion in host order. last contains wqe_index 15:0 (big-endian), checksum 31:16 (of an error: vendor
// syndrome 23:16 and syndrome 31:24), owner 63, send 62, and opcode 60:56.
const (
	cqeOwner = 63 // the bit
	cqeKind  = 56 // from here up: opcode, with the owner bit on top

	kindMask    = 0x7F
	kindReceive = 3    // opcodes up to this one are those of received frames
	kindSend    = 0x40 // set for send completions

	opcodeMask  = 0x1F
	opcodeError = 0x1E

	cqeBadFCS = 1 << 4 << 24 // in flags

	cqeEmpty = 0xCC // the value that firmware expects in every byte of entries that the device owns (Linux, cq.c)
)

// emptyCQ passes ownership of all entries to the device.
func emptyCQ(mem unsafe.Pointer, entries uint32) {
	b := unsafe.Slice((*byte)(mem), entries*cqeSize)
	for i := range b {
		b[i] = cqeEmpty
	}
}

// Control segment of a send WQE (Linux, include/linux/mlx4/qp.h: mlx4_wqe_ctrl_seg), in the device's order:
//
//	0  owner 31, index of the WQE 23:8 where BlueFlame is used, opcode 4:0
//	4  QP number 31:8 where BlueFlame is used, length in units of 16 bytes 5:0
//	8  flags: completion 3:2, solicited (here: no ICRC) 1
//	12 immediate: none
//
// With BlueFlame bits 15 and 14 of the second dword, which are the QP number's 7 and 6, still request a VLAN tag to
// be put in. Numbers of queues that use it have them clear.
const (
	wqeSend = 0x0A

	ownerBit = uint32(1) << 31
	stamp    = ^ownerBit // first dword of a free block, with the owner bit of the previous lap

	// Of a raw frame the solicited bit means that no ICRC is appended (rdma-core, providers/mlx4: IBV_QPT_RAW_PACKET).
	flagNoICRC = uint64(1<<1) << 24
	// flagComplete requests a completion: 3 in the completion field.
	flagComplete = uint64(3<<2) << 24

	inlineSegment = uint32(1) << 31
)

// Compile-time checks of the device's layout.
var (
	_ [cqeSize]byte = [unsafe.Sizeof(cqe{})]byte{}
	_ [rxWQE]byte   = [unsafe.Sizeof(mlxkit.DataSegment{})]byte{}
	_ [20]byte      = [unsafe.Offsetof(cqe{}.byteCount)]byte{}
	_ [24]byte      = [unsafe.Offsetof(cqe{}.last)]byte{}
)
