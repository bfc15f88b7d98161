package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rebound-nic/rebound/latency"
)

// qemu is a process of QEMU, with its guest's second serial line.
type qemu struct {
	m      Machine
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	limit  *limit
	log    *os.File
	cancel func()
	waited chan struct{}
	err    error // from Wait
}

// start starts QEMU, with the time limit of a boot.
func (k *Kit) start(ctx context.Context, m Machine, args []string) (*qemu, error) {
	q := &qemu{m: m, waited: make(chan struct{})}
	log, err := os.Create(filepath.Join(m.Dir, "qemu.log"))
	if err != nil {
		return nil, err
	}
	ctx, q.cancel = context.WithCancel(ctx)
	q.log = log
	q.cmd = exec.CommandContext(ctx, k.QEMU, args...)
	q.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	q.cmd.Stderr = log
	for _, d := range m.Devices {
		q.cmd.ExtraFiles = append(q.cmd.ExtraFiles, d.Files...)
	}
	// Not StdoutPipe, which Wait closes: the last lines are read after QEMU has ended.
	out, w, err := os.Pipe()
	if err != nil {
		q.cancel()
		return nil, errors.Join(err, log.Close())
	}
	q.cmd.Stdout, q.out = w, out
	if q.in, err = q.cmd.StdinPipe(); err != nil {
		q.cancel()
		return nil, errors.Join(err, log.Close(), out.Close(), w.Close())
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the signal is sent when this thread exits: another goroutine might end the thread
		defer runtime.UnlockOSThread()
		err := q.cmd.Start()
		w.Close()
		started <- err
		if err == nil {
			q.err = q.cmd.Wait()
		}
		close(q.waited)
	}()
	if err := <-started; err != nil {
		q.cancel()
		return nil, errors.Join(fmt.Errorf("lab: start QEMU: %w", err), log.Close(), out.Close())
	}
	q.limit = newLimit(bootTime, func() {
		diagnose(q)
		q.cancel()
	})
	return q, nil
}

// end kills QEMU if it is still running.
func (q *qemu) end() {
	q.limit.stop()
	q.cancel()
	<-q.waited
	q.log.Close()
	q.out.(io.Closer).Close()
}

// result waits for QEMU to end, and returns the reason if a run failed.
func (q *qemu) result(err error, last string) error {
	if err != nil && !q.limit.expired() {
		q.cancel()
	}
	<-q.waited
	qemuLog := filepath.Join(q.m.Dir, "qemu.log")
	switch {
	case q.limit.expired():
		return fmt.Errorf("%w: no end in time; it said last: %s (stacks of guest, QEMU and models: %s)", errGuest, last,
			q.m.Dir)
	case err != nil:
		return fmt.Errorf("%w; QEMU said: %s", err, tail(qemuLog))
	case q.err != nil:
		return fmt.Errorf("%w: QEMU: %v: %s", errGuest, q.err, tail(qemuLog))
	}
	return nil
}

// cpu is QEMU's CPU time. QEMU must have ended.
func (q *qemu) cpu() time.Duration {
	s := q.cmd.ProcessState
	return s.UserTime() + s.SystemTime()
}

func (m *Machine) cpus() int {
	if m.OneCPU {
		return 1
	}
	return 2
}

func (m *Machine) monitor() string { return filepath.Join(m.Dir, "monitor") }

// ports is how many functions a machine with an IOMMU can have.
const ports = 12

// hostTSC returns the rate of this host's time stamp counter in Hz, to the MHz, so that it is the same in every run. 0
// if it is unknown.
var hostTSC = sync.OnceValue(func() int64 {
	c, err := latency.NewClock()
	if err != nil {
		return 0
	}
	return int64(math.Round(c.Info().Frequency/1e6)) * 1e6
})

// arguments are QEMU's arguments for the machine without functions.
func (k *Kit) arguments(m Machine) []string {
	// tsc=reliable: on busy cores the watchdog of the time stamp counter waits indefinitely for a virtual CPU that does
	// not run. no_timer_check: the check counts ticks for 40 ms, and the kernel panics if the virtual CPU did not run
	// for most of that time. tsc_early_khz: if the rate is measured on a busy machine, it is up to twenty times too
	// low, and the guest's clock runs that much too fast, permanently in a saved guest. The emulated counter has the
	// host's rate. mitigations=off: nobody attacks an emulated processor. unknown_nmi_panic, panic_print: diagnose
	// sends an NMI to a frozen guest, whose kernel then prints every task's stack.
	q35, boot := "q35", "console=ttyS0 panic=-1 loglevel=8 tsc=reliable no_timer_check mitigations=off "+
		"unknown_nmi_panic panic_print=0x1"
	if hz := hostTSC(); hz > 0 {
		boot += fmt.Sprintf(" tsc_early_khz=%d", hz/1e3)
	}
	if m.IOMMU {
		// strict: memory that a driver unmaps becomes inaccessible to the device immediately, so that a model's late
		// DMA is detected.
		q35, boot = "q35,kernel-irqchip=split", boot+" intel_iommu=on iommu.strict=1"
	}
	args := append(hardware(q35, m.Memory, m.cpus(), m.Dir), "-serial", "stdio", "-monitor",
		"unix:"+m.monitor()+",server=on,wait=off",
		"-kernel", k.Kernel, "-append", strings.TrimSpace(boot+" "+m.Append))
	if m.IOMMU {
		args = append(args, "-device", "intel-iommu,intremap=on,caching-mode=on")
		// The firmware's table lists the devices behind the IOMMU, so the ports exist at boot. They have no hotplug and
		// no power controller, because an empty slot would be powered off permanently. The firmware reserves a window
		// for each port that fits the largest BAR (32 MB).
		for i := range ports {
			args = append(args, "-device",
				fmt.Sprintf("pcie-root-port,id=rp%d,chassis=%d,hotplug=off,power_controller_present=off,mem-reserve=8M,pref64-reserve=64M", i, i+1))
		}
	}
	return args
}

// functions are QEMU's arguments for the functions. A saved guest does not see them until it scans its bus.
func (m *Machine) functions() (args []string) {
	fd := 3 // the first of exec.Cmd's ExtraFiles
	for i, d := range m.Devices {
		backend := d.Backend
		for n := range d.Files {
			backend = strings.ReplaceAll(backend, fmt.Sprintf("FD%d", n), strconv.Itoa(fd))
			fd++
		}
		place := fmt.Sprintf("addr=%#x", 4+len(m.Sockets)+i)
		if m.IOMMU {
			place = fmt.Sprintf("bus=rp%d", len(m.Sockets)+i)
		}
		if d.Socket != "" {
			args = append(args, "-chardev", "socket,"+d.Socket)
		}
		args = append(args, "-netdev", backend, "-device", d.Model+","+place)
	}
	for i, s := range m.Sockets {
		dev := device(s)
		if m.NoPosting {
			dev["x-no-posted-writes"] = true
		}
		if m.IOMMU {
			dev["bus"] = fmt.Sprintf("rp%d", i)
		} else {
			dev["addr"] = fmt.Sprintf("%#x", 4+i)
		}
		j, _ := json.Marshal(dev)
		args = append(args, "-device", string(j))
	}
	return args
}

// processor is the emulated one. It lacks the fast string instructions, which QEMU emulates byte by byte: without them
// the guest's kernel copies and clears memory by loops of moves. Page tables have four levels instead of five.
const processor = "max,-erms,-fsrm,-fzrm,-fsrs,-fsrc,-la57"

// hardware are QEMU's arguments for the machine without functions: memory that a model in another process can map, and
// a first serial line that goes to a file.
func hardware(board, memory string, cpus int, dir string) []string {
	if memory == "" {
		memory = "1G"
	}
	return []string{
		"-M", board, "-accel", "tcg,thread=multi", "-cpu", processor,
		"-smp", strconv.Itoa(cpus), "-m", memory,
		"-object", "memory-backend-memfd,id=ram,size=" + memory + ",share=on", "-machine", "memory-backend=ram",
		"-nodefaults", "-nographic", "-no-reboot", "-serial", "file:" + filepath.Join(dir, "console.log"),
	}
}

// device is the -device value for the function served by a vfio-user socket.
func device(socket string) map[string]any {
	return map[string]any{"driver": "vfio-user-pci", "rombar": 0,
		"socket": map[string]string{"type": "unix", "path": socket}}
}
