//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// Barrier options (Arm ARM §C6.2, DMB): loads and stores of the outer shareable domain, and stores of the full system.
#define OSHLD $1
#define OSHST $2
#define ST    $14

// COPY copies R2 blocks of 64 bytes from R1 to R0 and leaves R0 behind the last. It uses R4 to R11. All loads of a block
// come first, so that its stores follow each other.
#define COPY \
	CMP  $0, R2              \
	BLE  copied              \
block:                           \
	LDP  (R1), (R4, R5)      \
	LDP  16(R1), (R6, R7)    \
	LDP  32(R1), (R8, R9)    \
	LDP  48(R1), (R10, R11)  \
	STP  (R4, R5), (R0)      \
	STP  (R6, R7), 16(R0)    \
	STP  (R8, R9), 32(R0)    \
	STP  (R10, R11), 48(R0)  \
	ADD  $64, R1             \
	ADD  $64, R0             \
	SUBS $1, R2              \
	BNE  block               \
copied:

// func Store8(p *uint8, v uint8)
TEXT ·Store8(SB), NOSPLIT, $0-9
	MOVD  p+0(FP), R0
	MOVBU v+8(FP), R1
	DMB   OSHST
	MOVB  R1, (R0)
	RET

// func Store16(p *uint16, v uint16)
TEXT ·Store16(SB), NOSPLIT, $0-10
	MOVD  p+0(FP), R0
	MOVHU v+8(FP), R1
	DMB   OSHST
	MOVH  R1, (R0)
	RET

// func Store32(p *uint32, v uint32)
TEXT ·Store32(SB), NOSPLIT, $0-12
	MOVD p+0(FP), R0
	MOVW v+8(FP), R1
	DMB  OSHST
	MOVW R1, (R0)
	RET

// func Store64(p *uint64, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	DMB  OSHST
	MOVD R1, (R0)
	RET

// func RingDoorbell(rec *uint32, recVal uint32, db *uint64, v uint64)
TEXT ·RingDoorbell(SB), NOSPLIT, $0-32
	MOVD rec+0(FP), R0
	MOVW recVal+8(FP), R1
	MOVD db+16(FP), R2
	MOVD v+24(FP), R3
	DMB  OSHST
	MOVW R1, (R0)
	DMB  OSHST
	MOVD R3, (R2)
	RET

// func RingDoorbellWC(rec *uint32, recVal uint32, db *uint64, v uint64)
TEXT ·RingDoorbellWC(SB), NOSPLIT, $0-32
	MOVD rec+0(FP), R0
	MOVW recVal+8(FP), R1
	MOVD db+16(FP), R2
	MOVD v+24(FP), R3
	DMB  OSHST
	MOVW R1, (R0)
	DSB  ST
	MOVD R3, (R2)
	DSB  ST
	RET

// func CopyWC(dst, src unsafe.Pointer, n64 int)
TEXT ·CopyWC(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R0
	MOVD src+8(FP), R1
	MOVD n64+16(FP), R2
	COPY
	RET

// func FenceWC()
TEXT ·FenceWC(SB), NOSPLIT, $0-0
	DSB ST
	RET

// BLOCK loads block NUM of the source into four vector registers and stores it into the ring, which may wrap between any two blocks.
#define BLOCK(NUM, A, B, C, D) \
	FLDPQ (NUM*64)(R1), (A, B)    \
	FLDPQ (NUM*64+32)(R1), (C, D) \
	ADDW  $NUM, R13, R2           \
	ANDW  R17, R2, R2             \
	ADD   R2<<6, R16, R2          \
	FSTPQ (A, B), (R2)            \
	FSTPQ (C, D), 32(R2)

// func PushWQE(q *SendRing, tail, record uint32, window, src unsafe.Pointer, n64 int)
//
// Each block is loaded once and stored twice, by pairs of 16 bytes; up to four of them stay in F0 to F15 meanwhile. More are copied block by block.
TEXT ·PushWQE(SB), NOSPLIT, $0-40
	MOVD  q+0(FP), R12
	MOVWU tail+8(FP), R13
	MOVW  record+12(FP), R14
	MOVD  src+24(FP), R1
	MOVD  n64+32(FP), R15
	MOVD  SendRing_Base(R12), R16
	MOVWU SendRing_Mask(R12), R17
	MOVD  SendRing_Record(R12), R3
	MOVD  window+16(FP), R0
	CMP   $4, R15
	BGT   many
	CMP   $0, R15
	BLE   announced
	BLOCK(0, F0, F1, F2, F3)
	CMP   $1, R15
	BEQ   announced
	BLOCK(1, F4, F5, F6, F7)
	CMP   $2, R15
	BEQ   announced
	BLOCK(2, F8, F9, F10, F11)
	CMP   $3, R15
	BEQ   announced
	BLOCK(3, F12, F13, F14, F15)

announced:
	DMB   OSHST
	MOVW  R14, (R3)
	DSB   ST
	CMP   $0, R15
	BLE   pushed
	FSTPQ (F0, F1), (R0)
	FSTPQ (F2, F3), 32(R0)
	CMP   $1, R15
	BEQ   pushed
	FSTPQ (F4, F5), 64(R0)
	FSTPQ (F6, F7), 96(R0)
	CMP   $2, R15
	BEQ   pushed
	FSTPQ (F8, F9), 128(R0)
	FSTPQ (F10, F11), 160(R0)
	CMP   $3, R15
	BEQ   pushed
	FSTPQ (F12, F13), 192(R0)
	FSTPQ (F14, F15), 224(R0)

pushed:
	DSB ST
	RET

many:
	MOVD R15, R19

ring:
	ANDW R17, R13, R2
	ADD  R2<<6, R16, R0
	LDP  (R1), (R4, R5)
	LDP  16(R1), (R6, R7)
	LDP  32(R1), (R8, R9)
	LDP  48(R1), (R10, R11)
	STP  (R4, R5), (R0)
	STP  (R6, R7), 16(R0)
	STP  (R8, R9), 32(R0)
	STP  (R10, R11), 48(R0)
	ADD  $64, R1
	ADDW $1, R13
	SUBS $1, R19
	BNE  ring
	DMB  OSHST
	MOVW R14, (R3)
	DSB  ST
	MOVD window+16(FP), R0
	MOVD src+24(FP), R1
	MOVD R15, R2
	COPY
	DSB  ST
	RET

// func WriteBarrier()
TEXT ·WriteBarrier(SB), NOSPLIT, $0-0
	DMB OSHST
	RET
