package mlx5sim

import "github.com/rebound-nic/rebound/sim/parts"

type frame struct {
	parts.Frame
	from    uint32 // transport domain that sent it; 0 from the wire
	made    uint64 // number of the queue that sent it, in the order of creation
	blocked bool   // a TIR blocked it from its own transport domain
}

func parse(b []byte) frame { return frame{Frame: parts.ParseFrame(b)} }
