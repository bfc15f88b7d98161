package peers

import (
	"flag"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/proof/peers/cost"
)

const xdpHelp = `usage: prove peers xdp [flags]

Has the kernel run the XDP program that answers, without an interface, and prints what a reply costs, by kind, and what each guard
is of that, in nanoseconds. It takes root.

`

func xdpCommand(args []string) error {
	fs := flag.NewFlagSet("xdp", flag.ContinueOnError)
	o := cost.Options{Stop: new(atomic.Bool)}
	fs.IntVar(&o.Rounds, "rounds", 11, "rounds, alternating")
	fs.IntVar(&o.Runs, "runs", 500_000, "runs of each program in each round")
	out := fs.String("out", "", "also write the tables to this `FILE`")
	if err := parse(fs, args, xdpHelp); err != nil {
		return err
	}
	switch {
	case o.Rounds < 3 || o.Runs < 1000:
		return process.Usagef("want three rounds or more, of 1000 runs or more")
	case os.Geteuid() != 0:
		return process.Usagef("XDP programs take root")
	}
	defer process.OnSignal(o.Stop)()
	rows, err := cost.Run(o)
	if err != nil {
		return err
	}
	h := host.Collect(os.DirFS("/"), 0)
	text := fmt.Sprintf("# What the program in the kernel costs\n\n`make xdp`: %d alternating rounds of %d runs; their median, and in parentheses least and greatest, in ns; %s, Linux %s. %s\n\n%s",
		o.Rounds, o.Runs, h.CPU, h.Kernel, cost.Explanation, cost.Markdown(rows))
	fmt.Print(text)
	if *out != "" {
		return atomicfile.WriteFile(*out, []byte(text))
	}
	return nil
}
