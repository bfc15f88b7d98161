package mlx4sim

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// pauseFrame is a pause frame, or with priorities one of priority flow control.
func pauseFrame(quanta uint16, prios ...int) []byte {
	b := make([]byte, 60)
	copy(b, []byte{0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0x08, 0, 1, byte(quanta >> 8), byte(quanta)})
	if prios != nil {
		clear(b[14:])
		b[14] = 1
	}
	for _, p := range prios {
		b[15], b[17] = 1, b[17]|1<<p
		be.PutUint16(b[18+2*p:], quanta)
	}
	return b
}

// flowControl sets what SET_PORT sets: pause frames, and flow control by priority.
func (x *rig) flowControl(pause bool, prios uint32) {
	x.Helper()
	v := bit(pause)<<31 | prios<<16
	x.do(0x00c, 1, 0<<8|1, dwords(64, 0, 7, 4, 1522, 8, v, 12, v), false)
}

// pauses returns the counters of flow control of a priority: three of reception and three of transmission.
func (x *rig) pauses(prio int) (k [6]uint64) {
	x.Helper()
	x.do(0x049, 0, 1<<12|1, nil, true)
	for i := range k {
		k[i] = be.Uint64(x.out.Bytes[64*prio+8*i:])
	}
	return k
}

// A pause frame stops the queues of its priorities until its time is over or a frame revokes it, is counted, and
// reaches no queue. A port that does not obey pause frames only counts a control frame.
func TestPauseReceived(t *testing.T) {
	x := openRig(t, Options{})
	x.do(0x003, 0, 0, nil, true)
	check.Equal(t, as(x.out.Bytes, devCap).U("ext_flags_2"), ext2FlowStats, "ext_flags_2 is %#x")
	x.post(0, 4)
	sends := func(what string, want bool) {
		t.Helper()
		x.sendFrame()
		if got := x.Far.Recv(1<<40) != nil; got != want {
			t.Errorf("%s: sent is %v", what, got)
		}
	}
	x.Arrive(pauseFrame(longestPause))
	sends("without flow control", true)
	check.Equal(t, x.pauses(0), [6]uint64{}, "counters %d")

	x.flowControl(true, 0)
	x.Arrive(pauseFrame(longestPause))
	sends("paused", false)
	x.Arrive(pauseFrame(0))
	x.steps(5)
	if x.Far.Recv(1<<40) == nil {
		t.Error("not resumed by a frame of 0 quanta")
	}
	check.Equal(t, x.pauses(3), [6]uint64{2, 838, 1}, "counters %d")
	x.Arrive(pauseFrame(1000)) // 12.8 µs
	sends("paused again", false)
	x.steps(20)
	if x.Far.Recv(1<<40) == nil {
		t.Error("not resumed when the time was over")
	}

	x.flowControl(false, 1<<5)
	x.Arrive(pauseFrame(longestPause))
	sends("with a pause frame of all priorities", true)
	x.Arrive(pauseFrame(longestPause, 0))
	sends("with a priority paused that has no flow control", true)
	x.Arrive(pauseFrame(longestPause, 5))
	sends("with priority 5 paused", true)
	x.do(0x021, 3, testQP, nil, false)
	x.restart(testQP, with(x.qpContext(), 8+0x38, (0x83|5<<3)<<24))
	sends("with its own priority paused", false)
	if k := x.pauses(5); k[0] != 4 || x.pauses(4)[0] != 3 {
		t.Errorf("counters of priority 5: %d", k)
	}
	for e := x.cqe(); e != nil; e = x.cqe() {
		if e[31]&cqeSend == 0 {
			t.Error("a queue received a pause frame")
		}
	}
	x.do(0x049, 0, 1, nil, true)
	check.Equal(t, be.Uint64(x.out.Bytes[8*(13*9+27+27):]), 7, "RCNTL is %d")
	x.do(0x049, 0, 1<<12|1<<8|1, nil, true)
	check.Equal(t, x.pauses(5), [6]uint64{}, "after a read that clears: %d")
}

// A port whose buffer fills asks its peer to pause, and to go on when the host has taken enough. Without flow control
// the buffer overflows.
func TestPauseSent(t *testing.T) {
	x := openRig(t, Options{})
	x.flowControl(true, 0)
	x.m.HoldReceive(true)
	big := frameOf(1500)
	for range rxBufferHigh/len(big) + 1 {
		x.Arrive(big)
	}
	want := pauseFrame(longestPause)
	copy(want[6:], testMAC[:])
	x.Sent(want, "above the high mark")
	x.steps(450) // half of the pause
	x.Sent(want, "before the pause ends")
	for range rxBuffer/len(big) - rxBufferHigh/len(big) {
		x.Arrive(big)
	}
	x.do(0x049, 0, 1, nil, true)
	check.Equal(t, be.Uint32(x.out.Bytes[8*(179+13*10+30+30)+20:]), 1, "RdropOvflw is %d")
	for f := x.Far.Recv(1 << 40); f != nil; f = x.Far.Recv(1 << 40) {
	}
	x.m.HoldReceive(false)
	x.steps(5)
	revoked := pauseFrame(0)
	copy(revoked[6:], testMAC[:])
	x.Sent(revoked, "below the low mark")
	if k := x.pauses(0); k[3] < 3 || k[4] < 838 || k[5] != 1 || k[0] != 0 {
		t.Errorf("counters %d", k)
	}

	x.flowControl(false, 1<<2|1<<5)
	x.m.HoldReceive(true)
	for range rxBufferHigh/len(big) + 1 {
		x.Arrive(big)
	}
	want = pauseFrame(longestPause, 2, 5)
	copy(want[6:], testMAC[:])
	x.Sent(want, "by priority")
	x.m.HoldReceive(false)
	x.steps(5)
	x.flowControl(false, 0)
	x.m.HoldReceive(true)
	x.Far.Recv(1 << 40)
	for range rxBufferHigh/len(big) + 1 {
		x.Arrive(big)
	}
	if f := x.Far.Recv(1 << 40); f != nil {
		t.Errorf("without flow control: %x", f)
	}
}

// The counters of frames by length, of looped frames, and of lengths that IEEE 802.3 forbids.
func TestFrameCounters(t *testing.T) {
	x := openRig(t, Options{})
	x.do(0x00c, 1, 0<<8|1, dwords(64, 0, 7, 4, 9600), false)
	length := func(n uint16, size int) []byte {
		f := bytes.Clone(frameOf(size))
		be.PutUint16(f[12:], n)
		return f
	}
	x.post(0, 4)
	x.Arrive(length(1501, 64), length(51, 64), length(46, 60), frameOf(1515))
	x.wqe(opSend, sendFlags|0x0200<<16, x.data(128<<10, frameOf(64)))
	be.PutUint32(x.sq.Bytes[12:], 1)
	x.ring()
	x.do(0x049, 0, 1, nil, true)
	const rxEnd, txAt = 13*9 + 27 + 27, 179
	for _, c := range []struct {
		at   int
		want uint64
		what string
	}{{rxEnd + 4, 1, "RInRangeLengthErr"}, {rxEnd + 5, 1, "ROutRangeLengthErr"}, {rxEnd + 6, 1, "RFrmTooLong"},
		{txAt + 1*10 + 9, 1, "T127_loopbk"}, {txAt + 12*10 + 9, 1, "TTOTG_loopbk"}, {txAt + 13*10 + 30 + 27, 1, "TTOT_loopbk"},
		{txAt + 13*10 + 27 + 2, 68, "TOCT_loopbk"}} {
		if got := be.Uint64(x.out.Bytes[8*c.at:]); got != c.want {
			t.Errorf("%s is %d, expected %d", c.what, got, c.want)
		}
	}
	if k := x.m.Counters(); k.TxFrames != 0 || k.TxBytes != 0 || k.Looped != 1 {
		t.Errorf("%+v", k)
	}
}
