#include "textflag.h"

// Earlier stores to DMA memory must be visible to the device before the doorbell: DMB OSHST.

// func Store32(p *uint32, v uint32)
TEXT ·Store32(SB), NOSPLIT, $0-12
	MOVD p+0(FP), R0
	MOVW v+8(FP), R1
	DMB  $2
	MOVW R1, (R0)
	RET

// func Store64(p *uint64, v uint64)
TEXT ·Store64(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	DMB  $2
	MOVD R1, (R0)
	RET
