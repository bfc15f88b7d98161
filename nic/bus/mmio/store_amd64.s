//go:build !purego

#include "textflag.h"

// COPY copies CX blocks of 64 bytes from SI to DI and leaves DI behind the last. It uses AX, BX, DX, R10, R11 and Z16:
// the upper sixteen registers need no VZEROUPPER. MOVDIR64B (SI), DI is spelled in bytes: the assembler lacks it.
#define COPY \
	TESTQ     CX, CX           \
	JLE       copied           \
	MOVBLZX   ·pushWith(SB), AX \
	CMPL      AX, $1           \
	JEQ       wide             \
	JA        direct           \
stores:                            \
	MOVQ      0(SI), AX        \
	MOVQ      8(SI), BX        \
	MOVQ      16(SI), R10      \
	MOVQ      24(SI), R11      \
	MOVQ      AX, 0(DI)        \
	MOVQ      BX, 8(DI)        \
	MOVQ      R10, 16(DI)      \
	MOVQ      R11, 24(DI)      \
	MOVQ      32(SI), AX       \
	MOVQ      40(SI), BX       \
	MOVQ      48(SI), R10      \
	MOVQ      56(SI), R11      \
	MOVQ      AX, 32(DI)       \
	MOVQ      BX, 40(DI)       \
	MOVQ      R10, 48(DI)      \
	MOVQ      R11, 56(DI)      \
	ADDQ      $64, SI          \
	ADDQ      $64, DI          \
	DECQ      CX               \
	JNZ       stores           \
	JMP       copied           \
wide:                              \
	VMOVDQU64 (SI), Z16        \
	VMOVDQU64 Z16, (DI)        \
	ADDQ      $64, SI          \
	ADDQ      $64, DI          \
	DECQ      CX               \
	JNZ       wide             \
	JMP       copied           \
direct:                            \
	BYTE      $0x66; BYTE $0x0F; BYTE $0x38; BYTE $0xF8; BYTE $0x3E \
	ADDQ      $64, SI          \
	ADDQ      $64, DI          \
	DECQ      CX               \
	JNZ       direct           \
copied:

// func Store8(p *uint8, v uint8)
TEXT ·Store8(SB), NOSPLIT, $0-9
	MOVQ p+0(FP), DI
	MOVB v+8(FP), AX
	MOVB AX, (DI)
	RET

// func Store16(p *uint16, v uint16)
TEXT ·Store16(SB), NOSPLIT, $0-10
	MOVQ p+0(FP), DI
	MOVW v+8(FP), AX
	MOVW AX, (DI)
	RET

// func Store64(p *uint64, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), DI
	MOVQ v+8(FP), AX
	MOVQ AX, (DI)
	RET

// func RingDoorbell(rec *uint32, recVal uint32, db *uint64, v uint64)
TEXT ·RingDoorbell(SB), NOSPLIT, $0-32
	MOVQ rec+0(FP), SI
	MOVL recVal+8(FP), AX
	MOVQ db+16(FP), DI
	MOVQ v+24(FP), BX
	MOVL AX, (SI)
	MOVQ BX, (DI)
	RET

// func RingDoorbellWC(rec *uint32, recVal uint32, db *uint64, v uint64)
TEXT ·RingDoorbellWC(SB), NOSPLIT, $0-32
	MOVQ rec+0(FP), SI
	MOVL recVal+8(FP), AX
	MOVQ db+16(FP), DI
	MOVQ v+24(FP), BX
	MOVL AX, (SI)
	SFENCE
	MOVQ BX, (DI)
	SFENCE
	RET

// func CopyWC(dst, src unsafe.Pointer, n64 int)
TEXT ·CopyWC(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n64+16(FP), CX
	COPY
	RET

// func FenceWC()
TEXT ·FenceWC(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func PushWCRing(rec *uint32, recVal uint32, dst, src unsafe.Pointer, n64 int)
TEXT ·PushWCRing(SB), NOSPLIT, $0-40
	MOVQ rec+0(FP), SI
	MOVL recVal+8(FP), AX
	MOVL AX, (SI)
	MOVQ dst+16(FP), DI
	MOVQ src+24(FP), SI
	MOVQ n64+32(FP), CX
	SFENCE
	COPY
	SFENCE
	RET

// WriteBarrier has no instruction: stores to write-back memory are seen in program order, and the compiler moves none
// across a call.

// func WriteBarrier()
TEXT ·WriteBarrier(SB), NOSPLIT, $0-0
	RET

// func cpuid(leaf, sub uint32) (a, b, c, d uint32)
TEXT ·cpuid(SB), NOSPLIT, $0-24
	MOVL leaf+0(FP), AX
	MOVL sub+4(FP), CX
	CPUID
	MOVL AX, a+8(FP)
	MOVL BX, b+12(FP)
	MOVL CX, c+16(FP)
	MOVL DX, d+20(FP)
	RET
