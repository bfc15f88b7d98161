package socket

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"rebound/nic"
)

// EnableTimestamps implements nic.Timestamper (Documentation/networking/timestamping.rst). A socket gets stamps of the card
// only where somebody has turned them on (hwstamp_ctl): that takes rights which a socket does without.
func (p *Port) EnableTimestamps(hardware bool) (nic.Timestamping, error) {
	flags := unix.SOF_TIMESTAMPING_SOFTWARE | unix.SOF_TIMESTAMPING_RX_SOFTWARE | unix.SOF_TIMESTAMPING_TX_SOFTWARE |
		unix.SOF_TIMESTAMPING_OPT_ID | unix.SOF_TIMESTAMPING_OPT_TSONLY
	if hardware {
		flags |= unix.SOF_TIMESTAMPING_RAW_HARDWARE | unix.SOF_TIMESTAMPING_RX_HARDWARE | unix.SOF_TIMESTAMPING_TX_HARDWARE |
			unix.SOF_TIMESTAMPING_OPT_TX_SWHW
	}
	if err := unix.SetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPING, flags); err != nil {
		return nic.Timestamping{}, fmt.Errorf("SO_TIMESTAMPING %#x: %w", flags, err)
	}
	p.stamps = true
	in := nic.Timestamping{RxSoftware: true} // by the kernel itself; all else is the interface's driver's
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
		p.tx.expect()
		_, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(p.fd), uintptr(unsafe.Pointer(&p.tx.hdr)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		switch {
		case e == unix.EAGAIN:
			return 0, t, false, nil
		case e == unix.EINTR || p.refused(e):
			continue
		case e != 0:
			return 0, t, false, fmt.Errorf("read a transmit timestamp: %w", e)
		}
		if t, id, ok = p.tx.stamp(); ok && t.Nanoseconds != 0 {
			return id, t, true, nil
		}
	}
}

// expect makes room for control messages.
func (m *message) expect() {
	m.hdr.Control = &m.control[0]
	m.hdr.SetControllen(len(m.control))
}

// stamp reads the stamp that came with a message, and which send it belongs to (ok) if it came from the error queue.
func (m *message) stamp() (t nic.Timestamp, id uint32, ok bool) {
	const head = unix.SizeofCmsghdr
	for b := m.control[:m.hdr.Controllen]; len(b) >= head; {
		size := int((*unix.Cmsghdr)(unsafe.Pointer(&b[0])).Len)
		if size < head || size > len(b) {
			break
		}
		level, kind, data := binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:]), b[head:size]
		switch {
		case level == unix.SOL_SOCKET && kind == unix.SO_TIMESTAMPING && len(data) >= 48: // three timespecs: kernel, unused, card
			for _, at := range [...]int{0, 32} {
				if ns := int64(binary.NativeEndian.Uint64(data[at:]))*1e9 + int64(binary.NativeEndian.Uint64(data[at+8:])); ns != 0 {
					t = nic.Timestamp{Nanoseconds: ns, Hardware: at != 0}
				}
			}
		case (level == unix.SOL_IP && kind == unix.IP_RECVERR || level == unix.SOL_IPV6 && kind == unix.IPV6_RECVERR) && len(data) >= 16:
			const timestamping = 4                       // SO_EE_ORIGIN_TIMESTAMPING
			ok = data[4] == timestamping                 // sock_extended_err: errno, origin, type, code, pad, info, data
			id = binary.NativeEndian.Uint32(data[12:16]) // which send
		}
		b = b[min(len(b), (size+7)&^7):]
	}
	return t, id, ok
}
