package mlx4sim

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/sim/kit"
)

var be = binary.BigEndian

// msg is a mailbox or a context with its layout.
type msg = kit.Msg

// lay parses a layout: see kit.Lay. The device's dwords are big endian.
func lay(size int, text string) *kit.Layout { return kit.Lay(be, size, text) }

// as reads b by a layout.
func as(b []byte, l *kit.Layout) msg { return msg{B: b, Layout: l} }

type layout = kit.Layout
