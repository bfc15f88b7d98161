// Package campaign injects faults into the responder's devices and its environment, one after the other under traffic,
// in an order determined by a seed, and counts recoveries, recovery times and losses. It does not touch the machine's
// networks.
package campaign

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const help = `usage: prove campaign [flags]

Runs the responder on the device models (over vfio-user) and on interfaces of the kernel (a veth pair between two network
its own namespaces), asks it without end, and does one fault after the other to it: the device's, the host's, the peer's. A
seed decides the order and each fault's strength. It fails if a fault that has to pass does not, if the responder panics, ends where
it need not, or answers wrongly, and if anything is left attached or mapped. It takes root.

`

// IsClockGuard reports whether this process was started to restore the time of day after a campaign.
func IsClockGuard() bool { return os.Getenv(inGuard) != "" }

// GuardClock waits for the campaign to end, restores the time of day, and returns the exit status.
func GuardClock() int {
	if err := guard(machine{}, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", sanitize.Error(err))
		return 1
	}
	return 0
}

// Main runs a campaign with the arguments after the command name and returns the exit status.
func Main(args []string) int {
	stdout := sanitize.NewWriter(os.Stdout)
	err := campaignCommand(args, stdout)
	code, say := process.ExitCode(err)
	if say {
		fmt.Fprintln(os.Stderr, "campaign:", sanitize.Error(err))
	}
	return process.Printed(code, "campaign", stdout, os.Stderr)
}

// options are the command-line options.
type options struct {
	duration time.Duration
	seed     uint64
	out      string
	program  string
	patience time.Duration
	only     *regexp.Regexp
	list     bool
	clock    bool
}

func parse(args []string, w io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("campaign", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.DurationVar(&o.duration, "duration", time.Hour, "how long; the fault that is under way is finished")
	fs.Uint64Var(&o.seed, "seed", 0,
		"decides the order and strength of all faults; 0 takes a random one, which the report names")
	fs.StringVar(&o.out, "out", "", "`FOLDER` for the report and the logs; out/campaign-TIME if empty")
	fs.StringVar(&o.program, "responder", "", "the responder's `PROGRAM`; else the one beside this one, or in PATH")
	fs.DurationVar(&o.patience, "patience", 2*time.Minute, "how long what must come back may take")
	only := fs.String("only", "", "a `PATTERN` (regular expression) of \"target: fault\": only those that match")
	fs.BoolVar(&o.clock, "clock", false,
		"step this machine's time of day, by up to an hour and for seconds, which every program on it sees; it is put back after each "+
			"fault, by a process that outlives this one")
	fs.BoolVar(&o.list, "list", false, "print the faults of every target, and end")
	err = fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(w)
		fmt.Fprint(w, help)
		fs.PrintDefaults()
		return o, err
	case err != nil:
		return o, process.Usagef("%w (-h lists the flags)", err)
	case fs.NArg() > 0:
		return o, process.Usagef("%q is left over", fs.Arg(0))
	case o.duration <= 0 || o.patience <= 0:
		return o, process.Usagef("-duration and -patience have to be above zero")
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, process.Usagef("-only: %w", err)
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	if o.out == "" {
		o.out = filepath.Join("out", "campaign-"+time.Now().Format("20060102-150405"))
	}
	return o, nil
}

// inMounts marks the process that has a private mount namespace.
const inMounts = "REBOUND_CAMPAIGN_MOUNTS"

func campaignCommand(args []string, w io.Writer) error {
	o, err := parse(args, w)
	if err != nil {
		return err
	}
	if o.list {
		for _, k := range kinds {
			for _, f := range faultsOf(&k) {
				fmt.Fprintf(w, "%s: %s\n", k.name, f.name)
			}
		}
		return nil
	}
	if os.Geteuid() != 0 {
		return process.Usagef("namespaces, XDP and limits of memory take root")
	}
	if o.program == "" {
		if o.program, err = testbed.FindResponder(); err != nil {
			return err
		}
	}
	if os.Getenv(inMounts) == "" {
		return again(args)
	}
	// These mounts are private to this process: a BPF file system for pins, and a small file system to fill.
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount of a BPF file system: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	c, err := newCampaign(o, w)
	if err != nil {
		return err
	}
	return c.run(ctx)
}

// again runs the same command in a private mount namespace.
func again(args []string) error {
	c := exec.Command("/proc/self/exe", append([]string{"campaign"}, args...)...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.Env = append(os.Environ(), inMounts+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setpgid: true}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	if err := c.Start(); err != nil {
		return fmt.Errorf("a mount namespace: %w", err)
	}
	go func() {
		for s := range signals {
			_ = c.Process.Signal(s)
		}
	}()
	var ended *exec.ExitError
	if err := c.Wait(); errors.As(err, &ended) {
		return process.Status(max(ended.ExitCode(), 1))
	} else if err != nil {
		return err
	}
	return nil
}
