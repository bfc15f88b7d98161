package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Machine is one run of a guest.
type Machine struct {
	Dir     string            // receives console.log, qemu.log and the disk with the script
	Sockets []string          // vfio-user functions, in this order on the bus
	Devices []Device          // QEMU's own devices, after those in Sockets on the bus
	Append  string            // additions to the kernel's command line
	IOMMU   bool              // an IOMMU with interrupt remapping, and a separate root port for each function
	Script  string            // shell, sourced by the guest's init: see guest/init for say, show, need and fail
	Files   map[string][]byte // placed below /lab, executable
	Layers  []string          // additional layers of the guest's root: DPDK, Pyverbs, EFA
	Memory  string            // of the guest; "1G" if empty
	OneCPU  bool              // instead of two: a second one doubles the CPU time while a program polls
	Fresh   bool              // boot with the functions attached, not from a saved guest

	// NoPosting makes a processor of the guest wait until a function has handled its write of a register. Linux's efa
	// reads registers by a write, and waits 50 ms for the answer, in which a busy machine may not run the model at all.
	NoPosting bool

	// Limit is how long the script may take on an idle machine. On a busy machine it grows with the load: see limit.
	// Booting has a separate limit.
	Limit time.Duration

	// Say is called for each line that the guest says, while the guest waits, with the output shown so far. An error
	// ends the run, except for errAgain. A failed boot is reported with the key "unbooted".
	Say func(key, text string, shown Result) error
}

// Device is a function that QEMU itself models, with its backend.
type Device struct {
	Model   string     // value of -device, without bus and addr: "virtio-net-pci,netdev=n0"
	Backend string     // value of -netdev; the file descriptors of Files are named FD0, FD1 and so on in it
	Files   []*os.File // passed to QEMU
	Socket  string     // value of -chardev socket, if Backend names one: "id=c0,path=PATH"
}

// A kernel under emulation on a busy machine (seen at a load of 18 on two cores) occasionally loses a timer or its
// second processor while it starts, which says nothing about a driver. So a guest that does not reach its init is
// booted again.
const (
	boots    = 3
	bootTime = 2 * time.Minute
)

// Result has the output of the guest: the lines of each "show KEY COMMAND".
type Result map[string][]string

// errGuest means that the guest's script failed, or that the guest ended before its script did.
var errGuest = errors.New("guest failed")

// errBreakpoint means that the guest's kernel died of QEMU's emulation: the kernel patches its code by inserting a
// breakpoint temporarily, and an emulated processor may execute it after another removed it. (Probably QEMU drops its
// translation of the code just before it writes to it, and another thread translates the old code in between.)
var errBreakpoint = errors.New("the guest's kernel executed a removed breakpoint")

// errAgain is returned by Say to make the guest show values again that may not have settled yet: the guest gets the
// reply "again".
var errAgain = errors.New("again")

// Run starts from a saved guest of the same kernel, command line and layers (it boots and saves one if there is none),
// runs the script, and powers the guest off. When ctx ends, it kills QEMU, and no other process. A script that exceeds
// its limit ends with an error, and with the guest's stacks in the machine's folder: see diagnose.
func (k *Kit) Run(ctx context.Context, m Machine) (Result, error) {
	disk, err := m.disk()
	if err != nil {
		return nil, err
	}
	defer os.Remove(disk)
	u := Usage{Boots: 1}
	for ; ; u.Boots++ {
		start := time.Now()
		state, err := "", error(nil)
		if !m.Fresh {
			state, err = k.saved(ctx, m)
		}
		u.Boot += time.Since(start)
		var r Result
		booted := false
		if err == nil {
			r, booted, err = k.run(ctx, m, state, disk, &u)
		}
		died := err != nil && breakpointed(m)
		if died {
			err = fmt.Errorf("%w: %w", errBreakpoint, err)
		}
		if err == nil || booted || u.Boots == boots || ctx.Err() != nil {
			if k.Used != nil {
				k.Used(u)
			}
			if died && k.Died != nil {
				k.Died(err)
			}
			return r, err
		}
		if state != "" {
			os.Remove(state) // it may be the cause
		}
		if m.Say != nil {
			if err := m.Say("unbooted", err.Error(), r); err != nil {
				return r, err
			}
		}
	}
}

// Usage is the time that a run took, by phase.
type Usage struct {
	Boots  int           // attempts
	Boot   time.Duration // booting and saving a guest, if needed
	Resume time.Duration // from the start of QEMU to the start of the script
	Script time.Duration // from the start of the script to the end of QEMU
	CPU    time.Duration // QEMU's CPU time, without Boot
}

// breakpointed reports whether the guest's kernel died as errBreakpoint says.
func breakpointed(m Machine) bool {
	log, err := os.ReadFile(filepath.Join(m.Dir, "console.log"))
	return err == nil && bytes.Contains(log, []byte("Oops: int3"))
}

// endIfBreakpointed kills QEMU soon after its guest's kernel died from a breakpoint: that kernel may wait for a lock of
// a processor which it stopped.
func (q *qemu) endIfBreakpointed() {
	t := time.NewTicker(5 * time.Second)
	defer t.Stop()
	for died := false; ; {
		select {
		case <-q.waited:
			return
		case <-t.C:
			if died { // it had time to print why
				q.cancel()
				return
			}
			died = breakpointed(q.m)
		}
	}
}

// run runs the script in a guest that starts from a saved state.
func (k *Kit) run(ctx context.Context, m Machine, state, disk string, u *Usage) (r Result, booted bool, err error) {
	args := append(k.arguments(m), m.functions()...)
	args = append(args, "-drive", "if=none,id=disk,format=raw,readonly=on,file="+disk, "-device",
		"virtio-blk-pci,drive=disk,addr=0x1e")
	if m.Fresh {
		initrd, err := k.initrdOf(m)
		if err != nil {
			return nil, false, err
		}
		defer os.Remove(initrd)
		args = append(args, "-initrd", initrd)
	} else {
		args = append(args, "-global", "migration.mapped-ram=on", "-incoming", "file:"+state)
	}
	start := time.Now()
	q, err := k.start(ctx, m, args)
	if err != nil {
		return nil, false, err
	}
	defer q.end()
	go q.endIfBreakpointed()
	if !m.Fresh { // the saved guest has said "ready", and waits for a reply
		if _, err := io.WriteString(q.in, "ok\n"); err != nil {
			return nil, false, err
		}
	}
	say := m.Say
	m.Say = func(key, text string, r Result) error {
		if key == "ready" && !booted { // from the init
			return nil
		}
		if key == "boot" {
			booted = true
			u.Resume, start = time.Since(start), time.Now()
			q.limit.extend(m.Limit)
		}
		if say == nil {
			return nil
		}
		return say(key, text, r)
	}
	r = Result{}
	last, err := r.follow(m, q.in, q.out)
	err = q.result(err, last)
	u.Script, u.CPU = time.Since(start), q.cpu()
	return r, booted, err
}

// follow reads the guest's second serial line until it is closed.
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
			return last, fmt.Errorf("%w: %s: %s", errGuest, text, strings.Join(r["failed"], " | "))
		case key == "done":
			done = true
		default:
			if err := m.Say(key, text, r); errors.Is(err, errAgain) {
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
		return last, fmt.Errorf("%w: it ended before its script did; it said last: %s", errGuest, last)
	}
	return last, nil
}

// tail is the end of a file, for an error message.
func tail(name string) string {
	b, _ := os.ReadFile(name)
	return strings.TrimSpace(string(b[max(0, len(b)-500):]))
}
