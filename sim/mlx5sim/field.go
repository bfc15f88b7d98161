package mlx5sim

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/sim/parts"
)

var be = binary.BigEndian

// msg is a command, a context or a register with its layout.
type msg = parts.Msg

// lay parses a layout: see kit.Lay. The device's dwords are big endian.
func lay(size int, text string) *parts.Layout { return parts.Lay(be, size, text) }

// as interprets b with a layout.
func as(b []byte, l *parts.Layout) msg { return msg{B: b, Layout: l} }
