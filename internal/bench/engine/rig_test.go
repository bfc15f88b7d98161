package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/must"
)

// fake is a port whose peer does what the test scripts. Replies are UDP payloads, which are returned as they were sent.
type fake struct {
	sent   int
	queue  []reply                   // in order of arrival
	fail   func(n int) error         // why frame n cannot be sent
	onSend func(n int, frame []byte) // by default, the reply comes at once
	onRecv func(n int)               // called for polls that found nothing
	looks  int
	stamp  nic.Timestamp
	tx     []txStamp
}

type reply struct {
	due  uint64 // tick
	data []byte
}

type txStamp struct {
	id  uint32
	t   nic.Timestamp
	due uint64 // tick
}

func (f *fake) Send(b []byte) error {
	n := f.sent
	f.sent++
	if f.fail != nil {
		if err := f.fail(n); err != nil {
			return err
		}
	}
	if f.onSend != nil {
		f.onSend(n, b)
	} else {
		f.reply(b, 0)
	}
	return nil
}

// failsAt is an error of frame n.
func failsAt(n int, err error) func(int) error {
	return func(i int) error {
		if i == n {
			return err
		}
		return nil
	}
}

func (f *fake) Recv(buf []byte) (int, int64, error) {
	now := polling.TSC()
	if len(f.queue) == 0 || f.queue[0].due > now {
		if f.looks++; f.onRecv != nil {
			f.onRecv(f.looks)
		}
		return 0, 0, nil
	}
	n := copy(buf, f.queue[0].data)
	f.queue = f.queue[1:]
	return n, int64(now), nil
}

func (f *fake) reply(b []byte, due uint64) {
	f.queue = append(f.queue, reply{due, append([]byte(nil), b...)})
}

func (f *fake) EnableTimestamps(bool) (nic.Timestamping, error) {
	return nic.Timestamping{}, nil
}
func (f *fake) RxTimestamp() nic.Timestamp { return f.stamp }
func (f *fake) TxTimestamp() (uint32, nic.Timestamp, bool, error) {
	if len(f.tx) == 0 || f.tx[0].due > polling.TSC() {
		return 0, nic.Timestamp{}, false, nil
	}
	s := f.tx[0]
	f.tx = f.tx[1:]
	return s.id, s.t, true, nil
}

var testClock = func() *latency.Clock {
	c, err := latency.NewClock()
	if err != nil {
		panic(err)
	}
	return c
}()

// codec makes probes of a flow with some changes.
func codec(t *testing.T, change func(*probe.Flow)) *probe.Codec {
	t.Helper()
	f := probe.Flow{Proto: probe.UDP, Layer: probe.Datagram, Src: netip.MustParseAddr("10.0.0.1"),
		Dst:     netip.MustParseAddr("10.0.0.2"),
		SrcPort: 50000, DstPort: 7, Run: 1, Size: 60}
	change(&f)
	return must.Get(probe.New(f))(t)
}

func stream(t *testing.T, p Port, rate float64, timeout time.Duration, change func(*Options)) (*Stream,
	*latency.Recorder) {
	t.Helper()
	rec := must.Get(latency.NewRecorder(testClock, latency.RecorderOptions{OpenLoop: rate > 0}))(t)
	o := Options{Port: p, Codec: codec(t, func(*probe.Flow) {}), Recorder: rec, Rate: rate, Timeout: timeout}
	if change != nil {
		change(&o)
	}
	return must.Get(New(o))(t), rec
}

func series(rec *latency.Recorder) func(name string) *latency.Histogram {
	rep := report.New("test", report.RoundTrip)
	rep.Fill(rec.Recording())
	return func(name string) *latency.Histogram { return rep.Find(name).Total }
}

func spin(d time.Duration) {
	for end := polling.TSC() + testClock.Ticks(d); polling.TSC() < end; {
	}
}
