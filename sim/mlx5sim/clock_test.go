package mlx5sim

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// stampFormats returns the capabilities sq_ts_format, rq_ts_format and qp_ts_format.
func (x *rig) stampFormats() [3]uint32 {
	v := w32(x.caps(capGeneral), 0x88)
	return [3]uint32{v >> 30, v >> 28 & 3, w32(x.caps(capRoCE), 0) & 3}
}

// Queues have to request a timestamp format that the capability offers, and completions are stamped with it.
func TestTimestampFormats(t *testing.T) {
	const refused = 0xd61c0b // real firmware in real-time mode rejects the free-running format with this syndrome
	for _, c := range []struct {
		clock  Clock
		cap    uint32
		taken  [4]bool // formats accepted, by ts_format
		format uint32  // what the queues are opened with
	}{
		{FreeRunning, 0, [4]bool{0: true}, 0},
		{RealTime, 1, [4]bool{1: true, 2: true}, 1},
		{RealTime, 1, [4]bool{1: true, 2: true}, 2},
		{BothClocks, 2, [4]bool{0: true, 1: true, 2: true}, 0},
		{BothClocks, 2, [4]bool{0: true, 1: true, 2: true}, 2},
	} {
		x := newRig(t, Options{Profile: ConnectX6Dx, Clock: c.clock})
		x.ts, x.self = c.format, 1
		x.open()
		check.Equal(t, x.stampFormats(), [3]uint32{c.cap, c.cap, c.cap}, "ts_format of SQs, RQs and QPs: %d")
		for format := range uint32(4) {
			x.ts = format
			for _, in := range [][]byte{x.createSQ(), x.createRQ()} {
				out := x.exec(in, 16)
				switch syndrome := w32(out, 4); {
				case c.taken[format] != (out[0] == 0):
					t.Errorf("clock %d, ts_format %d: command %x: status %xh", c.clock, format, in[:2], out[0])
				case c.clock == RealTime && format == 0 && (out[0] != stBadParam || syndrome != refused):
					t.Errorf("clock %d, ts_format 0: command %x: status %xh, syndrome %x", c.clock, in[:2], out[0],
						syndrome)
				}
			}
		}
		x.Port.ForgetViolations()
		x.post(1)
		x.push(0, x.wqe(0, frameOf(64), 64))
		all := x.completions()
		check.Equal(t, len(all), 2, "%d completions")
		for _, e := range all {
			sec, nsec := w32(e, 0x30), w32(e, 0x34)
			if at := binary.BigEndian.Uint64(e[0x30:]); (c.format == 0) != (at < 1<<40) || c.format != 0 &&
				(sec != x.rd(0x1040) || nsec > x.rd(0x1044)) {
				t.Errorf("clock %d, ts_format %d: completion at %08x.%08x, the real-time clock is at %08x.%08x",
					c.clock, c.format, sec, nsec, x.rd(0x1040), x.rd(0x1044))
			}
		}
	}
}

// Cards of the ConnectX-6 Dx generation have both clocks, and accept the value that rdma-core writes into a queue
// pair's context, 1 (default); earlier cards have only the free-running clock, and reject it.
func TestTimestampFormatsOfProfiles(t *testing.T) {
	for _, p := range Profiles() {
		if p.Virtual() {
			continue
		}
		x := openRig(t, Options{Profile: p})
		x.roce()
		later := profiles[p].kHz == clockConnectX6D
		if f := x.stampFormats(); later && f != [3]uint32{2, 2, 2} || !later && f != [3]uint32{} {
			t.Errorf("%04x: ts_format of SQs, RQs and QPs: %d", p.Device(), f)
		}
		if later {
			x.createQP(serviceRC, 0x20, 1<<6|4<<19|2<<16|4<<11)
		} else {
			x.ts = stampDefault
			x.fails(x.createSQ(), 16, stBadParam, "ts_format is 1: the function has 0 (free running) only")
			x.fails(dwords(0x118, 0, 0x500<<16, 0x18, 3<<11, 0x1c, x.pd, 0x20, 1<<6|4<<19|2<<16|4<<11, 0xbc, 64), 16,
				stBadParam,
				"ts_format is 1: the function has 0 (free running) only")
		}
	}
}
