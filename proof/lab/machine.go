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
	Devices []Device          // QEMU's own functions, behind those on the bus
	Append  string            // more of the kernel's command line
	IOMMU   bool              // an IOMMU with interrupt remapping, and each function behind its own root port
	Script  string            // shell, sourced by the guest's init: see guest/init for say, show, need and fail
	Files   map[string][]byte // put below /lab, executable
	Layers  []string          // laid over the guest's root: DPDK, Pyverbs, EFA
	Memory  string            // of the guest; "1G" if empty
	Fresh   bool              // boot with the functions attached, not from a saved guest

	// Limit is how long the script may take where nothing else runs. On a busy machine it grows with the load: see
	// limit. Booting has its own limit.
	Limit time.Duration

	// Say is called for each line that the guest says, while the guest waits, with what it showed so far. An error ends
	// the run, except for errAgain. A failed boot is reported with the key "unbooted".
	Say func(key, text string, shown Result) error
}

// Device is a function that QEMU itself models, and what is behind it.
type Device struct {
	Model   string     // value of -device, without bus and addr: "virtio-net-pci,netdev=n0"
	Backend string     // value of -netdev; the file descriptors of Files are named FD0, FD1 and so on in it
	Files   []*os.File // passed to QEMU
	Socket  string     // value of -chardev socket, if Backend names one: "id=c0,path=PATH"
}

// A kernel under emulation on a busy machine (seen at a load of 18 on two cores) now and then loses a timer or its second
// processor while it starts, which says nothing about a driver. So a guest that does not reach its init is booted again.
const (
	boots    = 3
	bootTime = 2 * time.Minute
)

// Result is what a guest showed: the lines of each "show KEY COMMAND".
type Result map[string][]string

// errGuest means that the guest's script failed, or that the guest ended before its script did.
var errGuest = errors.New("guest failed")

// errAgain is what Say returns to have the guest show once more what may not have settled yet: the guest is answered "again".
var errAgain = errors.New("again")

// Run begins with a saved guest of the same kernel, command line and layers (it boots and saves one if there is none), runs
// the script, and powers the guest off. It kills QEMU, and no other process, when ctx ends. A script that exceeds its limit
// ends with an error, and with the guest's stacks in the machine's folder: see diagnose.
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
		if err == nil || booted && !breakpointed(m) || u.Boots == boots || ctx.Err() != nil {
			if k.Used != nil {
				k.Used(u)
			}
			return r, err
		}
		if !booted && state != "" {
			os.Remove(state) // it may be what is wrong
		}
		if m.Say != nil {
			if err := m.Say("unbooted", err.Error(), r); err != nil {
				return r, err
			}
		}
	}
}

// Usage is where a run's time went.
type Usage struct {
	Boots  int           // attempts
	Boot   time.Duration // booting and saving a guest, if there was none
	Resume time.Duration // from QEMU's start to the script's
	Script time.Duration // from there to QEMU's end
	CPU    time.Duration // of QEMU's, without Boot
}

// breakpointed reports whether the guest's kernel died from a kernel breakpoint: it patches its code by inserting one
// for a moment, and QEMU's emulation of a processor may execute it after the other one removed it.
func breakpointed(m Machine) bool {
	log, err := os.ReadFile(filepath.Join(m.Dir, "console.log"))
	return err == nil && bytes.Contains(log, []byte("Oops: int3"))
}

// run runs the script in a guest that starts from a saved state.
func (k *Kit) run(ctx context.Context, m Machine, state, disk string, u *Usage) (r Result, booted bool, err error) {
	args := append(k.arguments(m), m.functions()...)
	args = append(args, "-drive", "if=none,id=disk,format=raw,readonly=on,file="+disk, "-device", "virtio-blk-pci,drive=disk,addr=0x1e")
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
	if !m.Fresh { // the saved guest has said "ready", and waits for an answer
		if _, err := io.WriteString(q.in, "ok\n"); err != nil {
			return nil, false, err
		}
	}
	say := m.Say
	m.Say = func(key, text string, r Result) error {
		if key == "ready" && !booted { // the init's
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
