package mlx5sim

import (
	"cmp"
	"time"
)

// Timestamp formats, ts_format of queue contexts (Linux, mlx5_ifc.h).
const (
	stampFree     = 0 // the free-running timer
	stampDefault  = 1 // as configured for the device
	stampRealTime = 2
)

// clock is the free-running timer, in cycles of capability device_frequency_khz, or of device_frequency_mhz if the
// firmware does not report the former.
func (m *Model) clock() uint64 {
	kHz := uint64(m.prof.kHz)
	if kHz == 0 {
		kHz = 1000 * m.caps.general().U("device_frequency_mhz")
	}
	ns := uint64(m.host.Now())
	return ns/1e6*kHz + ns%1e6*kHz/1e6
}

// epoch is where the model's real-time clock starts: large enough that no driver can mistake it for cycles since
// power-on.
const epoch = 1_700_000_000

// realTime is the real-time clock: seconds in bits 63:32, nanoseconds in bits 31:0.
func (m *Model) realTime() uint64 {
	now := m.host.Now()
	return (epoch+uint64(now/time.Second))<<32 | uint64(now%time.Second)
}

// stamps is the clock format of the function's timestamps.
func (m *Model) stamps() Clock { return cmp.Or(m.opt.Clock, m.prof.clock, FreeRunning) }

// checkStamps rejects a ts_format that the function does not support.
func (m *Model) checkStamps(format uint32) *refusal {
	switch c := m.stamps(); {
	case format > stampRealTime:
		return refuse(stBadParam, "ts_format is %d, expected 0 to 2", format)
	case c == FreeRunning && format != stampFree:
		return refuse(stBadParam, "ts_format is %d: the function has 0 (free running) only", format)
	case c == RealTime && format == stampFree:
		return refuse(stBadParam,
			"ts_format is 0 (free running): the function's clock is in real-time mode, expected 1 (default) or 2").with(
			0xd61c0b)
	}
	return nil
}

// stamp is the current time in the given format, for a queue's completions.
func (m *Model) stamp(format uint32) uint64 {
	if format == stampFree {
		return m.clock()
	}
	return m.realTime()
}
