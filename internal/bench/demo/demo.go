// Package demo measures the responder and the kernel's own echo, alternating, in separate network namespaces on this
// machine.
package demo

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/internal/host/process"
)

// inside marks the process that runs in the user namespace.
const inside = "REBOUND_DEMO_INSIDE"

// Run measures with o, whose Variants and Before are set by the demo. args are the command's arguments: for an ordinary
// user, the demo is run again with them, in a user namespace; the error is then an exit.Status. driver is the
// responder's; w gets the line that it prints when it is ready.
func Run(o measure.Plan, driver string, args []string, w io.Writer) (*measure.Result, error) {
	program, err := testbed.FindResponder()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, reexecute(args)
	}
	d := &demo{program: program, driver: driver, unprivileged: os.Getenv(inside) != "", w: w}
	if d.unprivileged && d.driver == "auto" {
		d.driver = "afpacket"
	}
	var out *measure.Result
	failed := make(chan error)
	go func() { // on a thread that ends with it, because it cannot leave its namespace
		runtime.LockOSThread()
		var err error
		out, err = d.run(o)
		failed <- err
	}()
	err = <-failed
	return out, err
}

// reexecute runs the same demo in a user namespace, as root.
func reexecute(args []string) error {
	runtime.LockOSThread() // Pdeathsig is sent when this thread ends
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(self, append([]string{"demo"}, args...)...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), inside+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	defer signal.Stop(signals)
	if err := c.Start(); err != nil {
		return fmt.Errorf("without root the demo needs a user namespace, and this host does not allow one (sysctl user.max_user_namespaces, "+
			"kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns): %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	for {
		select {
		case <-signals:
			// if the terminal sent one as well, this is the second, which ends it immediately
			_ = c.Process.Signal(unix.SIGTERM)
		case err := <-done:
			var ended *exec.ExitError
			if errors.As(err, &ended) && ended.ExitCode() >= 0 {
				return process.Status(ended.ExitCode())
			}
			return err
		}
	}
}

type demo struct {
	program, driver string // the responder's
	unprivileged    bool
	w               io.Writer
}

// side is one of the compared responders.
type side struct {
	name, prefix, driver string // driver: "" for the kernel's own echo
}

// sides are the kernel and the responder; if the demo chooses the driver, the responder with each notable driver.
func (d *demo) sides() []side {
	all := []side{{"kernel", testbed.KernelPrefix, ""}}
	if d.driver != "auto" {
		return append(all, side{"responder", testbed.ResponderPrefix, d.driver})
	}
	return append(all, side{"xdp", testbed.ResponderPrefix, "xdp"}, side{"afxdp", testbed.ResponderPrefix, "afxdp"})
}

// run runs on a locked thread in the bench's namespace.
func (d *demo) run(o measure.Plan) (*measure.Result, error) {
	bed, err := testbed.Enter(d.unprivileged)
	if err != nil {
		return nil, err
	}
	defer bed.Close()
	core := bed.Core.Other()
	if core == bed.Core.CPU {
		o.Log.Warn("only one CPU: responder and bench share it, so the numbers measure the scheduler")
	}
	responders := map[string]*testbed.Responder{}
	stop := func() (err error) {
		for _, r := range responders {
			err = errors.Join(err, r.Stop())
		}
		return err
	}
	defer func() { _ = stop() }()
	for _, s := range d.sides() {
		o.Variants = append(o.Variants, measure.Settings{Name: s.name, Target: netip.MustParsePrefix(s.prefix).Addr(),
			Proto: probe.ICMP,
			Rates: []float64{0}, Sizes: []int{98}, Iface: testbed.NearIface,
			Source: netip.MustParseAddr(testbed.NearAddress), Driver: "afpacket",
			Transport: "raw", Timeout: 10 * time.Second})
		if s.driver == "" {
			continue
		}
		if err := stop(); err != nil { // the last one keeps running, for its MAC address
			return nil, err
		}
		r := &testbed.Responder{Bed: bed, Program: d.program, Driver: s.driver, Unprivileged: d.unprivileged,
			Core: core}
		if err := r.Start(); err != nil {
			return nil, err
		}
		responders[s.name] = r
		fmt.Fprintf(d.w, "%s: %s\n", s.name, r.Ready)
	}
	fmt.Fprintln(d.w)
	o.Before = func(s *measure.Series) error {
		r := responders[s.Name]
		if r == nil {
			s.Notes = []string{"answered by the kernel of the other namespace, on the same veth pair; no responder ran meanwhile"}
			return stop()
		}
		for name, other := range responders {
			if name != s.Name {
				if err := other.Stop(); err != nil {
					return err
				}
			}
		}
		err := r.Start()
		s.Notes = []string{fmt.Sprintf("answered by the responder on CPU %d, started for each slice: %s", r.Core,
			r.Ready)}
		if r.Driver == "xdp" {
			s.Notes = []string{fmt.Sprintf(
				"answered by the responder's program in the kernel, which takes no CPU time in user space; started for each slice: %s", r.Ready)}
		}
		return err
	}
	return measure.Run(o)
}
