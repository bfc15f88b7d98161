package xdp

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// phc is the PTP hardware clock of an interface, which its driver uses for receive timestamps.
type phc struct{ file *os.File }

// openPHC opens clock /dev/ptp<index>.
func openPHC(index int) (*phc, error) {
	f, err := os.OpenFile(fmt.Sprintf("/dev/ptp%d", index), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	p := &phc{f}
	if _, err := p.read(); err != nil {
		f.Close()
		return nil, err
	}
	return p, nil
}

// read returns the closest of some readings of both clocks (PTP_SYS_OFFSET_EXTENDED).
func (p *phc) read() (s sample, err error) {
	o, err := unix.IoctlPtpSysOffsetExtended(int(p.file.Fd()), 8)
	if err != nil {
		return s, fmt.Errorf("PTP_SYS_OFFSET_EXTENDED: %w", err)
	}
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return s, fmt.Errorf("adjtimex: %w", err)
	}
	ns := func(c unix.PtpClockTime) int64 { return c.Sec*1e9 + int64(c.Nsec) }
	best := int64(1) << 62
	for _, r := range o.Ts[:o.Samples] { // the system's clock, the device's, the system's
		before, device, after := ns(r[0]), ns(r[1]), ns(r[2])
		if width := after - before; width >= 0 && width < best {
			best = width
			s = sample{uint64(device), uint64(before + width/2 + int64(t.Tai)*1e9)}
		}
	}
	return s, nil
}

func (p *phc) close() { p.file.Close() }
