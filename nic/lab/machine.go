package lab

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed guest/init
var guestInit []byte

// Machine is one run of a guest.
type Machine struct {
	Dir     string            // takes console.log, qemu.log and the run's initramfs
	Sockets []string          // vfio-user functions, in this order on the bus
	Devices []Device          // QEMU's own functions, behind those on the bus
	Append  string            // more of the kernel's command line
	IOMMU   bool              // an IOMMU with interrupt remapping, and each function behind a root port of its own
	Script  string            // shell, sourced by the guest's init: see guest/init for say, show, need and fail
	Files   map[string][]byte // put below /lab, executable
	Layers  []string          // laid over the guest's root: DPDK, Pyverbs, EFA
	Memory  string            // of the guest; "1G" if empty

	// Limit is how long the script may take where nothing else runs; a busy machine gets six times that. Booting has a limit
	// of its own.
	Limit time.Duration

	// Say is called for each line that the guest says, while the guest waits, with what it showed so far. An error ends
	// the run, but for ErrAgain. It hears of a boot that did not work as key "unbooted".
	Say func(key, text string, shown Result) error
}

// Device is a function that QEMU itself models, and what is behind it.
type Device struct {
	Model   string     // value of -device, without bus and addr: "virtio-net-pci,netdev=n0"
	Backend string     // value of -netdev; the file descriptors of Files are named FD0, FD1 and so on in it
	Files   []*os.File // passed to QEMU
	Socket  string     // value of -chardev socket, if Backend names one: "id=c0,path=PATH"
}

// Where a machine is busy (seen at a load of 18 on two cores), a kernel that is translated now and then loses a timer or its
// second processor while it starts, which says nothing of a driver. So a guest that has not come as far as its init is
// booted again.
const (
	boots    = 3
	bootTime = 2 * time.Minute
	busy     = 6 // how often Machine.Limit
)

// Result is what a guest showed: the lines of each "show KEY COMMAND".
type Result map[string][]string

// ErrGuest means that the guest's script failed, or that the guest ended before its script did.
var ErrGuest = errors.New("guest failed")

// ErrAgain is what Say returns to have the guest show once more what may not have settled yet: the guest is answered "again".
var ErrAgain = errors.New("again")

// Run boots the guest, runs the script, and powers it off. It kills QEMU, and no other process, when ctx ends or the
// script takes longer than its limit.
func (k *Kit) Run(ctx context.Context, m Machine) (Result, error) {
	initrd, err := k.runInitrd(m)
	if err != nil {
		return nil, err
	}
	defer os.Remove(initrd)
	for boot := 1; ; boot++ {
		r, booted, err := k.run(ctx, m, initrd)
		if err == nil || booted && !breakpointed(m) || boot == boots || ctx.Err() != nil {
			return r, err
		}
		if m.Say != nil {
			if err := m.Say("unbooted", err.Error(), r); err != nil {
				return r, err
			}
		}
	}
}

// breakpointed reports whether the guest's kernel died of a breakpoint of its own: it patches its code by putting one there for a
// moment, and QEMU's emulation of a processor may execute it after the other one took it out.
func breakpointed(m Machine) bool {
	log, err := os.ReadFile(filepath.Join(m.Dir, "console.log"))
	return err == nil && bytes.Contains(log, []byte("Oops: int3"))
}

// run is Run with one boot.
func (k *Kit) run(ctx context.Context, m Machine, initrd string) (r Result, booted bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.QEMU, k.arguments(m, initrd)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // whose death the signal is for: another goroutine might end it
	defer runtime.UnlockOSThread()
	log, err := os.Create(filepath.Join(m.Dir, "qemu.log"))
	if err != nil {
		return nil, false, err
	}
	defer log.Close()
	cmd.Stderr = log
	for _, d := range m.Devices {
		cmd.ExtraFiles = append(cmd.ExtraFiles, d.Files...)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, false, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, false, err
	}
	if err := cmd.Start(); err != nil {
		return nil, false, fmt.Errorf("lab: start QEMU: %w", err)
	}
	limit := time.AfterFunc(bootTime, func() {
		threads(cmd.Process.Pid, filepath.Join(m.Dir, "threads.log"))
		cancel()
	})
	defer limit.Stop()
	say := m.Say
	m.Say = func(key, text string, r Result) error {
		if key == "boot" {
			booted = true
			limit.Reset(busy * m.Limit)
		}
		if say == nil {
			return nil
		}
		return say(key, text, r)
	}
	r = Result{}
	last, err := r.follow(m, in, out)
	if err != nil {
		cmd.Process.Kill()
	}
	werr := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return r, booted, fmt.Errorf("%w: no end in time; it said last: %s", ErrGuest, last)
	case err != nil:
		return r, booted, fmt.Errorf("%w; QEMU said: %s", err, tail(filepath.Join(m.Dir, "qemu.log")))
	case werr != nil:
		return r, booted, fmt.Errorf("%w: QEMU: %v: %s", ErrGuest, werr, tail(filepath.Join(m.Dir, "qemu.log")))
	}
	return r, booted, nil
}

// threads writes what each thread of a process does: of a QEMU that takes too long it says whether it is QEMU or its guest that stands
// still.
func threads(pid int, file string) {
	var b strings.Builder
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		fmt.Fprintln(&b, filepath.Base(task))
		for _, what := range []string{"comm", "stat", "wchan", "syscall", "stack"} { // stack is for root
			text, err := os.ReadFile(filepath.Join(task, what))
			if err == nil && len(text) > 0 {
				fmt.Fprintf(&b, "%s: %s\n", what, strings.TrimSpace(string(text)))
			}
		}
	}
	_ = os.WriteFile(file, []byte(b.String()), 0o644)
}

// follow reads the guest's second serial line until it is done.
func (r Result) follow(m Machine, in io.Writer, out io.Reader) (last string, err error) {
	last = "nothing"
	done := false
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := strings.TrimRight(sc.Text(), "\r")
		if s, ok := strings.CutPrefix(line, "#="); ok {
			if key, text, ok := strings.Cut(s, " "); ok {
				r[key] = append(r[key], text)
			}
			continue
		}
		s, ok := strings.CutPrefix(line, "##")
		if !ok {
			continue
		}
		last = s
		key, text, _ := strings.Cut(s, " ")
		answer := "ok\n"
		switch {
		case key == "fail":
			return last, fmt.Errorf("%w: %s: %s", ErrGuest, text, strings.Join(r["failed"], " | "))
		case key == "done":
			done = true
		default:
			if err := m.Say(key, text, r); errors.Is(err, ErrAgain) {
				answer = "again\n"
			} else if err != nil {
				return last, err
			}
		}
		if _, err := io.WriteString(in, answer); err != nil {
			break
		}
	}
	if !done {
		return last, fmt.Errorf("%w: it ended before its script did; it said last: %s", ErrGuest, last)
	}
	return last, nil
}

func (k *Kit) arguments(m Machine, initrd string) []string {
	// tsc=reliable: on busy cores the watchdog of the time stamp counter waits for ever for a virtual CPU that is not run.
	// no_timer_check: there the kernel counts ticks for 40 ms, and panics if the virtual CPU was not run for most of it.
	q35, boot := "q35", "console=ttyS0 panic=-1 loglevel=8 tsc=reliable no_timer_check"
	if m.IOMMU {
		// strict: what a driver has unmapped is the device's no longer at once, so that a model's late DMA is found out.
		q35, boot = "q35,kernel-irqchip=split", boot+" intel_iommu=on iommu.strict=1"
	}
	boot = strings.TrimSpace(boot + " " + m.Append)
	args := append(hardware(q35, m.Memory, m.Dir), "-serial", "stdio", "-kernel", k.Kernel, "-initrd", initrd, "-append", boot)
	if m.IOMMU {
		args = append(args, "-device", "intel-iommu,intremap=on,caching-mode=on")
	}
	fd := 3 // the first of exec.Cmd's ExtraFiles
	for i, d := range m.Devices {
		backend := d.Backend
		for n := range d.Files {
			backend = strings.ReplaceAll(backend, fmt.Sprintf("FD%d", n), strconv.Itoa(fd))
			fd++
		}
		place := fmt.Sprintf("addr=%#x", 4+len(m.Sockets)+i)
		if m.IOMMU {
			args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=own%d,chassis=%d", i, 1+len(m.Sockets)+i))
			place = fmt.Sprintf("bus=own%d", i)
		}
		if d.Socket != "" {
			args = append(args, "-chardev", "socket,"+d.Socket)
		}
		args = append(args, "-netdev", backend, "-device", d.Model+","+place)
	}
	for i, s := range m.Sockets {
		dev := device(s)
		if m.IOMMU {
			args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=rp%d,chassis=%d", i, i+1))
			dev["bus"] = fmt.Sprintf("rp%d", i)
		} else {
			dev["addr"] = fmt.Sprintf("%#x", 4+i)
		}
		j, _ := json.Marshal(dev)
		args = append(args, "-device", string(j))
	}
	return args
}

// hardware is the machine without functions: memory that a model in another process can map, and a first serial line that goes
// to a file.
func hardware(board, memory, dir string) []string {
	if memory == "" {
		memory = "1G"
	}
	return []string{
		"-M", board, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", memory,
		"-object", "memory-backend-memfd,id=ram,size=" + memory + ",share=on", "-machine", "memory-backend=ram",
		"-nodefaults", "-nographic", "-no-reboot", "-serial", "file:" + filepath.Join(dir, "console.log"),
	}
}

// device is the function behind a vfio-user socket, for -device.
func device(socket string) map[string]any {
	return map[string]any{"driver": "vfio-user-pci", "rombar": 0, "socket": map[string]string{"type": "unix", "path": socket}}
}

// runInitrd is the kit's initramfs with the run's layers and own files behind it.
func (k *Kit) runInitrd(m Machine) (string, error) {
	name := filepath.Join(m.Dir, "initrd")
	f, err := os.Create(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	parts := []string{k.initrd}
	for _, l := range m.Layers {
		parts = append(parts, k.layer(l))
	}
	for _, part := range parts {
		b, err := os.ReadFile(part)
		if err != nil {
			return "", err
		}
		if _, err := f.Write(append(b, make([]byte, (4-len(b)%4)%4)...)); err != nil {
			return "", err
		}
	}
	a := newArchive(f)
	a.file("init", 0o755, guestInit)
	a.dir("lab")
	a.file("lab/run.sh", 0o755, []byte(m.Script))
	for path, body := range m.Files {
		a.file("lab/"+path, 0o755, body)
	}
	return name, a.close()
}

// tail is the end of a file, for an error message.
func tail(name string) string {
	b, _ := os.ReadFile(name)
	return strings.TrimSpace(string(b[max(0, len(b)-500):]))
}
