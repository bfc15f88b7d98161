//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// COPY copies CX blocks of 64 bytes from SI to DI and leaves DI behind the last. It uses AX, BX, DX, R10, R11, Y0, Y1 and Z16:
// the upper sixteen registers need no VZEROUPPER, the lower ones do. MOVDIR64B (SI), DI is spelled in bytes: the assembler lacks it.
#define COPY \
	TESTQ     CX, CX           \
	JLE       copied           \
	MOVBLZX   ·pushWith(SB), AX \
	CMPL      AX, $2           \
	JCS       oneload          \
	JEQ       direct           \
pairs:                             \
	VMOVDQU   0(SI), Y0        \
	VMOVDQU   32(SI), Y1       \
	VMOVDQU   Y0, 0(DI)        \
	VMOVDQU   Y1, 32(DI)       \
	ADDQ      $64, SI          \
	ADDQ      $64, DI          \
	DECQ      CX               \
	JNZ       pairs            \
	VZEROUPPER                 \
	JMP       copied           \
oneload:                           \
	TESTL     AX, AX           \
	JNZ       wide             \
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

// WORD copies the 8 bytes at OFF, WORDS7 those from 8 on, through AX.
#define WORD(OFF, FROM, TO) \
	MOVQ OFF(FROM), AX \
	MOVQ AX, OFF(TO)

#define WORDS7(FROM, TO) \
	WORD(8, FROM, TO)  \
	WORD(16, FROM, TO) \
	WORD(24, FROM, TO) \
	WORD(32, FROM, TO) \
	WORD(40, FROM, TO) \
	WORD(48, FROM, TO) \
	WORD(56, FROM, TO)

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

// HALVES loads block NUM of the source, in two halves, and stores it into the ring, which may wrap between any two blocks.
#define HALVES(NUM, A, B) \
	VMOVDQU (NUM*64)(SI), A    \
	VMOVDQU (NUM*64+32)(SI), B \
	LEAL    NUM(R9), AX        \
	ANDL    R12, AX            \
	SHLQ    $6, AX             \
	VMOVDQU A, (R11)(AX*1)     \
	VMOVDQU B, 32(R11)(AX*1)

// WHOLE is HALVES in one load and one store.
#define WHOLE(NUM, Z) \
	VMOVDQU64 (NUM*64)(SI), Z  \
	LEAL      NUM(R9), AX      \
	ANDL      R12, AX          \
	SHLQ      $6, AX           \
	VMOVDQU64 Z, (R11)(AX*1)

// func PushWQE(q *SendRing, tail, record uint32, window, src unsafe.Pointer, n64 int)
//
// With AVX-512 each block is loaded once and stored twice: a load of 64 bytes waits until the narrow stores that made the
// block have left the store buffer, and one such wait is enough. The blocks stay in Z16 to Z19 meanwhile, which need no
// VZEROUPPER. AVX2 does the same by halves of blocks, in Y0 to Y7. Without either, and for more than four blocks, the ring is filled by 8-byte
// stores first.
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
	CMPQ    CX, $4
	JGT     narrow
	CMPL    AX, $3
	JEQ     halves
	CMPL    AX, $1
	JNE     narrow
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
	WHOLE(1, Z17)
	CMPQ      CX, $2
	JEQ       announced
	WHOLE(2, Z18)
	CMPQ      CX, $3
	JEQ       announced
	WHOLE(3, Z19)

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

halves:
	TESTQ CX, CX
	JLE   marked
	HALVES(0, Y0, Y1)
	CMPQ  CX, $1
	JEQ   marked
	HALVES(1, Y2, Y3)
	CMPQ  CX, $2
	JEQ   marked
	HALVES(2, Y4, Y5)
	CMPQ  CX, $3
	JEQ   marked
	HALVES(3, Y6, Y7)

marked:
	MOVQ    SendRing_Record(R8), AX
	MOVL    R10, (AX)
	SFENCE
	TESTQ   CX, CX
	JLE     sent
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	CMPQ    CX, $1
	JEQ     sent
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	CMPQ    CX, $2
	JEQ     sent
	VMOVDQU Y4, 128(DI)
	VMOVDQU Y5, 160(DI)
	CMPQ    CX, $3
	JEQ     sent
	VMOVDQU Y6, 192(DI)
	VMOVDQU Y7, 224(DI)

sent:
	SFENCE
	VZEROUPPER
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
	WORD(0, SI, DI)
	WORDS7(SI, DI)
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

// Masks of the words of a block: all but the first; the first; the data of a first block, from the sixth on; the second pair; the fifth.
DATA ·words<>+0(SB)/2, $0xFFFE
DATA ·words<>+2(SB)/2, $1
DATA ·words<>+4(SB)/2, $0xFFE0
DATA ·words<>+6(SB)/2, $2
DATA ·words<>+8(SB)/2, $0x10
GLOBL ·words<>(SB), RODATA|NOPTR, $10

// BLOCK makes the block at number NUM behind the first in register Z from the data at OFF. Its header is BX, or R10 where it is the
// last. It stores the block into the ring but for the header, and then the header.
#define BLOCK(NUM, OFF, Z) \
	VMOVDQU64    OFF(SI), Z           \
	MOVL         $0x3C000080, BX      \
	CMPL         CX, $(NUM+1)         \
	CMOVLEQ      R10, BX              \
	VPBROADCASTD BX, K2, Z            \
	LEAL         NUM(R9), AX          \
	ANDL         R12, AX              \
	SHLQ         $6, AX               \
	VMOVDQU32    Z, K1, (R8)(AX*1)    \
	MOVL         BX, (R8)(AX*1)

// LATTER is BLOCK by halves, A and B. A masked store of 32 bytes is dear on some processors, so the words behind the header are stored apart.
#define LATTER(NUM, OFF, A, B) \
	VMOVDQU      OFF(SI), A            \
	VMOVDQU      (OFF+32)(SI), B       \
	VEXTRACTI128 $1, A, X8             \
	MOVL         $0x3C000080, BX       \
	CMPL         CX, $(NUM+1)          \
	CMOVLEQ      R10, BX               \
	VMOVD        BX, X9                \
	VPBLENDD     $1, Y9, A, A          \
	LEAL         NUM(R9), AX           \
	ANDL         R12, AX               \
	SHLQ         $6, AX                \
	VMOVDQU      B, 32(R8)(AX*1)       \
	VMOVDQU      X8, 16(R8)(AX*1)      \
	MOVQ         (OFF+8)(SI), R13      \
	MOVQ         R13, 8(R8)(AX*1)      \
	MOVL         (OFF+4)(SI), R13      \
	MOVL         R13, 4(R8)(AX*1)      \
	MOVL         BX, (R8)(AX*1)

// FRONT stores the first block into the ring, its header last, and into the window, unless DI is 0. Y0 and Y1 are the block, BX and DX its first
// two words, X8 the other half of Y0.
#define FRONT \
	ANDL    R12, R9             \
	SHLQ    $6, R9              \
	VMOVDQU Y1, 32(R8)(R9*1)    \
	VMOVDQU X8, 16(R8)(R9*1)    \
	MOVQ    DX, 8(R8)(R9*1)     \
	MOVQ    BX, AX              \
	SHRQ    $32, AX             \
	MOVL    AX, 4(R8)(R9*1)     \
	MOVL    BX, (R8)(R9*1)      \
	TESTQ   DI, DI              \
	JEQ     done                \
	SFENCE                      \
	VMOVDQU Y0, (DI)            \
	VMOVDQU Y1, 32(DI)

// BEHIND4 stores the third and fourth of CX blocks into the window, from Z18 and Z19, and returns. BEHIND8 does it by halves.
#define BEHIND4 \
	CMPL      CX, $2            \
	JEQ       told              \
	VMOVDQU64 Z18, 128(DI)      \
	CMPL      CX, $3            \
	JEQ       told              \
	VMOVDQU64 Z19, 192(DI)      \
told:                               \
	SFENCE                      \
made:                               \
	RET

#define BEHIND8 \
	CMPL    CX, $2              \
	JEQ     gone                \
	VMOVDQU Y4, 128(DI)         \
	VMOVDQU Y5, 160(DI)         \
	CMPL    CX, $3              \
	JEQ     gone                \
	VMOVDQU Y6, 192(DI)         \
	VMOVDQU Y7, 224(DI)         \
gone:                               \
	SFENCE                      \
done:                               \
	VZEROUPPER                  \
	RET

// NARROW fills the blocks behind the first in the ring by stores of 8 bytes, up to the end of the entry. R13 is where the next block's data
// would begin if its header were data.
#define NARROW \
	MOVL $1, DX \
behind: \
	CMPL DX, CX \
	JCC  filled \
	LEAL (R9)(DX*1), BX \
	ANDL R12, BX \
	SHLQ $6, BX \
	ADDQ R8, BX \
	MOVL 4(R13), AX \
	MOVL AX, 4(BX) \
	WORDS7(R13, BX) \
	ADDQ $60, R13 \
	INCL DX \
	MOVL $0x3C000080, AX \
	CMPL DX, CX \
	CMOVLEQ R10, AX \
	MOVL AX, (BX) \
	JMP  behind \
filled:

// WINDOW stores the entry from the ring into the window, block by block, since the ring may wrap between any two.
#define WINDOW \
	MOVL CX, R13 \
window: \
	MOVL R9, SI \
	ANDL R12, SI \
	SHLQ $6, SI \
	ADDQ R8, SI \
	MOVL $1, CX \
	COPY \
	INCL R9 \
	DECL R13 \
	JNZ  window \
	SFENCE

// func PushInline(q *SendRing, tail, n64 uint32, data unsafe.Pointer, length uint32, c0, c1 uint64, window unsafe.Pointer)
//
// $0x3C000080 is the header of a segment that fills its block, 60 bytes; $0x2C000080 that of the first block, 44. With AVX-512
// each block is made in a register, Z16 to Z19, which need no VZEROUPPER, and stored from there to ring and window. K1 is all
// words of a block but the first, K2 the first. The first block's load comes last, since it waits for the narrow stores that made the reply.
// AVX2 does it by halves, Y0 to Y7. Without either, and for more than four blocks, the window is filled from the ring.
TEXT ·PushInline(SB), NOSPLIT, $0-56
	MOVQ    q+0(FP), DX
	MOVL    tail+8(FP), R9
	MOVL    n64+12(FP), CX
	MOVQ    data+16(FP), SI
	MOVL    length+24(FP), R10
	MOVQ    window+48(FP), DI
	MOVQ    SendRing_Base(DX), R8
	MOVL    SendRing_Mask(DX), R12
	MOVL    $0x2C000080, R11
	CMPL    CX, $1
	JHI     several
	MOVL    R10, R11
	ORL     $0x80000000, R11
	BSWAPL  R11
	JMP     headers

several:
	IMUL3L  $60, CX, AX
	SUBL    AX, R10
	ADDL    $76, R10 // length - 44 - 60 * (n64 - 2)
	ORL     $0x80000000, R10
	BSWAPL  R10

headers: // R11 is the first segment's, R10 the last one's
	MOVBLZX ·pushWith(SB), AX
	CMPL    CX, $4
	JHI     narrow
	CMPL    AX, $3
	JEQ     halves
	CMPL    AX, $1
	JNE     narrow
	KMOVW   ·words<>+0(SB), K1
	KMOVW   ·words<>+2(SB), K2
	CMPL    CX, $1
	JLS     head
	BLOCK(1, 40, Z17)
	CMPL    CX, $2
	JEQ     head
	BLOCK(2, 100, Z18)
	CMPL    CX, $3
	JEQ     head
	BLOCK(3, 160, Z19)

head:
	KMOVW        ·words<>+4(SB), K3
	VMOVDQU32.Z  -20(SI), K3, Z16
	MOVQ         c0+32(FP), BX
	VPBROADCASTQ BX, K2, Z16
	KMOVW        ·words<>+6(SB), K4
	VPBROADCASTQ c1+40(FP), K4, Z16
	KMOVW        ·words<>+8(SB), K5
	VPBROADCASTD R11, K5, Z16
	ANDL         R12, R9
	SHLQ         $6, R9
	VMOVDQU32    Z16, K1, (R8)(R9*1)
	MOVL         BX, (R8)(R9*1)
	TESTQ        DI, DI
	JEQ          made
	SFENCE
	VMOVDQU64    Z16, (DI)
	CMPL         CX, $1
	JLS          told
	VMOVDQU64    Z17, 64(DI)
	BEHIND4

halves:
	CMPL CX, $1
	JLS  front
	LATTER(1, 40, Y2, Y3)
	CMPL CX, $2
	JEQ  front
	LATTER(2, 100, Y4, Y5)
	CMPL CX, $3
	JEQ  front
	LATTER(3, 160, Y6, Y7)

front: // Y0 is control, header and 12 bytes of data, Y1 the other 32
	MOVQ        c0+32(FP), BX
	MOVQ        c1+40(FP), DX
	VMOVDQU     12(SI), Y1
	VMOVDQU     (SI), X8
	VPSLLDQ     $4, X8, X8
	VMOVD       R11, X9
	VPBLENDD    $1, X9, X8, X8
	VMOVQ       BX, X0
	VPINSRQ     $1, DX, X0, X0
	VINSERTI128 $1, X8, Y0, Y0
	FRONT
	CMPL        CX, $1
	JLS         gone
	VMOVDQU     Y2, 64(DI)
	VMOVDQU     Y3, 96(DI)
	BEHIND8

narrow:
	LEAQ 40(SI), R13
	NARROW
	MOVL R9, BX
	ANDL R12, BX
	SHLQ $6, BX
	ADDQ R8, BX
	MOVQ c0+32(FP), DX
	MOVQ c1+40(FP), AX
	MOVQ AX, 8(BX)
	MOVL R11, 16(BX)
	MOVL (SI), AX
	MOVL AX, 20(BX)
	MOVQ 4(SI), AX
	MOVQ AX, 24(BX)
	MOVQ 12(SI), AX
	MOVQ AX, 32(BX)
	MOVQ 20(SI), AX
	MOVQ AX, 40(BX)
	MOVQ 28(SI), AX
	MOVQ AX, 48(BX)
	MOVQ 36(SI), AX
	MOVQ AX, 56(BX)
	MOVQ DX, AX
	SHRQ $32, AX
	MOVL AX, 4(BX)
	MOVL DX, (BX)
	TESTQ DI, DI
	JEQ  made
	SFENCE
	WINDOW
	RET

// func PushHeaded(q *SendRing, tail, n64 uint32, head, data unsafe.Pointer, length uint32, window unsafe.Pointer)
//
// The same three ways as PushInline. The first block is put together from words of 8 bytes, as they were stored: a wide load of them would wait until they have
// left the store buffer.
TEXT ·PushHeaded(SB), NOSPLIT, $0-48
	MOVQ    q+0(FP), DX
	MOVL    tail+8(FP), R9
	MOVL    n64+12(FP), CX
	MOVQ    head+16(FP), R11
	MOVQ    data+24(FP), SI
	MOVL    length+32(FP), R10
	MOVQ    window+40(FP), DI
	MOVQ    SendRing_Base(DX), R8
	MOVL    SendRing_Mask(DX), R12
	IMUL3L  $60, CX, AX
	SUBL    AX, R10
	ADDL    $120, R10 // length - 60 * (n64 - 2)
	ORL     $0x80000000, R10
	BSWAPL  R10
	MOVBLZX ·pushWith(SB), AX
	CMPL    CX, $4
	JHI     narrow
	CMPL    AX, $3
	JEQ     halves
	CMPL    AX, $1
	JNE     narrow
	VMOVQ   0(R11), X16
	VMOVHPS 8(R11), X16, X16
	VMOVQ   16(R11), X17
	VMOVHPS 24(R11), X17, X17
	VMOVQ   32(R11), X18
	VMOVHPS 40(R11), X18, X18
	VMOVQ   48(R11), X19
	VMOVHPS 56(R11), X19, X19
	KMOVW   ·words<>+0(SB), K1
	KMOVW   ·words<>+2(SB), K2
	VINSERTI32X4 $1, X17, Z16, Z16
	VINSERTI32X4 $2, X18, Z16, Z16
	VINSERTI32X4 $3, X19, Z16, Z16
	BLOCK(1, -4, Z17)
	CMPL    CX, $2
	JEQ     head
	BLOCK(2, 56, Z18)
	CMPL    CX, $3
	JEQ     head
	BLOCK(3, 116, Z19)

head:
	MOVL      (R11), BX
	ANDL      R12, R9
	SHLQ      $6, R9
	VMOVDQU32 Z16, K1, (R8)(R9*1)
	MOVL      BX, (R8)(R9*1)
	TESTQ     DI, DI
	JEQ       made
	SFENCE
	VMOVDQU64 Z16, (DI)
	VMOVDQU64 Z17, 64(DI)
	BEHIND4

halves:
	LATTER(1, -4, Y2, Y3)
	CMPL CX, $2
	JEQ  front
	LATTER(2, 56, Y4, Y5)
	CMPL CX, $3
	JEQ  front
	LATTER(3, 116, Y6, Y7)

front:
	MOVQ        (R11), BX
	MOVQ        8(R11), DX
	VMOVQ       BX, X0
	VPINSRQ     $1, DX, X0, X0
	VMOVQ       16(R11), X8
	VPINSRQ     $1, 24(R11), X8, X8
	VINSERTI128 $1, X8, Y0, Y0
	VMOVQ       32(R11), X1
	VPINSRQ     $1, 40(R11), X1, X1
	VMOVQ       48(R11), X9
	VPINSRQ     $1, 56(R11), X9, X9
	VINSERTI128 $1, X9, Y1, Y1
	FRONT
	VMOVDQU     Y2, 64(DI)
	VMOVDQU     Y3, 96(DI)
	BEHIND8

narrow:
	LEAQ -4(SI), R13
	NARROW
	MOVL R9, BX
	ANDL R12, BX
	SHLQ $6, BX
	ADDQ R8, BX
	WORD(56, R11, BX)
	WORD(48, R11, BX)
	WORD(40, R11, BX)
	WORD(32, R11, BX)
	WORD(24, R11, BX)
	WORD(16, R11, BX)
	WORD(8, R11, BX)
	MOVL 4(R11), AX
	MOVL AX, 4(BX)
	MOVL (R11), AX
	MOVL AX, (BX)
	TESTQ DI, DI
	JEQ  made
	SFENCE
	WINDOW
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
