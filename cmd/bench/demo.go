package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rebound/cmd/bench/probe"
)

const demoHelp = `usage: bench demo [flags]

Shows the main job on this machine, without touching its networks: makes two network namespaces and a veth pair between
them, runs the responder in one and the bench in the other, lets the kernel's own ICMP echo answer in its place in every
other round, and compares the two. The responder's program is looked for beside this one and in PATH.

It works as root, and else inside a user namespace of its own, on AF_PACKET. Nothing stays behind: the namespaces have no
names, and end with the processes in them.

`

// The demo's own little network. Nothing outside of its namespaces ever sees it.
const (
	benchIface, echoIface = "bench0", "echo0"
	benchAddress          = "10.99.0.1" // the bench's own: its kernel does not have it
	kernelPrefix          = "10.99.0.2/24"
	responderPrefix       = "10.99.0.3/24"
)

// inside marks the process that runs in the user namespace, and the outer one's process group.
const inside = "REBOUND_DEMO_INSIDE"

func demoCommand(e *env, args []string) error {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	out := fs.String("out", "out/demo-"+time.Now().Format("20060102-150405"), "`FOLDER` for the reports")
	driver := fs.String("driver", "auto", "the responder's `DRIVER`: auto (AF_XDP where it is to be had), afxdp or afpacket")
	rounds := fs.Int("rounds", 8, "rounds of each, alternating; five or more for a confidence")
	each := fs.Duration("duration", time.Second, "`TIME` to measure in each round")
	anonymous := fs.Bool("anonymous", false, anonymousHelp)
	if err := e.parse(fs, args, demoHelp); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return usage("%q is left over", fs.Arg(0))
	case *rounds < 1 || *each <= 0:
		return usage("want at least one round, and a duration above zero")
	case *driver != "auto" && *driver != "afxdp" && *driver != "afpacket":
		return usage("-driver %q: want auto, afxdp or afpacket", *driver)
	}
	program, err := findResponder()
	if err != nil {
		return err
	}
	if err := writable(*out); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return reexecute(args)
	}
	d := &demo{env: e, program: program, driver: *driver, unprivileged: os.Getenv(inside) != ""}
	if d.unprivileged && d.driver == "auto" {
		d.driver = "afpacket"
	}
	o := &options{duration: *each, warmup: 100 * time.Millisecond, runs: *rounds, core: -1, out: *out, selfTest: 300 * time.Millisecond, paired: true, anonymous: *anonymous}
	failed := make(chan error)
	go func() { // on a thread that ends with it, since it cannot come back from its namespace
		runtime.LockOSThread()
		failed <- d.run(o)
	}()
	return <-failed
}

// findResponder looks beside this program, then in PATH.
func findResponder() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "responder")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	p, err := exec.LookPath("responder")
	if err != nil {
		return "", fmt.Errorf("the responder's program is neither beside this one nor in PATH: build it with go build -o bin/ ./cmd/...")
	}
	return p, nil
}

// reexecute runs the same demo in a user namespace in which we are root.
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
			_ = c.Process.Signal(unix.SIGTERM) // one that the terminal sent as well is its second: it then ends at once
		case err := <-done:
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() >= 0 {
				return exitCode(exit.ExitCode())
			}
			return err
		}
	}
}

// exitCode is what the inner demo ended with, after it said why.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// demo is the network and the responder in it.
type demo struct {
	*env
	program      string
	driver       string // the responder's
	unprivileged bool
	far          *farSide
	responder    *responder
}

// enter makes the calling thread, which is locked, the bench's side: in a network namespace of its own, with a wire to the
// far side in another. Leave ends the far side; the thread cannot come back.
func (d *demo) enter() (p *place, leave func(), err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, nil, d.forbidden("a network namespace", err)
	}
	if d.far, err = newFarSide(); err != nil {
		return nil, nil, d.forbidden("a second network namespace", err)
	}
	if err = d.wire(); err == nil {
		p, err = choose(-1)
	}
	if err != nil {
		d.far.close()
		return nil, nil, err
	}
	return p, func() { d.far.close() }, nil
}

// run is on a locked thread, which becomes the bench's side.
func (d *demo) run(o *options) error {
	p, leave, err := d.enter()
	if err != nil {
		return err
	}
	defer leave()
	d.responder = &responder{demo: d, core: p.other()}
	if d.responder.core == p.core {
		d.log.Warn("there is one CPU only: responder and bench take turns on it, and the numbers are the scheduler's")
	}
	defer func() { d.responder.stop() }()
	if err := d.responder.start(); err != nil {
		return err
	}
	fmt.Fprintf(d.stdout, "responder: %s\n\n", d.responder.ready)
	for _, v := range []struct{ name, prefix string }{{"kernel", kernelPrefix}, {"responder", responderPrefix}} {
		o.variants = append(o.variants, settings{name: v.name, target: netip.MustParsePrefix(v.prefix).Addr(), proto: probe.ICMP,
			rates: []float64{0}, sizes: []int{98}, iface: benchIface, source: netip.MustParseAddr(benchAddress), driver: "afpacket", transport: "raw", timeout: 10 * time.Second})
	}
	return d.measure(o, func(c *cell) error {
		if c.name != "responder" {
			c.notes = []string{"answered by the kernel of the other namespace, on the same veth pair; no responder ran meanwhile"}
			return d.responder.stop()
		}
		err := d.responder.start()
		c.notes = []string{fmt.Sprintf("answered by the responder on CPU %d, started anew: %s", d.responder.core, d.responder.ready)}
		return err
	})
}

func (d *demo) forbidden(what string, err error) error {
	if d.unprivileged {
		return fmt.Errorf("%s inside the user namespace: %w: this host lets users make user namespaces, but gives them no rights in it "+
			"(sysctl kernel.apparmor_restrict_unprivileged_userns); run the demo as root", what, err)
	}
	return fmt.Errorf("%s: %w: it takes CAP_SYS_ADMIN, which a container's root often lacks", what, err)
}

// wire makes the veth pair and its addresses.
func (d *demo) wire() error {
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: benchIface})
	pair.PeerName, pair.PeerNamespace = echoIface, netlink.NsFd(d.far.ns)
	if err := netlink.LinkAdd(pair); err != nil {
		return d.forbidden("a veth pair", err)
	}
	if err := dress(benchIface, ""); err != nil {
		return err
	}
	if err := d.far.do(func() error { return dress(echoIface, kernelPrefix) }); err != nil {
		return err
	}
	for range 200 {
		l, err := netlink.LinkByName(benchIface)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("interface %s did not come up in 2 s", benchIface)
}

// dress gives an interface its address, if any, and sets it up. IPv6 is switched off, where that is allowed: its own chatter would
// be in the measurement.
func dress(name, prefix string) error {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if prefix != "" {
		a, err := netlink.ParseAddr(prefix)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("address %s on %s: %w", prefix, name, err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
