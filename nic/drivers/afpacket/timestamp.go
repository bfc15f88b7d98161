package afpacket

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// stamps is the state of nic.Timestamper (Documentation/networking/timestamping.rst).
type stamps struct {
	on    bool
	last  nic.Timestamp        // of the frame that Recv returned last
	saved *unix.HwTstampConfig // the card's previous setting, once it was changed
	clock *os.File             // the card's, /dev/ptpN; nil if it cannot be read

	message netif.Message
}

// EnableTimestamps implements nic.Timestamper.
func (d *Device) EnableTimestamps(hardware bool) (nic.Timestamping, error) {
	var in nic.Timestamping
	fd := int(d.queues[0].fd)
	flags := unix.SOF_TIMESTAMPING_SOFTWARE | unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_TX_SOFTWARE |
		unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY
	// Reception is stamped by the kernel itself, sending by the driver, or not.
	info, err := unix.IoctlGetEthtoolTsInfo(fd, d.iface.Name)
	if err != nil {
		return in, fmt.Errorf("afpacket: interface %s: ETHTOOL_GET_TS_INFO: %w", d.iface.Name, err)
	}
	in.RxSoftware = true
	in.TxSoftware = info.So_timestamping&unix.SOF_TIMESTAMPING_TX_SOFTWARE != 0
	if hardware {
		if err := d.stampHardware(fd, info, &in); err != nil {
			return in, err
		}
		if in.RxHardware && d.stamps.clock == nil {
			d.stamps.clock = openClock(info)
		}
		flags |= unix.SOF_TIMESTAMPING_RAW_HARDWARE | unix.SOF_TIMESTAMPING_RX_HARDWARE |
			unix.SOF_TIMESTAMPING_TX_HARDWARE | unix.SOF_TIMESTAMPING_OPT_TX_SWHW
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
		return in, fmt.Errorf("afpacket: interface %s: SO_TIMESTAMPING %#x: %w", d.iface.Name, flags, err)
	}
	source := 0 // clock of the timestamps in the ring, one per frame: the card's if it has one, otherwise the kernel's
	if in.RxHardware {
		source, in.RxSoftware = unix.SOF_TIMESTAMPING_RAW_HARDWARE, false
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_TIMESTAMP, source); err != nil {
		return in, fmt.Errorf("afpacket: interface %s: PACKET_TIMESTAMP: %w", d.iface.Name, err)
	}
	d.stamps.on = true
	return in, nil
}

// stampHardware requests hardware timestamps of all frames, as far as the card supports it.
func (d *Device) stampHardware(fd int, info *unix.EthtoolTsInfo, in *nic.Timestamping) error {
	const rx, tx = unix.SOF_TIMESTAMPING_RX_HARDWARE, unix.SOF_TIMESTAMPING_TX_HARDWARE
	in.RxHardware = info.So_timestamping&rx != 0 && info.Rx_filters&(1<<unix.HWTSTAMP_FILTER_ALL) != 0
	in.TxHardware = info.So_timestamping&tx != 0 && info.Tx_types&(1<<unix.HWTSTAMP_TX_ON) != 0
	if !in.RxHardware && !in.TxHardware {
		return nil
	}
	old, err := unix.IoctlGetHwTstamp(fd, d.iface.Name)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		// ETHTOOL_GET_TS_INFO names what the interface below has, and this one passes nothing on
		in.RxHardware, in.TxHardware = false, false
		return nil
	} else if err != nil {
		return fmt.Errorf("afpacket: interface %s: SIOCGHWTSTAMP: %w", d.iface.Name, err)
	}
	want := *old
	if in.RxHardware {
		want.Rx_filter = unix.HWTSTAMP_FILTER_ALL
	}
	if in.TxHardware {
		want.Tx_type = unix.HWTSTAMP_TX_ON
	}
	if want == *old {
		return nil
	}
	err = unix.IoctlSetHwTstamp(fd, d.iface.Name, &want)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("afpacket: interface %s: hardware timestamps: %w: SIOCSHWTSTAMP takes CAP_NET_ADMIN: %w",
			d.iface.Name, nic.ErrRights, err)
	} else if err != nil {
		return fmt.Errorf("afpacket: interface %s: SIOCSHWTSTAMP %+v: %w", d.iface.Name, want, err)
	}
	d.stamps.saved = old
	return nil
}

// openClock opens the PTP hardware clock of an interface, or returns nil. Reading it takes no permission to write.
func openClock(info *unix.EthtoolTsInfo) *os.File {
	if info.Phc_index < 0 {
		return nil
	}
	f, err := os.Open(fmt.Sprintf("/dev/ptp%d", info.Phc_index))
	if err != nil {
		return nil
	}
	return f
}

// errNoClock is of a card whose clock cannot be read.
var errNoClock = errors.New("the interface has no clock /dev/ptpN that can be opened")

// ReadClock implements nic.CardClock by clock_gettime of a dynamic clock (clock_getres(2)).
func (d *Device) ReadClock() (int64, error) {
	if d.stamps.clock == nil {
		return 0, errNoClock
	}
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^d.stamps.clock.Fd()<<3|3), &t); err != nil {
		return 0, fmt.Errorf("afpacket: interface %s: %s: %w", d.iface.Name, d.stamps.clock.Name(), err)
	}
	return unix.TimespecToNsec(t), nil
}

// close restores the card's previous setting.
func (s *stamps) close(d *Device) error {
	if s.clock != nil {
		s.clock.Close()
	}
	if s.saved == nil {
		return nil
	}
	if err := unix.IoctlSetHwTstamp(int(d.queues[0].fd), d.iface.Name, s.saved); err != nil {
		return fmt.Errorf("afpacket: interface %s: restore SIOCSHWTSTAMP %+v: %w", d.iface.Name, *s.saved, err)
	}
	return nil
}

// received keeps the timestamp of a frame in the ring. The kernel always writes one: the card's if the status says so,
// otherwise its own, taken when the frame left the driver or, until the kernel has enabled that, when it was put into
// the ring.
func (s *stamps) received(h *header, status uint32) {
	if s.on {
		s.last = nic.Timestamp{
			Nanoseconds: int64(h.sec)*1e9 + int64(h.nsec), Hardware: status&statusStampHardware != 0,
		}
	}
}

// RxTimestamp implements nic.Timestamper.
func (d *Device) RxTimestamp() nic.Timestamp { return d.stamps.last }

// TxTimestamp implements nic.Timestamper.
func (d *Device) TxTimestamp() (id uint32, t nic.Timestamp, ok bool, err error) {
	for {
		switch _, e := d.stamps.message.Receive(int(d.queues[0].fd), nil, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT, nil); e {
		case 0:
		case unix.EAGAIN:
			return 0, t, false, nil
		case unix.EINTR:
			continue
		default:
			return 0, t, false, fmt.Errorf("afpacket: interface %s: read a transmit timestamp: %w", d.iface.Name, e)
		}
		if t, id, ok = d.stamps.message.Stamp(); !ok || t.Nanoseconds == 0 {
			return 0, nic.Timestamp{}, false,
				fmt.Errorf("afpacket: interface %s: the socket's error queue held no transmit "+
					"timestamp", d.iface.Name)
		}
		return id, t, true, nil
	}
}
