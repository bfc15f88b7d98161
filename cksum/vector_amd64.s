//go:build !purego

#include "textflag.h"

// Each 64-bit lane x of the input is added twice: whole to A, modulo 2^64, and its upper half, x>>32, to B. The sum of the lower halves is
// then A - B<<32, exactly, because it fits in 64 bits: three operations for 32 bytes, where separating the halves takes four.

// func sumVector(p *byte, n int) uint64
TEXT ·sumVector(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	VPXOR Y0, Y0, Y0 // A in Y0 to Y3
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	VPXOR Y4, Y4, Y4 // B in Y4 to Y7
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	SUBQ $128, CX
	JCS  rest

loop:
	VMOVDQU (SI), Y8
	VMOVDQU 32(SI), Y9
	VMOVDQU 64(SI), Y10
	VMOVDQU 96(SI), Y11
	VPADDQ  Y8, Y0, Y0
	VPADDQ  Y9, Y1, Y1
	VPADDQ  Y10, Y2, Y2
	VPADDQ  Y11, Y3, Y3
	VPSRLQ  $32, Y8, Y8
	VPSRLQ  $32, Y9, Y9
	VPSRLQ  $32, Y10, Y10
	VPSRLQ  $32, Y11, Y11
	VPADDQ  Y8, Y4, Y4
	VPADDQ  Y9, Y5, Y5
	VPADDQ  Y10, Y6, Y6
	VPADDQ  Y11, Y7, Y7
	ADDQ    $128, SI
	SUBQ    $128, CX
	JCC     loop

rest:
	ADDQ $128, CX
	JEQ  fold

more:
	VMOVDQU (SI), Y8
	VPADDQ  Y8, Y0, Y0
	VPSRLQ  $32, Y8, Y8
	VPADDQ  Y8, Y4, Y4
	ADDQ    $32, SI
	SUBQ    $32, CX
	JNE     more

fold:
	VPADDQ       Y1, Y0, Y0
	VPADDQ       Y3, Y2, Y2
	VPADDQ       Y5, Y4, Y4
	VPADDQ       Y7, Y6, Y6
	VPADDQ       Y2, Y0, Y0
	VPADDQ       Y6, Y4, Y4
	VPSLLQ       $32, Y4, Y5
	VPSUBQ       Y5, Y0, Y0 // the lower halves
	VPADDQ       Y4, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPADDQ       X1, X0, X0
	VPSRLDQ      $8, X0, X1
	VPADDQ       X1, X0, X0
	VMOVQ        X0, AX
	VZEROUPPER
	MOVQ         AX, ret+16(FP)
	RET
