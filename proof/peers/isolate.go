package peers

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/proof/peers/isolation"
)

const isolateHelp = `usage: prove peers isolate [flags]

Measures what each step towards a dedicated core gives a polling loop beside busy processes: none, pinned, real-time priority with
the kernel's guard in force and lifted, idle states, and the steps of cpu.isolate one by one and together, in alternating rounds.
All is put back at the end; after a SIGKILL "rebound-responder release" does it. It takes root.

Rows that take the CPU from other processes, or move the machine's interrupts, are measured with -alone only.

`

func isolateCommand(args []string, log *slog.Logger) error {
	fs := flag.NewFlagSet("isolate", flag.ContinueOnError)
	said, err := os.ReadFile("/sys/devices/system/cpu/online") // isolcpus removes CPUs from runtime.NumCPU
	if err != nil {
		return err
	}
	online, err := isolate.ParseCPUs(strings.TrimSpace(string(said)))
	if err != nil {
		return fmt.Errorf("/sys/devices/system/cpu/online: %w", err)
	}
	last := online[len(online)-1]
	o := isolation.Options{Stop: new(atomic.Bool)}
	fs.IntVar(&o.Core, "core", last, "`CPU` of the polling loop")
	fs.IntVar(&o.Prober, "prober", max(last-1, 0), "`CPU` of the thread that asks it")
	fs.IntVar(&o.Load, "load", len(online), "busy `PROCESSES`")
	fs.IntVar(&o.Rounds, "rounds", 5, "rounds of all rows, alternating")
	fs.DurationVar(&o.Each, "each", 3*time.Second, "`TIME` for a row in a round")
	fs.DurationVar(&o.Interval, "interval", 20*time.Microsecond, "`TIME` from one question to the next")
	alone := fs.Bool("alone", false,
		"nothing else that matters runs on this machine: also the rows that take the CPU from others")
	only := fs.String("rows", "", "measure only these `KEYS`, by commas: "+strings.Join(keys(), ","))
	out := fs.String("out", "", "also write the tables to this `FILE`")
	if err := parse(fs, args, isolateHelp); err != nil {
		return err
	}
	switch {
	case os.Geteuid() != 0:
		return process.Usagef("it takes root")
	case o.Rounds < 1 || o.Each < 100*time.Millisecond || o.Interval < time.Microsecond || o.Load < 0:
		return process.Usagef("want one round or more, 100ms or more for each row, 1µs or more between questions, and no negative load")
	case !slices.Contains(online, o.Core) || !slices.Contains(online, o.Prober) || o.Core == o.Prober:
		return process.Usagef("-core %d -prober %d: want two CPUs of %s", o.Core, o.Prober, isolate.FormatCPUs(online))
	}
	var left []string
	for _, r := range isolation.Rows() {
		switch {
		case *only != "" && !strings.Contains(","+*only+",", ","+r.Key+","):
		case r.Others && !*alone:
			left = append(left, r.Key)
		default:
			o.Rows = append(o.Rows, r)
		}
	}
	if len(o.Rows) == 0 {
		return process.Usagef("no row to measure: -rows %q, and %v need -alone", *only, left)
	}
	isolate.PutBack(log)
	defer process.OnSignal(o.Stop)()
	results, err := isolation.Run(o)
	if err != nil {
		return err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	boot := isolation.Boot()
	if boot == "" {
		boot = "nothing about CPUs"
	}
	text := fmt.Sprintf("# What each step of isolation gives\n\n`peers %s`: %d CPUs, Linux %s, its command line says %s; %d busy processes; %d rounds of %v a row, a question each %v.\n%s\n\n%s",
		strings.Join(os.Args[1:], " "), len(online), unix.ByteSliceToString(u.Release[:]), boot, o.Load, o.Rounds,
		o.Each, o.Interval,
		isolation.Explanation, isolation.Markdown(results))
	if len(left) > 0 {
		text += fmt.Sprintf("- Not measured: %s, which take the CPU from every other process or move the machine's interrupts; -alone has them.\n", strings.Join(left, ", "))
	}
	fmt.Print(text)
	if *out != "" {
		return atomicfile.WriteFile(*out, []byte(text))
	}
	return nil
}

func keys() (k []string) {
	for _, r := range isolation.Rows() {
		k = append(k, r.Key)
	}
	return k
}
