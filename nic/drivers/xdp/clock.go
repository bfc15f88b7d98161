package xdp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// clock is struct clock of state.h.
type clock struct {
	Offset, ErrorEstimate            uint64
	DeviceAt, DeviceTAI, DeviceRates uint64
}

// clockKeeper gives the program the information that the kernel's TAI lacks: its offset from UTC, its error bound, and
// the relation to the interface's own clock.
type clockKeeper struct {
	clocks *ebpf.Map
	phc    *phc // nil if the interface has none
	last   sample
	done   chan struct{} // closed when run has ended

	adjtimex func(*unix.Timex) (state int, err error)
	offset   uint64        // of TAI, as last read
	failures atomic.Uint64 // readings that failed
}

// sample is one reading of the device's clock, and of the kernel's TAI at the same moment.
type sample struct{ device, tai uint64 }

// run updates the clock once a second until ctx is done.
func (k *clockKeeper) run(ctx context.Context) {
	defer close(k.done)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			k.update()
		}
	}
}

// update sets the clock. If that fails, replies say that the clock is not synchronised, rather than repeat an old error
// estimate.
func (k *clockKeeper) update() {
	err := k.set()
	if err == nil {
		return
	}
	if k.failures.Add(1) == 1 {
		slog.Warn("STAMP replies are marked as not synchronised: the clock could not be read", "reason", err)
	}
	// if the map cannot be written, nothing can be marked
	_ = k.put(clock{Offset: k.offset, ErrorEstimate: uint64(fastpath.KernelEstimate(false, 0))})
}

// set reads the kernel's clock and passes it to the program.
func (k *clockKeeper) set() error {
	var t unix.Timex
	state, err := k.adjtimex(&t)
	if err != nil {
		return fmt.Errorf("the kernel's clock: adjtimex: %w", err)
	}
	synchronised := state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
	k.offset = uint64(int64(t.Tai))
	v := clock{Offset: k.offset, ErrorEstimate: uint64(fastpath.KernelEstimate(synchronised, t.Maxerror))}
	if k.phc != nil {
		if s, err := k.phc.read(); err == nil {
			v.DeviceAt, v.DeviceTAI, v.DeviceRates = s.device, s.tai, rate(k.last, s)
			k.last = s
		}
	}
	return k.put(v)
}

// put makes v the active clock. It does not modify the previous one, because the program may be reading it for a frame.
func (k *clockKeeper) put(v clock) error {
	var both programClockPair
	if err := k.clocks.Lookup(uint32(0), &both); err != nil {
		return fmt.Errorf("the program's clock: %w", err)
	}
	next := &both.Clock[1-both.Sequence&1]
	next.Offset, next.ErrorEstimate = v.Offset, v.ErrorEstimate
	next.DeviceAt, next.DeviceTai, next.DeviceRate = v.DeviceAt, v.DeviceTAI, v.DeviceRates
	if err := k.clocks.Put(uint32(0), both); err != nil {
		return fmt.Errorf("the program's clock: %w", err)
	}
	both.Sequence++
	if err := k.clocks.Put(uint32(0), both); err != nil {
		return fmt.Errorf("the program's clock: %w", err)
	}
	return nil
}

// rate is the number of TAI nanoseconds per nanosecond of the device's clock, with 32 fractional bits, from two
// samples. It is 0 if the samples are unusable: the first one, a clock that was stepped, or one that deviates by more
// than 0.1 %.
func rate(a, b sample) uint64 {
	device, tai := b.device-a.device, b.tai-a.tai
	if a.device == 0 || device == 0 || device > math.MaxUint32 || tai > math.MaxUint32 {
		return 0
	}
	r, _ := bits.Div64(tai>>32, tai<<32, device)
	if const1 := uint64(1 << 32); r < const1-const1/1000 || r > const1+const1/1000 {
		return 0
	}
	return r
}

// keepClock gives the program the clocks if it has test packets to answer, and keeps them up to date.
func (d *Device) keepClock(c *fastpath.Config) error {
	if len(c.STAMPPorts) == 0 {
		return nil
	}
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnKtimeGetTaiNs); errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("STAMP in the kernel takes Linux 6.1 or later, whose programs can read the time of day (bpf_ktime_get_tai_ns): %w", err)
	}
	k := &clockKeeper{clocks: d.maps.Clocks, done: make(chan struct{}), adjtimex: unix.Adjtimex}
	k.phc = d.deviceClock()
	if err := k.set(); err != nil {
		return err
	}
	d.clock = k
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	go k.run(ctx)
	return nil
}

// deviceClock opens the interface's own clock and enables timestamps for all frames until Close, if its driver passes
// the timestamps to programs. Otherwise it returns nil.
func (d *Device) deviceClock() *phc {
	if !d.features.Tells(xdpkit.Timestamp) || !d.object.types.Known("bpf_xdp_metadata_rx_timestamp") {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	d.ioctl = fd
	ts, err := unix.IoctlGetEthtoolTsInfo(fd, d.iface.Name)
	if err != nil || ts.Phc_index < 0 || ts.Rx_filters&(1<<unix.HWTSTAMP_FILTER_ALL) == 0 {
		return nil
	}
	p, err := openPHC(int(ts.Phc_index))
	if err != nil {
		d.note("no receive timestamps from the card: its clock /dev/ptp%d cannot be read: %v", ts.Phc_index, err)
		return nil
	}
	old, err := unix.IoctlGetHwTstamp(fd, d.iface.Name)
	if err == nil && old.Rx_filter != unix.HWTSTAMP_FILTER_ALL {
		want := *old
		want.Rx_filter = unix.HWTSTAMP_FILTER_ALL
		if err = unix.IoctlSetHwTstamp(fd, d.iface.Name, &want); err == nil {
			d.stamping = old
		}
	}
	if err != nil {
		d.note("no receive timestamps from the card: SIOCSHWTSTAMP: %v", err)
		p.close()
		return nil
	}
	return p
}
