package mlx5_test

import (
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

var _ nic.CardClock = (*mlx5.Device)(nil)

// stamping is a rig whose driver has timestamps.
type stamping struct {
	*rig
	buf [2048]byte
}

func newStamping(t testing.TB, o mlx5sim.Options) *stamping {
	x := &stamping{rig: openRig(t, o, nic.Options{})}
	check.Equal(t, x.Dev.RxTimestamp(), nic.Timestamp{}, "before they are enabled: %v")
	check.Equal(t, must.Get(x.Dev.EnableTimestamps(true))(t), nic.Timestamping{RxHardware: true, TxHardware: true},
		"active %+v")
	return x
}

func (x *stamping) send() {
	x.Helper()
	must.OK(x, x.Dev.Send(request(farMAC, 98, -1)))
	x.Port.Settle(100_000)
}

// exchange sends and receives a frame. The card's clock reads no more before the first timestamp, and no less after the
// second. It returns the number of the sent frame.
func (x *stamping) exchange() uint32 {
	x.Helper()
	before := must.Get(x.Dev.ReadClock())(x)
	x.send()
	x.Ping(ourMAC, 98, -1)
	x.Port.Settle(100_000)
	n, _, err := x.Dev.Recv(x.buf[:])
	rx := x.Dev.RxTimestamp()
	id, tx, ok, sentErr := x.Dev.TxTimestamp()
	after := must.Get(x.Dev.ReadClock())(x)
	if n != 98 || err != nil || sentErr != nil || !ok || !tx.Hardware || !rx.Hardware || tx.Nanoseconds < before ||
		rx.Nanoseconds <= tx.Nanoseconds || rx.Nanoseconds > after {
		x.Fatalf("clock at %d, frame %d sent at %+v (%v, %v), %d bytes received at %+v (%v), clock at %d", before, id, tx,
			ok, sentErr, n, rx, err, after)
	}
	return id
}

// TestTimestamps: sent and received frames have timestamps of the clock that can be read, for both clocks that cards
// have, and for firmware that says the timer's frequency only in MHz.
func TestTimestamps(t *testing.T) {
	for _, o := range []mlx5sim.Options{{Profile: mlx5sim.ConnectX4}, {Profile: mlx5sim.ConnectX5},
		{Profile: mlx5sim.ConnectX6Dx, Clock: mlx5sim.FreeRunning},
		{Profile: mlx5sim.ConnectX6Dx, Clock: mlx5sim.RealTime},
		{Profile: mlx5sim.ConnectX6Dx, Clock: mlx5sim.BothClocks}} {
		x := newStamping(t, o)
		for n := range uint32(600) { // the send queue wraps
			check.Equal(t, x.exchange(), n, "frame %d")
		}
		if _, _, ok, err := x.Dev.TxTimestamp(); ok || err != nil {
			t.Errorf("a timestamp of nothing: %v, %v", ok, err)
		}
		check.Equal(t, must.Get(x.Dev.EnableTimestamps(false))(t), nic.Timestamping{}, "active %+v")
		_, _, ok, _ := x.Dev.TxTimestamp()
		check.Equal(t, ok, false, "a timestamp when they are off: %v")
	}
}

// TestLateTimestamps: timestamps wait until they are read, while their completions are in the ring.
func TestLateTimestamps(t *testing.T) {
	x := newStamping(t, mlx5sim.Options{})
	const ring, most = 256, 300
	for range most {
		x.send()
	}
	next, last := uint32(most-ring), int64(0)
	for {
		id, at, ok, err := x.Dev.TxTimestamp()
		must.OK(t, err)
		if !ok {
			break
		}
		if check.Equal(t, id, next, "frame %d"); at.Nanoseconds <= last {
			t.Errorf("frame %d at %d, the one before at %d", id, at.Nanoseconds, last)
		}
		next, last = next+1, at.Nanoseconds
	}
	check.Equal(t, next, uint32(most), "timestamps of frames up to %d")
}

// TestTimestampsAfterRecovery: a frame that was not sent has none, and the next ones have their own numbers.
func TestTimestampsAfterRecovery(t *testing.T) {
	x := newStamping(t, mlx5sim.Options{})
	for n := range uint32(5) {
		check.Equal(t, x.exchange(), n, "frame %d")
	}
	recovered := func(ok func(*nic.Stats) bool) {
		x.Busy(func() {
			x.Await(func() bool {
				var s nic.Stats
				_, _, _, _ = x.Dev.TxTimestamp() // where a restart finds the loop
				return x.Dev.ReadStats(&s) == nil && ok(&s)
			})
			x.Dev.Link() // waits for the end of a restart
		})
		x.Port.ForgetViolations()
		x.Settle()
		x.Received()
	}
	x.model.FailNextSend(0x04)
	x.send()
	_, _, ok, _ := x.Dev.TxTimestamp()
	check.Equal(t, ok, false, "a timestamp of a frame that was not sent: %v")
	recovered(func(s *nic.Stats) bool { return s.Extra["send_queue_resets"] == 1 })
	for n := range uint32(5) {
		check.Equal(t, x.exchange(), 6+n, "frame %d")
	}
	x.model.Fatal(0x08)
	recovered(func(s *nic.Stats) bool { return s.Resets == 1 })
	for n := range uint32(300) {
		check.Equal(t, x.exchange(), 11+n, "frame %d")
	}
}
