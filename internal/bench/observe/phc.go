package observe

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// hardwareClock is a PTP hardware clock (PHC) compared with the system's clock.
type hardwareClock struct {
	name  string        // /dev/ptp0
	ahead time.Duration // offset of the system's clock from the PHC, including whole seconds of TAI
	// the error of the reading is at most half of it: 0 if the hardware reads both at the same moment
	window time.Duration
}

// errNoPHC means that an interface has no PHC.
var errNoPHC = errors.New("it has no PTP hardware clock")

// readPHC reads the PHC of a network interface.
func readPHC(iface string) (h hardwareClock, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return h, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolTsInfo(fd, iface)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return h, errNoPHC
	case err != nil:
		return h, fmt.Errorf("ETHTOOL_GET_TS_INFO: %w", err)
	case info.Phc_index < 0:
		return h, errNoPHC
	}
	h.name = fmt.Sprintf("/dev/ptp%d", info.Phc_index)
	f, err := os.Open(h.name) // reading a clock needs no write permission
	if err != nil {
		return h, err
	}
	defer f.Close()
	clock := int(f.Fd())
	if p, err := unix.IoctlPtpSysOffsetPrecise(clock); err == nil {
		h.ahead = time.Duration(nanoseconds(p.Device) - nanoseconds(p.Realtime))
		return h, nil
	}
	const samples = 10
	x, err := unix.IoctlPtpSysOffsetExtended(clock, samples)
	if err != nil {
		return h, fmt.Errorf("%s: PTP_SYS_OFFSET_EXTENDED: %w", h.name, err)
	}
	h.ahead, h.window, err = nearest(x.Ts[:min(int(x.Samples), len(x.Ts))])
	return h, err
}

// nearest uses the sample whose two readings of the system's clock are closest to each other: before, PHC, after.
func nearest(all [][3]unix.PtpClockTime) (ahead, window time.Duration, err error) {
	best := int64(-1)
	for _, r := range all {
		before, after := nanoseconds(r[0]), nanoseconds(r[2])
		if w := after - before; w >= 0 && (best < 0 || w < best) {
			best = w
			ahead = time.Duration(nanoseconds(r[1]) - before - w/2)
		}
	}
	if best < 0 {
		return 0, 0, errors.New("the system's clock went backwards in each reading of the PHC")
	}
	return ahead, time.Duration(best), nil
}

func nanoseconds(t unix.PtpClockTime) int64 { return t.Sec*1e9 + int64(t.Nsec) }
