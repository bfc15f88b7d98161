package ixgbe

import (
	"sync/atomic"

	"github.com/rebound-nic/rebound/nic"
)

// stamps is the state of nic.Timestamper (82599 §7.9). The port has one register for received and one for sent frames.
// Each keeps its first timestamp until software reads the upper half, and other frames have none meanwhile. Received
// frames are timestamped only if they are PTP event messages.
type stamps struct {
	speed atomic.Int32 // of the link that SYSTIM's increment is for, in Mb/s; 0 while timestamps are off
	shift atomic.Uint32
	port  uint16 // of the messages

	systim, wraps uint64        // of the latest timestamp, and how often SYSTIM had overflowed by then
	last          nic.Timestamp // of the frame that Recv returned last
	without       uint32        // frames that Recv has returned since the last one with a timestamp
	held          bool          // RXSTMP had a timestamp after the first ring of these

	sends  uint32 // since EnableTimestamps
	wanted bool   // TXSTMP is for the frame with this number:
	sent   uint32
}

// increments are INCVALUE for the period of SYSTIM's clock at each speed of the link, and the bits of SYSTIM below a
// nanosecond (Linux, ixgbe_ptp_start_cyclecounter). The 82599's INCVALUE is seven bits shorter.
var increments = map[int]struct{ value, shift uint32 }{10000: {0x66666666, 28}, 1000: {0x40000000, 24},
	100: {0x50000000, 21}}

const shorter82599 = 7

// EnableTimestamps implements nic.Timestamper. Received frames have timestamps if they are UDP datagrams to the port of
// TimestampPort whose payload starts like a PTP event message of version 2.
func (d *Device) EnableTimestamps(hardware bool) (active nic.Timestamping, err error) {
	if !hardware {
		return active, nil
	}
	err = d.card.Ask(func() error {
		d.stamps.sends = 0
		return d.startTimestamps()
	})
	return nic.Timestamping{RxHardware: true, TxHardware: true, RxPTP: true}, err
}

// TimestampPort implements nic.PTPTimestamper. RXMTRL takes any port: MoonGen's examples/quality-of-service-test.lua
// selects 42 and 43 in turn, for an 82599 and an X540.
func (d *Device) TimestampPort(port uint16) error {
	return d.card.Ask(func() error {
		d.stamps.port = port
		d.write(regRXMTRL, uint32(port)<<16)
		return nil
	})
}

// startTimestamps programs the clock and the filter, also after a reset.
func (d *Device) startTimestamps() error {
	link, err := d.link()
	if err != nil {
		return err
	}
	s := &d.stamps
	s.systim, s.wraps, s.wanted, s.without, s.held = 0, 0, false, 0, false
	s.last = nic.Timestamp{}
	d.write(regSYSTIML, 0)
	d.write(regSYSTIMH, 1) // no timestamp is 0
	d.followSpeed(link.Speed)
	d.write(regRXMTRL, uint32(s.port)<<16)
	d.write(regTSYNCRXCTL, tsyncEnable|tsyncEventV2<<tsyncTypeLSB)
	d.write(regTSYNCTXCTL, tsyncEnable)
	d.read(regRXSTMPH) // whatever they hold is of earlier frames
	d.read(regTXSTMPH)
	return nil
}

// followSpeed sets SYSTIM's increment for a speed of the link, 10 Gb/s while it is down.
func (d *Device) followSpeed(speed int) {
	i, ok := increments[speed]
	if !ok {
		speed, i = 10000, increments[10000]
	}
	if d.family == x540 {
		d.write(regTIMINCA, i.value)
	} else {
		i.value, i.shift = i.value>>shorter82599, i.shift-shorter82599
		d.write(regTIMINCA, 1<<timincaPeriodLSB|i.value)
	}
	d.stamps.shift.Store(i.shift)
	d.stamps.speed.Store(int32(speed))
}

// on reports whether timestamps are active.
func (s *stamps) on() bool { return s.speed.Load() != 0 }

// time is a timestamp from SYSTIM's value. Timestamps of sent and received frames alternate, and may be read in the
// wrong order.
func (s *stamps) time(systim uint64) nic.Timestamp {
	wraps, later := s.wraps, int64(systim-s.systim) >= 0
	switch {
	case later && systim < s.systim:
		wraps++
	case !later && systim > s.systim:
		wraps--
	}
	if later {
		s.systim, s.wraps = systim, wraps
	}
	shift := s.shift.Load()
	return nic.Timestamp{Nanoseconds: int64(wraps<<(64-shift) | systim>>shift), Hardware: true}
}

// ReadClock implements nic.CardClock. Reading SYSTIML latches SYSTIMH: its lower half overflows within 16 ns on the
// X540, and Linux reads them in this order (ixgbe_ptp_read_82599).
func (d *Device) ReadClock() (int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, err
	}
	systim := uint64(d.read(regSYSTIML)) | uint64(d.read(regSYSTIMH))<<32
	return d.stamps.time(systim).Nanoseconds, nil
}

// want returns the bits of a descriptor that request a timestamp of the frame, unless TXSTMP is kept for another one.
func (d *Device) want() uint32 {
	s := &d.stamps
	if !s.on() {
		return 0
	}
	if s.wanted {
		if s.sends-s.sent <= d.queues[0].mask {
			return 0
		}
		// All descriptors were used again since: the timestamp was lost, as in a restart of the link.
		d.read(regTXSTMPH)
	}
	return txStamp
}

// counted counts a frame that was sent.
func (s *stamps) counted(requested bool) {
	if requested {
		s.wanted, s.sent = true, s.sends
	}
	s.sends++
}

// received reads the timestamp of a received frame.
func (d *Device) received(status uint32) {
	s := &d.stamps
	if s.last = (nic.Timestamp{}); status&rxStamp != 0 {
		s.without, s.held = 0, false
		if d.read(regTSYNCRXCTL)&tsyncValid != 0 {
			s.last = s.time(uint64(d.read(regRXSTMPL)) | uint64(d.read(regRXSTMPH))<<32)
		}
		return
	}
	// RXSTMP may keep the timestamp of a frame that was dropped for lack of a descriptor. If it keeps one while as many
	// frames arrive as the ring has, none of those in the ring has it.
	ring := d.queues[0].mask + 1
	s.without++
	switch s.without {
	case ring:
		s.held = d.read(regTSYNCRXCTL)&tsyncValid != 0
	case 2 * ring:
		if s.held {
			d.read(regRXSTMPH)
		}
		s.without = 0
	}
}

// RxTimestamp implements nic.Timestamper.
func (d *Device) RxTimestamp() nic.Timestamp { return d.stamps.last }

// TxTimestamp implements nic.Timestamper.
func (d *Device) TxTimestamp() (id uint32, t nic.Timestamp, ok bool, err error) {
	s := &d.stamps
	if !s.wanted {
		return 0, t, false, nil
	}
	if err := d.card.Gate.Call(); err != nil {
		return 0, t, false, err
	}
	if !s.wanted || d.read(regTSYNCTXCTL)&tsyncValid == 0 { // a restart drops what was wanted
		return 0, t, false, nil
	}
	s.wanted = false
	return s.sent, s.time(uint64(d.read(regTXSTMPL)) | uint64(d.read(regTXSTMPH))<<32), true, nil
}
