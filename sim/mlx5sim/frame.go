package mlx5sim

import "github.com/rebound-nic/rebound/sim/kit"

type frame struct {
	kit.Frame
	from    uint32 // transport domain that sent it; 0 from the wire
	blocked bool   // a TIR blocked it from its own transport domain
}

func parse(b []byte) frame { return frame{Frame: kit.ParseFrame(b)} }
