//go:build !purego

#include "textflag.h"
#include "go_asm.h"

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

// func PushWQE(q *SendRing, tail, record uint32, window, src unsafe.Pointer, n64 int)
//
// With AVX-512 each block is loaded once and stored twice: a load of 64 bytes waits until the narrow stores that made the
// block have left the store buffer, and one such wait is enough. The blocks stay in Z16 to Z19 meanwhile, which need no
// VZEROUPPER. Without it, and for more than four blocks, the ring is filled by 8-byte stores first.
TEXT ·PushWQE(SB), NOSPLIT, $0-40
	MOVQ    q+0(FP), R8
	MOVL    tail+8(FP), R9
	MOVL    record+12(FP), R10
	MOVQ    window+16(FP), DI
	MOVQ    src+24(FP), SI
	MOVQ    n64+32(FP), CX
	MOVQ    SendRing_Base(R8), R11
	MOVL    SendRing_Mask(R8), R12
	MOVBLZX ·pushWith(SB), AX
	CMPL    AX, $1
	JNE     narrow
	CMPQ    CX, $4
	JGT     narrow
	TESTQ   CX, CX
	JLE     announced

	// Into the ring, which may wrap between any two blocks.
	VMOVDQU64 (SI), Z16
	MOVL      R9, AX
	ANDL      R12, AX
	SHLQ      $6, AX
	VMOVDQU64 Z16, (R11)(AX*1)
	CMPQ      CX, $1
	JEQ       announced
	VMOVDQU64 64(SI), Z17
	LEAL      1(R9), AX
	ANDL      R12, AX
	SHLQ      $6, AX
	VMOVDQU64 Z17, (R11)(AX*1)
	CMPQ      CX, $2
	JEQ       announced
	VMOVDQU64 128(SI), Z18
	LEAL      2(R9), AX
	ANDL      R12, AX
	SHLQ      $6, AX
	VMOVDQU64 Z18, (R11)(AX*1)
	CMPQ      CX, $3
	JEQ       announced
	VMOVDQU64 192(SI), Z19
	LEAL      3(R9), AX
	ANDL      R12, AX
	SHLQ      $6, AX
	VMOVDQU64 Z19, (R11)(AX*1)

announced:
	MOVQ   SendRing_Record(R8), AX
	MOVL   R10, (AX)
	SFENCE
	TESTQ  CX, CX
	JLE    pushed
	VMOVDQU64 Z16, (DI)
	CMPQ      CX, $1
	JEQ       pushed
	VMOVDQU64 Z17, 64(DI)
	CMPQ      CX, $2
	JEQ       pushed
	VMOVDQU64 Z18, 128(DI)
	CMPQ      CX, $3
	JEQ       pushed
	VMOVDQU64 Z19, 192(DI)

pushed:
	SFENCE
	RET

narrow:
	MOVQ SI, R8 // the source again, for the window
	MOVQ CX, R10
	MOVQ DI, BX
	XORL DX, DX

ring:
	CMPQ DX, CX
	JGE  ringed
	MOVL R9, AX
	ADDL DX, AX
	ANDL R12, AX
	SHLQ $6, AX
	LEAQ (R11)(AX*1), DI
	MOVQ 0(SI), AX
	MOVQ AX, 0(DI)
	MOVQ 8(SI), AX
	MOVQ AX, 8(DI)
	MOVQ 16(SI), AX
	MOVQ AX, 16(DI)
	MOVQ 24(SI), AX
	MOVQ AX, 24(DI)
	MOVQ 32(SI), AX
	MOVQ AX, 32(DI)
	MOVQ 40(SI), AX
	MOVQ AX, 40(DI)
	MOVQ 48(SI), AX
	MOVQ AX, 48(DI)
	MOVQ 56(SI), AX
	MOVQ AX, 56(DI)
	ADDQ $64, SI
	INCQ DX
	JMP  ring

ringed:
	MOVQ q+0(FP), R9
	MOVQ SendRing_Record(R9), AX
	MOVL record+12(FP), DX
	MOVL DX, (AX)
	MOVQ R8, SI
	MOVQ R10, CX
	MOVQ BX, DI
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
