package blame

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

//go:generate go tool bpf2go -go-package blame -target bpfel -type span -type order -cflags "-O2 -Wall -Werror -mcpu=v3" spin spin.c

// spinner keeps a core busy inside the kernel. It consists of file descriptors, and ends with the process.
type spinner struct {
	core    int
	objects spinObjects
	closers []func() error
}

func newSpinner(core int) (*spinner, error) {
	xdpkit.LiftMemlock()
	s := &spinner{core: core}
	if err := loadSpinObjects(&s.objects, nil); err != nil {
		return nil, fmt.Errorf("the programs that spin: %w", err)
	}
	s.closers = append(s.closers, s.objects.Close)
	return s, nil
}

func (s *spinner) close() {
	for _, f := range slices.Backward(s.closers) {
		_ = f()
	}
}

// until has each run of a program keep its core for the time spend, until a time.
func (s *spinner) until(at time.Time) error {
	return s.objects.Orders.Put(uint32(0), spinOrder{Until: uint64(at.UnixNano() - sinceBoot()), Spend: uint64(spend)})
}

// spans returns when the programs kept the core busy.
func (s *spinner) spans() (all []pulse, err error) {
	r, err := ringbuf.NewReader(s.objects.Spans)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	r.SetDeadline(time.Unix(1, 0)) // do not wait
	more := sinceBoot()
	for r.AvailableBytes() > 0 {
		one, err := r.Read()
		if err != nil {
			return nil, err
		}
		var v spinSpan
		if _, err := binary.Decode(one.RawSample, binary.NativeEndian, &v); err != nil {
			return nil, err
		}
		if int(v.Cpu) == s.core {
			all = append(all, pulse{from: int64(v.Start) + more, to: int64(v.End) + more})
		}
	}
	return all, nil
}

// sinceBoot returns what has to be added to CLOCK_MONOTONIC for ns since 1970.
func sinceBoot() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Now().UnixNano() - t.Nano()
}

// attach attaches an XDP program to an interface, whose frames the core handles (RPS).
func (s *spinner) attach(in *testbed.Namespace, name string, program *ebpf.Program) error {
	if err := steer(in, name, s.core); err != nil {
		return fmt.Errorf("RPS of %s: %w", name, err)
	}
	return in.Do(func() error {
		at, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: at.Attrs().Index,
			Flags: link.XDPGenericMode})
		if err != nil {
			return fmt.Errorf("an XDP program on %s: %w", name, err)
		}
		s.closers = append(s.closers, l.Close)
		return nil
	})
}

// steer has a core handle the frames that an interface receives.
func steer(in *testbed.Namespace, name string, core int) error {
	done := make(chan error)
	go func() { // sysfs shows the interfaces of the namespace that mounts it; the thread ends, and the mount with it
		runtime.LockOSThread()
		const sys = "/sys"
		done <- errors.Join(unix.Setns(in.FD, unix.CLONE_NEWNET), unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("sysfs", sys, "sysfs", 0, ""), os.WriteFile(sys+"/class/net/"+name+"/queues/rx-0/rps_cpus",
				fmt.Appendf(nil, "%x", 1<<core), 0))
	}()
	return <-done
}

// spend is how long an interrupt, or the handling of a frame, keeps the core.
const spend = 400 * time.Microsecond

// interrupts plants interrupts of a core by a high-resolution timer, which keep it busy for nine tenths of a pulse.
func interrupts(core int) action {
	return func(s *scene, schedule []pulse, _ *rand.Rand) ([]pulse, error) {
		return spinning(core, s, schedule, func(p *spinner) (on func(time.Time) error, off func() error, err error) {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK,
				Sample: uint64(spend * 11 / 10),
				Size:   unix.PERF_ATTR_SIZE_VER5, Bits: unix.PerfBitDisabled}
			fd, err := unix.PerfEventOpen(&attr, -1, core, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err != nil {
				return nil, nil, fmt.Errorf("a timer's interrupts on CPU %d: %w", core, err)
			}
			p.closers = append(p.closers, func() error { return unix.Close(fd) })
			if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, p.objects.Interrupt.FD()); err != nil {
				return nil, nil, fmt.Errorf("a program in a timer's interrupts: %w", err)
			}
			return func(time.Time) error { return unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0) },
				func() error { return unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_DISABLE, 0) }, nil
		})
	}
}

// softirqs plants received frames whose handling keeps a core busy for a whole pulse, on a veth pair that nothing else
// uses.
func softirqs(core int) action {
	return func(s *scene, schedule []pulse, _ *rand.Rand) ([]pulse, error) {
		return spinning(core, s, schedule, func(p *spinner) (on func(time.Time) error, off func() error, err error) {
			from, to := fmt.Sprintf("flood%d", core), fmt.Sprintf("drain%d", core)
			if err := pair(s.bed.middle, from, s.bed.middle, to); err != nil {
				return nil, nil, fmt.Errorf("interfaces of a flood: %w", err)
			}
			if err := p.attach(s.bed.middle, to, p.objects.Drop); err != nil {
				return nil, nil, err
			}
			fd := -1
			if err := s.bed.middle.Do(func() (err error) { fd, err = packetSocket(from); return err }); err != nil {
				return nil, nil, err
			}
			p.closers = append(p.closers, func() error { return unix.Close(fd) })
			var others unix.CPUSet // so that the handling does not run inside the sending thread
			for i := range runtime.NumCPU() {
				others.Set(i)
			}
			others.Clear(core)
			frame := make([]byte, 60)
			frame[12], frame[13] = 0x88, 0xb5 // local experiments (IEEE 802)
			return func(end time.Time) error {
				if err := unix.SchedSetaffinity(0, &others); err != nil {
					return err
				}
				for range time.Until(end)/spend + 1 {
					if _, err := unix.Write(fd, frame); err != nil && !errors.Is(err, unix.ENOBUFS) &&
						!errors.Is(err, unix.EAGAIN) {
						return fmt.Errorf("a flood: %w", err)
					}
				}
				return nil
			}, func() error { return nil }, nil
		})
	}
}

// slowXDP is an XDP program on the responder's interface that keeps the responder's core for each frame of a pulse.
func slowXDP(s *scene, schedule []pulse, _ *rand.Rand) ([]pulse, error) {
	return spinning(responderCore, s, schedule, func(p *spinner) (on func(time.Time) error, off func() error,
		err error) {
		idle := func() error { return nil }
		return func(time.Time) error { return nil }, idle, p.attach(s.bed.far, farIface, p.objects.Pass)
	})
}

// spinning runs a spinner in pulses, and returns when it kept its core busy.
func spinning(core int, s *scene, schedule []pulse, begin func(*spinner) (on func(end time.Time) error,
	off func() error, err error)) ([]pulse, error) {
	p, err := newSpinner(core)
	if err != nil {
		return nil, err
	}
	defer p.close()
	on, off, err := begin(p)
	if err != nil {
		return nil, err
	}
	_, err = each(s, schedule, func(end time.Time) error { return errors.Join(p.until(end), on(end)) }, off)
	all, serr := p.spans()
	return all, errors.Join(err, serr)
}
