package socket

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// EnableTimestamps implements nic.Timestamper (Documentation/networking/timestamping.rst). A socket gets hardware
// timestamps only if they were turned on for the interface (hwstamp_ctl), which requires privileges that a socket does
// not need otherwise.
func (p *Port) EnableTimestamps(hardware bool) (nic.Timestamping, error) {
	flags := unix.SOF_TIMESTAMPING_SOFTWARE | unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_TX_SOFTWARE |
		unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY
	if hardware {
		flags |= unix.SOF_TIMESTAMPING_RAW_HARDWARE | unix.SOF_TIMESTAMPING_RX_HARDWARE |
			unix.SOF_TIMESTAMPING_TX_HARDWARE |
			unix.SOF_TIMESTAMPING_OPT_TX_SWHW
	}
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
		return nic.Timestamping{}, fmt.Errorf("SO_TIMESTAMPING %#x: %w", flags, err)
	}
	p.stamps = true
	in := nic.Timestamping{RxSoftware: true} // by the kernel itself; all others depend on the interface's driver
	if info, err := unix.IoctlGetEthtoolTsInfo(p.fd, p.Interface); err == nil {
		in.TxSoftware = info.So_timestamping&unix.SOF_TIMESTAMPING_TX_SOFTWARE != 0
	}
	if on, err := unix.IoctlGetHwTstamp(p.fd, p.Interface); err == nil && hardware {
		in.RxHardware, in.TxHardware = on.Rx_filter != unix.HWTSTAMP_FILTER_NONE, on.Tx_type != unix.HWTSTAMP_TX_OFF
	}
	return in, nil
}

// RxTimestamp implements nic.Timestamper.
func (p *Port) RxTimestamp() nic.Timestamp { return p.last }

// TxTimestamp implements nic.Timestamper.
func (p *Port) TxTimestamp() (id uint32, t nic.Timestamp, ok bool, err error) {
	for {
		_, e := p.tx.Receive(p.fd, nil, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT, nil)
		switch {
		case e == unix.EAGAIN:
			return 0, t, false, nil
		case e == unix.EINTR || p.refused(e):
			continue
		case e != 0:
			return 0, t, false, fmt.Errorf("read a transmit timestamp: %w", e)
		}
		if t, id, ok = p.tx.Stamp(); ok && t.Nanoseconds != 0 {
			return id, t, true, nil
		}
	}
}
