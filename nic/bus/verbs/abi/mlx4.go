package abi

// MLX4IBAllocUcontextResp describes the device to a new context.
type MLX4IBAllocUcontextResp struct {
	DevCaps       uint32
	QPTabSize     uint32
	BfRegSize     uint16
	BfRegsPerPage uint16
	CQESize       uint32
}

// MLX4IBAllocUcontextRespV3 is the same in version 3 of the interface.
type MLX4IBAllocUcontextRespV3 struct {
	QPTabSize     uint32
	BfRegSize     uint16
	BfRegsPerPage uint16
}

// MLX4IBAllocPDResp has the number of a protection domain.
type MLX4IBAllocPDResp struct {
	PDN      uint32
	Reserved uint32
}

// MLX4IBCreateCQ has the addresses of a completion queue's entries and of its doorbell record.
type MLX4IBCreateCQ struct {
	BufAddr uint64
	DBAddr  uint64
}

// MLX4IBCreateCQResp has the number of a completion queue.
type MLX4IBCreateCQResp struct {
	CQN      uint32
	Reserved uint32
}

// MLX4IBCreateQP has the addresses of a queue pair's rings and of its receive queue's doorbell record, and the size of
// its send queue.
type MLX4IBCreateQP struct {
	BufAddr      uint64
	DBAddr       uint64
	LogSQBBCount uint8
	LogSQStride  uint8
	SQNoPrefetch uint8
	Reserved     uint8
	InlRecvSz    uint32
}
