package mlx5

import (
	"testing"

	"github.com/rebound-nic/rebound/nic"
)

// Send and receive queues are created with the timestamp format that each capability requires: a card with a real-time
// clock refuses the other one.
func TestTimestampFormat(t *testing.T) {
	for _, c := range []struct{ capability, sq, rq uint32 }{
		{0, 0, 0}, {1<<30 | 1<<28, 1, 1}, {2<<30 | 2<<28, 1, 1}, {2 << 30, 1, 0}, {1 << 28, 0, 1},
	} {
		fw := newFirmware(t)
		var sq, rq []uint32
		fw.answer = func(in message, size int) message {
			out := working(in, size)
			switch in.opcode() {
			case opQueryHCACap:
				out.at(0x10).set("sq_ts_format, rq_ts_format", 0x88, 31, 0,
					c.capability).set("bf: there is no BlueFlame", 0x4C, 31, 0, 0)
			case opCreateSQ:
				sq = append(sq, in.at(0x20).get(0x00, 5, 4))
			case opCreateRQ:
				rq = append(rq, in.at(0x20).get(0x00, 5, 4))
			}
			return out
		}
		d := fw.device()
		d.card.Options = nic.Options{Queues: 1, RingSize: 64}
		err := d.commands.start(d.card.Arena)
		for _, stage := range []func() error{d.initialize, d.startQueues} {
			if err == nil {
				err = stage()
			}
		}
		if err != nil || len(sq) != 1 || len(rq) != 1 || sq[0] != c.sq || rq[0] != c.rq {
			t.Errorf("capability %08x: ts_format of send queues %v, of receive queues %v, want %d and %d (%v)",
				c.capability, sq, rq, c.sq, c.rq, err)
		}
	}
}
