package mlx5

import (
	"cmp"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Send and receive queues are created with the timestamp format that each capability requires: a card with a real-time
// clock refuses the other one.
func TestTimestampFormat(t *testing.T) {
	for _, c := range []struct{ capability, sq, rq uint32 }{
		{0, 0, 0}, {1<<30 | 1<<28, 2, 2}, {2<<30 | 2<<28, 2, 2}, {2 << 30, 2, 0}, {1 << 28, 0, 2},
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

// Cycles and the real-time clock become nanoseconds, also after years.
func TestTimestampUnits(t *testing.T) {
	for _, c := range []struct {
		s    stamps
		v    uint64
		want int64
	}{
		{stamps{kHz: 156250}, 156250, 1e6},
		{stamps{kHz: 275000}, 11, 40},
		{stamps{kHz: 1e6}, 1 << 62, 1 << 62},
		{stamps{kHz: 156250}, 156_250_000 * 3e9, 3e18},
		{stamps{real: true, kHz: 156250}, 1_700_000_000<<32 | 999_999_999, 1_700_000_000_999_999_999},
	} {
		check.Equal(t, c.s.time(c.v), nic.Timestamp{Nanoseconds: c.want, Hardware: true}, "%+v")
	}
}

// The timer's frequency is device_frequency_khz, or device_frequency_mhz of firmware that does not have it. Without
// either, or if sent and received frames have different clocks, there are no timestamps.
func TestTimestampsNeedOneClock(t *testing.T) {
	for _, c := range []struct {
		formats, kHz, mhz uint32
		want              bool
	}{
		{0, 156250, 156, true}, {0, 0, 275, true}, {0, 0, 0, false}, {1<<30 | 1<<28, 0, 0, true},
		{1 << 30, 156250, 156, false},
	} {
		fw := newFirmware(t)
		fw.answer = func(in message, size int) message {
			out := working(in, size)
			if in.opcode() == opQueryHCACap {
				out.at(0x10).set("sq_ts_format, rq_ts_format", 0x88, 31, 0, c.formats).set("bf", 0x4C, 31, 0,
					0).set("device_frequency_khz", 0x9C, 31, 0, c.kHz).set("device_frequency_mhz", 0x98, 31, 0, c.mhz)
			}
			return out
		}
		d := fw.device()
		d.card.Options = nic.Options{Queues: 1, RingSize: 64}
		must.OK(t, d.commands.start(d.card.Arena))
		must.OK(t, d.initialize())
		must.OK(t, d.startQueues())
		active := must.Get(d.EnableTimestamps(true))(t)
		check.Equal(t, active, nic.Timestamping{RxHardware: c.want, TxHardware: c.want}, "active: %+v")
		if c.want && c.formats == 0 {
			check.Equal(t, d.stamps.kHz, uint64(cmp.Or(c.kHz, 1000*c.mhz)), "%d kHz")
		}
	}
}
