package mlx5

import (
	"math/bits"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
)

// The formats of timestamps. A capability says which ones the queues of a device may have: the free-running timer only,
// the real-time clock only, or both (Linux, mlx5_ifc.h: sq_ts_format and rq_ts_format of the HCA capabilities,
// ts_format of the contexts). Where there is a real-time clock, Linux takes it (mlx5_is_real_time_sq).
const (
	timestampsFree = 0 // of a capability

	formatFree = 0
	formatReal = 2
)

// timestampFormat returns the ts_format of a queue for a device with that capability.
func timestampFormat(capability uint32) uint32 {
	if capability == timestampsFree {
		return formatFree
	}
	return formatReal
}

// stamps is the state of nic.Timestamper: the device stamps each completion.
type stamps struct {
	on    bool
	sends uint32 // since EnableTimestamps
	real  bool   // seconds 63:32, ns 31:0; otherwise cycles of a timer of kHz
	kHz   uint64 // device_frequency_khz, or device_frequency_mhz of older firmware; 0 if it says neither
	next  uint32 // completions of sends before it were read
	base  uint32 // number of the frame of completion 0
}

// EnableTimestamps implements nic.Timestamper. From then on each frame that Send sends requests a completion. There are
// none beside the kernel's driver, nor if sent and received frames have different clocks.
func (d *Device) EnableTimestamps(hardware bool) (active nic.Timestamping, err error) {
	err = d.card.Ask(func() error {
		s := &d.stamps
		s.real = timestampFormat(d.caps.sqTimestamps) == formatReal
		s.kHz = uint64(d.caps.kHz)
		_, shared := d.fw.(*shared)
		s.on = hardware && !shared && timestampFormat(d.caps.rqTimestamps) == timestampFormat(d.caps.sqTimestamps) &&
			(s.real || s.kHz != 0)
		q := d.queues[0]
		q.askEvery, s.sends = d.askEvery(), 0
		s.renumber(q)
		active.RxHardware, active.TxHardware = s.on, s.on
		return nil
	})
	return active, err
}

// renumber follows a send queue that starts again. The next completion is of the next frame.
func (s *stamps) renumber(q *Queue) { s.next, s.base = q.askTail, s.sends-q.askTail }

// time is a completion's or a register's value.
func (s *stamps) time(v uint64) nic.Timestamp {
	if s.real {
		return nic.Timestamp{Nanoseconds: int64(v>>32*1e9 + v&0xFFFFFFFF), Hardware: true}
	}
	hi, lo := bits.Mul64(v, 1e6) // in ns it fits into 64 bits for centuries
	ns, _ := bits.Div64(hi%s.kHz, lo, s.kHz)
	return nic.Timestamp{Nanoseconds: int64(ns), Hardware: true}
}

// timestamp is the value in a completion (PRM, CQE Format). In one with error other fields are there.
func (c *cqe) timestamp() uint64 {
	return bits.ReverseBytes64(*(*uint64)(unsafe.Add(unsafe.Pointer(c), 0x30)))
}

// RxTimestamp implements nic.Timestamper.
func (d *Device) RxTimestamp() nic.Timestamp {
	if !d.stamps.on {
		return nic.Timestamp{}
	}
	return d.stamps.time(d.queues[0].stamp)
}

// TxTimestamp implements nic.Timestamper.
func (d *Device) TxTimestamp() (id uint32, t nic.Timestamp, ok bool, err error) {
	s := &d.stamps
	if !s.on {
		return 0, t, false, nil
	}
	if err := d.card.Gate.Call(); err != nil {
		return 0, t, false, err
	}
	q := d.queues[0]
	q.reclaim()
	if last := q.askTail - q.txMask - 1; int32(last-s.next) > 0 {
		s.next = last // the device may have written over earlier ones
	}
	if int32(q.txNext-s.next) <= 0 {
		return 0, t, false, nil
	}
	c := (*cqe)(unsafe.Add(q.txCQ, s.next&q.txMask*cqeSize))
	s.next++
	return s.next - 1 + s.base, s.time(c.timestamp()), true, nil
}

// ReadClock implements nic.CardClock. The upper half is read twice, because it may change between the halves.
func (d *Device) ReadClock() (int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, err
	}
	high, low := regTimerHigh, regTimerLow
	if d.stamps.real {
		high, low = regRealTimeHigh, regRealTimeLow
	}
	for h := d.commands.read(high); ; {
		l, again := d.commands.read(low), d.commands.read(high)
		if again == h || d.card.Gate.Closed() { // of a card that is gone it never changes
			return d.stamps.time(uint64(h)<<32 | uint64(l)).Nanoseconds, nil
		}
		h = again
	}
}
