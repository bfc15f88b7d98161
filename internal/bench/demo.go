package bench

import (
	"errors"
	"flag"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/demo"
	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/process"
)

const demoHelp = `usage: rebound-bench demo [flags]

Shows the main job on this machine, without touching its networks: makes two network namespaces and a veth pair between
them, runs the responder in one and the bench in the other, alternates it with the kernel's own ICMP echo, and
compares them: the responder in the kernel (xdp) and in a loop on a dedicated core (afxdp), each with the kernel's own echo.
rebound-responder must be in this program's folder or in PATH.

As an ordinary user it runs in its own user namespace, on AF_PACKET. Nothing is left behind: the namespaces have no
names and disappear with their processes.

`

func demoCommand(e *command.Env, args []string) error {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	out := fs.String("out", "", "`FOLDER` for the reports (default out/demo-TIME)")
	driver := fs.String("driver", "auto",
		"the responder's `DRIVER`: xdp, afxdp or afpacket; auto is xdp and then afxdp, or afpacket for an ordinary user")
	rounds := fs.Int("rounds", 10, "rounds of each, alternating; nine or more for a verdict")
	var each time.Duration
	duration(fs, &each, "duration", time.Second, "`TIME` to measure in each round")
	anonymous := fs.Bool("anonymous", false, anonymousHelp)
	verbose := fs.Bool("v", false, "print each report in full, and all percentiles of the comparison")
	if err := e.Parse(fs, args, demoHelp); err != nil {
		return err
	}
	if *out == "" {
		*out = unused("out/demo-" + time.Now().Format("20060102-150405"))
	}
	switch {
	case fs.NArg() > 0:
		return process.Usagef("unexpected argument %q", fs.Arg(0))
	case *rounds < 1 || each <= 0:
		return process.Usagef("want at least one round, and a duration above zero")
	case *driver != "auto" && *driver != "xdp" && *driver != "afxdp" && *driver != "afpacket":
		return process.Usagef("-driver %q: want auto, xdp, afxdp or afpacket", *driver)
	}
	if err := measure.Writable(*out, false); err != nil {
		return err
	}
	o := measure.Plan{Duration: each, Warmup: 100 * time.Millisecond, Runs: *rounds, Core: -1, Out: *out,
		SelfTest: 300 * time.Millisecond,
		Paired:   true, Anonymous: *anonymous, Stop: new(atomic.Bool), Log: e.Log, ProgressTo: e.Stderr}
	defer process.OnSignal(o.Stop)()
	result, err := demo.Run(o, *driver, args, e.Stdout)
	return errors.Join(err, printResult(e, result, true, false, *verbose))
}
