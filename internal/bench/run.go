package bench

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
)

// runShortHelp has the most frequently needed flags, on one screen.
const runShortHelp = `usage: rebound-bench run TARGET [TARGET ...] [flags]

Sends probes to TARGET (an address or a name), prints the percentiles of the round trips and writes a report folder.
Several targets are measured in short alternating slices and compared.

Examples:
  rebound-bench run 10.0.0.2                                  ping, one probe at a time, ten seconds
  rebound-bench run 10.0.0.2 -rate 20k -duration 30s          20,000 probes per second for 30 seconds
  rebound-bench run 10.0.0.2 -proto udp -port 7 -rate 1k,10k  UDP at two rates, one report each
  rebound-bench run 10.0.0.2 10.0.0.3                         two targets, compared
  rebound-bench run 10.0.0.2 -ab 'name=on,do=ssh peer ./on.sh' -ab 'name=off,do=ssh peer ./off.sh'
                                                      two settings, compared

What to send:
  -proto icmp|udp|stamp    protocol (default icmp)
  -port 7                  UDP port (default 7, STAMP 862)
  -size 64,1500            bytes of the Ethernet frame, without FCS (default the smallest)
  -rate 20k                probes per second (default: the next probe leaves when the last is answered)
How long:
  -duration 10s            time to measure, all runs together (default 10s)
  -runs 8                  independent runs in that time; comparing two reports needs eight of each (default 10)
Where:
  -iface eth1              interface (default by the route to the target)
  -core 3                  CPU to measure on (default the last one)
  -transport socket        use an ordinary socket: needs no root for UDP
Results:
  -out out/before          report folder (default out/bench-TIME)
  -json                    print the result as JSON
  -v                       print everything: all percentiles, diagnostics, notes

"rebound-bench run -help-all" lists every flag; "man rebound-bench" has them all too.
`

const runHelp = `usage: rebound-bench run TARGET [TARGET ...] [flags]

Sends probes to IP, checks every byte of every reply, and records the round trips. It stops after -duration or at Ctrl-C,
prints the percentiles and writes a report folder (report.json, rtt.hgrm, rtt.hlog, report.html).

Load. -closed (the default) keeps one probe outstanding: the unloaded latency. -rate sends at a fixed rate
and times each probe from its intended send time, which avoids coordinated omission.

  rebound-bench run 10.0.0.2                                         ICMP echo, closed loop, ten seconds
  rebound-bench run 10.0.0.2 -proto udp -port 7 -rate 20k    UDP echo at 20000 probes per second
  rebound-bench run 10.0.0.2 -rate 1k,10k,100k               a sweep: one report for each rate
  rebound-bench run 10.0.0.2 -size rfc2544                   a sweep over the frame sizes of RFC 2544
  rebound-bench run 10.0.0.2 -lossless 1M -duration 5s       the highest rate without loss, up to a million a second
  rebound-bench run -ab target=10.0.0.2 -ab target=10.0.0.3          two targets in short alternating slices
  rebound-bench run 10.0.0.2 -ab name=small,size=60 -ab name=big,size=1514

Settings. -ab also compares settings outside the bench: do= runs a command (/bin/sh -c, $REBOUND_VARIANT is the name) before
each slice. The command must return when its setting is active; the slice starts when the target answers. It runs on CPUs
that do not measure, for at most -do-within, and nothing is measured meanwhile. If it fails, the run stops and shows its output.
The setting of the last command remains active, and the bench reports that.

  rebound-bench run 10.0.0.2 -ab name=c6,do='ssh peer cpupower idle-set -E' -ab name=poll,do='ssh peer cpupower idle-set -D 0'
  rebound-bench run 10.0.0.2 -ab "name=50us,do=ethtool -C eth1 rx-usecs 50" -ab "name=0us,do=ethtool -C eth1 rx-usecs 0"

Load. -arrivals spreads the probes of -rate as a Poisson process, in bursts, or as the packets of a capture. -under measures before,
during and after a command that loads the network.

  rebound-bench run 10.0.0.2 -rate 10k -arrivals poisson
  rebound-bench run 10.0.0.2 -arrivals replay:trading-day.pcapng
  rebound-bench run 10.0.0.2 -rate 1k -ecn 1 -under 'iperf3 -c 10.0.0.2 -t 3600'

EFA. Messages go to the queue pair that -target hands over by TCP (respond.handover in config.toml), as ibv_ud_pingpong's do.

  rebound-bench run -driver efa -iface 0000:05:00.0 -target 10.0.0.2 -proto srd -size 8,32,4096
  rebound-bench run -driver efa -iface 0000:05:00.0 -target 10.0.0.2 -ab proto=ud -ab proto=srd

STAMP. A reflector with sessions (respond.stamp_mode) shows the direction of losses. One-way delays are shown
with their error if both clock errors are known.

  rebound-bench run 10.0.0.2 -proto stamp -stamp-ssid 7 -stamp-tlv time+location+followup
  rebound-bench run 10.0.0.2 -proto stamp -port 863 -stamp-key ./key -rate 1k

Rights. Raw frames need CAP_NET_RAW, and with AF_XDP CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON as well; -transport socket needs none.

`

// runOptions are the flags of rebound-bench run.
type runOptions struct {
	measure.Plan
	base     measure.Settings
	json     bool
	verbose  bool
	lossless float64 // the highest rate to try, 0 for no search
	advice   string  // the limits of -ab's plan; empty if there are none
}

func runCommand(e *command.Env, args []string) error {
	o, err := runFlags(e, args)
	if err != nil {
		return err
	}
	if err := measure.Writable(o.Out, o.Replace); err != nil {
		return err
	}
	defer process.OnSignal(o.Stop)()
	if o.lossless > 0 {
		found, err := measure.Search(o.Plan, o.lossless, 0)
		return errors.Join(err, printSearch(e, found, o.json))
	}
	switch {
	case strings.HasPrefix(o.advice, "no verdict"):
		e.Log.Warn(o.advice)
	case o.advice != "":
		e.Log.Info(o.advice)
	}
	result, err := measure.Run(o.Plan)
	return errors.Join(err, printResult(e, result, o.Paired || o.Under != "", o.json, o.verbose))
}

// notInRun are the settings of [nic] that each variant sets, or that have no meaning for a bench.
var notInRun = []string{"nic.driver", "nic.device", "nic.mac", "nic.pin"}

// runLine is the parsed but not yet interpreted command line of bench run.
type runLine struct {
	closed         bool
	lossless, auto string
	autoWithin     time.Duration
	targets        []string
	variants       []string // values of -ab
	device         *setting.Table
	given          map[string]bool // by flag name
}

func runFlags(e *command.Env, args []string) (*runOptions, error) {
	return flagsOf(e, args, "run", runHelp, runShortHelp, func(*runOptions, *runLine) error { return nil })
}

// flagsOf reads the flags of a command that measures. complete adds what the command implies.
func flagsOf(e *command.Env, args []string, name, help, short string,
	complete func(*runOptions, *runLine) error) (*runOptions, error) {
	o := &runOptions{base: measure.Default(),
		Plan: measure.Plan{Watch: true, Stop: new(atomic.Bool), Log: e.Log, ProgressTo: e.Stderr}}
	o.Plan.Options.Log = e.Log
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	c := o.define(fs)
	var err error
	if c.targets, err = e.ParseMixed(fs, args, help, short); err != nil {
		return nil, err
	}
	e.Verbose(o.verbose)
	fs.Visit(func(f *flag.Flag) { c.given[f.Name] = true })
	if err := complete(o, c); err != nil {
		return nil, err
	}
	for _, step := range []func(*runLine) error{o.checkLine, o.vary, o.checkDevice, o.hooks, o.times} {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	if o.Out == "" {
		o.Out = unused("out/bench-" + time.Now().Format("20060102-150405"))
	}
	return o, nil
}

func (o *runOptions) define(fs *flag.FlagSet) *runLine {
	c := &runLine{given: map[string]bool{}}
	for _, r := range o.base.Rows() {
		r.AddFlag(fs)
	}
	fs.BoolVar(&c.closed, "closed", false,
		"closed loop: send the next probe when the last one is answered (default unless "+
			"-rate)")
	fs.StringVar(&c.lossless, "lossless", "",
		"search for the highest rate without loss, as in RFC 2544 §26.1, up to `N` probes per second;\n"+
			"each trial lasts -duration (the RFC wants 60s)")
	fs.Func("ab", "`KEY=VALUE[,...]` of one of two or more variants (repeat -ab), measured in short alternating "+
		"slices;\nkeys are name, explain and the flags with a single value: target, port, size, driver, dscp, vlan, ...;\nthe last may "+
		"be do=COMMAND, which runs before each slice of the variant", func(v string) error {
		c.variants = append(c.variants, v)
		return nil
	})
	duration(fs, &o.Duration, "duration", 0,
		"`TIME` to measure each target, variant or point of a sweep, of all its runs together (default 10s, unless -count)")
	fs.Int64Var(&o.Count, "count", 0,
		"probes to measure each target or point of a sweep with, of all its runs together; 0 for no limit")
	duration(fs, &o.Warmup, "warmup", 200*time.Millisecond, "`TIME` to send before each run without counting")
	fs.IntVar(&o.Runs, "runs", 0,
		"how many runs -duration or -count is divided into; they are saved separately in the report, to show the variation "+
			"between them (default ten of at least 100ms or 1000\nprobes each, or more of at most 2.5s)")
	duration(fs, &o.Slice, "slice", 0,
		"-ab: average length of one slice (default 250ms, or 1s with do=); each is up to 25 % longer or shorter")
	fs.StringVar(&c.auto, "auto", "",
		"-ab: measure until there is a verdict at `PERCENTILE`, like p99: for -auto-within at most, and not less than -duration")
	duration(fs, &c.autoWithin, "auto-within", 10*time.Minute, "-auto: `TIME` to measure each variant at most")
	duration(fs, &o.HookWithin, "do-within", 30*time.Second, "-ab: `TIME` limit for a do= command")
	fs.StringVar(&o.Under, "under", "",
		"measure three times: before, during and after `COMMAND` (/bin/sh -c), such as a bulk transfer; the command runs on\nCPUs that do not measure, and is stopped when its phase ends")
	fs.IntVar(&o.Core, "core", -1,
		"CPU to measure on, preferably an isolated one (default the last CPU available to this "+
			"process)")
	fs.BoolVar(&o.Isolate, "isolate", false, "move other work off that CPU during the measurement (see cpu.isolate in "+
		"config.toml)")
	fs.StringVar(&o.Out, "out", "", "`FOLDER` for the report, or for several in it (default out/bench-TIME)")
	fs.BoolVar(&o.Replace, "replace", false, "replace an existing report in -out")
	fs.BoolVar(&o.json, "json", false,
		"print the result as JSON: the reports as docs/report.schema.json describes them, each with its folder")
	fs.BoolVar(&o.verbose, "v", false, verboseHelp)
	fs.Var((*liveFlag)(o), "live",
		"show percentiles and loss of each second of the last minute while measuring; -live=`HOST:PORT` also serves\nthem as a page")
	fs.BoolVar(&o.Raw, "raw", false, "also save individual round trips, the first million of each report (raw.csv.zst)")
	fs.BoolVar(&o.Anonymous, "anonymous", false, anonymousHelp)
	fs.BoolVar(&o.Timestamps, "timestamps", false,
		"save the kernel's and the card's timestamps as additional histograms, "+
			"which show\nthis host's overhead. This adds some time per frame")
	fs.BoolVar(&o.base.Explain, "explain", true,
		"attribute the slowest round trips to the responder's host, this host and the network; with -proto stamp the probes "+
			"request\nthe responder's part (20 bytes more), if it reports it")
	duration(fs, &o.SelfTest, "self-test", 500*time.Millisecond,
		"`TIME` to test the bench's core before measuring, 0 for none")
	c.device = setting.New(o.NIC.Settings()...)
	c.device.Settings = slices.DeleteFunc(c.device.Settings,
		func(n setting.Setting) bool { return slices.Contains(notInRun, n.Key) })
	c.device.AddFlags(fs)
	return c
}

// checkLine rejects flags that exclude each other, and flags without effect.
func (o *runOptions) checkLine(c *runLine) error {
	given := c.given
	switch {
	case len(c.targets) > 0 && given["target"]:
		return process.Usagef("target given twice: %q and -target (give it once)", c.targets[0])
	case len(c.targets) > 1 && (len(c.variants) > 0 || given["lossless"]):
		return process.Usagef("several targets (%s) cannot be combined with -ab or -lossless: use -ab target=... for each", strings.Join(c.targets, " "))
	case c.closed && given["rate"]:
		return process.Usagef("-closed and -rate cannot be combined")
	case given["lossless"] && (c.closed || given["rate"] || given["arrivals"] || len(c.variants) > 0 || given["count"]):
		return process.Usagef("-lossless chooses its rates itself: it cannot be combined with -closed, -rate, -arrivals, -ab and -count")
	case len(c.variants) == 1:
		return process.Usagef("-ab needs at least two variants: repeat it")
	case (o.Runs < 1 || o.Runs > 10000) && given["runs"]:
		return process.Usagef("-runs %d: want 1 to 10000", o.Runs)
	case o.Count < 0:
		return process.Usagef("-count %d: want 1 or more", o.Count)
	case given["auto-within"] && c.auto == "":
		return process.Usagef("-auto-within has no effect without -auto")
	case (given["slice"] || given["do-within"]) && len(c.variants) == 0 && len(c.targets) < 2:
		return process.Usagef("-slice and -do-within have no effect without -ab or a second target")
	case given["slice"] && o.Slice < 10*time.Millisecond:
		return process.Usagef("-slice %v: want 10ms or more", o.Slice)
	}
	return nil
}

// vary creates the variants: of -ab, of several targets, or of a sweep.
func (o *runOptions) vary(c *runLine) error {
	if c.lossless != "" {
		r, err := measure.ParseRates(c.lossless)
		if err != nil || len(r) != 1 {
			return process.Usagef("-lossless %q: want one rate, like 1M", c.lossless)
		}
		o.lossless = r[0]
	}
	if len(c.targets) == 1 {
		if err := o.base.Set("target", c.targets[0]); err != nil {
			return process.Usagef("%w", err)
		}
	}
	variants := c.variants
	if len(c.targets) > 1 {
		for _, target := range c.targets {
			variants = append(variants, "target="+target)
		}
	}
	for _, list := range variants {
		v := o.base
		v.Name = ""
		v, err := v.Vary(list)
		if err != nil {
			return process.Usagef("%w", err)
		}
		o.Variants = append(o.Variants, v)
	}
	if o.Paired = len(variants) > 0; !o.Paired {
		o.Variants = o.base.Sweep()
	}
	if o.Under != "" {
		if len(o.Variants) > 1 || c.lossless != "" {
			return process.Usagef("-under measures one target at one rate and size, before, during and after the load: it cannot be combined with -ab, sweeps or -lossless")
		}
		one := o.Variants[0]
		o.Variants = nil
		for _, one.Name = range measure.Phases {
			o.Variants = append(o.Variants, one)
		}
	}
	for i := range o.Variants {
		if err := o.Variants[i].Complete(); err != nil {
			return err
		}
	}
	return nil
}

// times chooses the duration of the measurement, and checks that a verdict is possible.
func (o *runOptions) times(c *runLine) error {
	if o.Duration == 0 && o.Count == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Runs == 0 {
		o.cutRuns()
	} else if o.lossless > 0 {
		return process.Usagef("-runs and -lossless cannot be combined: each trial of the search is one run")
	} else if err := o.divideGiven(); err != nil {
		return err
	}
	if c.auto == "" {
		return o.plan(c)
	}
	switch {
	case !o.Paired || o.Count > 0 || c.given["runs"]:
		return process.Usagef("-auto needs -ab, and cannot be combined with -count or -runs")
	case !c.given["duration"]:
		o.Duration = 0
	}
	return o.planAuto(c.auto, c.autoWithin)
}

// liveFlag is -live, with or without an address.
type liveFlag runOptions

func (l *liveFlag) String() string   { return "" }
func (l *liveFlag) IsBoolFlag() bool { return true }

func (l *liveFlag) Set(value string) error {
	switch l.Live, l.LiveAt = true, ""; value {
	case "true":
		return nil
	case "false":
		l.Live = false
		return nil
	}
	l.LiveAt = value
	return metrics.CheckAddress(value)
}

// checkDevice applies the device flags, and rejects one that affects no variant.
func (o *runOptions) checkDevice(c *runLine) error {
	device := c.device
	device.Assign()
	if err := device.Apply(); err != nil {
		return process.Usagef("%w", err)
	}
	if !slices.ContainsFunc(o.Variants, func(v measure.Settings) bool { return v.Transport == "raw" }) {
		for _, name := range append(device.Flags(), "driver", "gateway") {
			if c.given[name] {
				return process.Usagef("-%s has no effect with -transport socket", name)
			}
		}
	}
	var drivers []string
	for _, v := range o.Variants {
		switch {
		case v.Transport == "socket":
		case v.Driver != "auto":
			drivers = append(drivers, v.Driver)
		case cards.IsPCIDevice(v.Iface): // known only after opening it
			return nil
		default:
			drivers = append(drivers, "afxdp", "afpacket")
		}
	}
	unused := map[string]int{}
	for _, d := range drivers {
		for _, e := range device.Unused(d) {
			if unused[e.Key]++; unused[e.Key] == len(drivers) {
				return process.Usagef("%w", e)
			}
		}
	}
	return nil
}

// hooks checks the commands of the variants, and chooses the length of a slice.
func (o *runOptions) hooks(*runLine) error {
	with := 0
	for _, v := range o.Variants {
		if v.Do != "" {
			with++
		}
	}
	if with > 0 && with < len(o.Variants) {
		return process.Usagef("-ab: give every variant a do=, or none: a variant without one would be measured with the setting of the one before")
	}
	switch {
	case o.Slice > 0:
	case with > 0:
		o.Slice = time.Second
	default:
		o.Slice = 250 * time.Millisecond
	}
	return nil
}

// duration is a flag for a time with its unit.
func duration(fs *flag.FlagSet, to *time.Duration, name string, value time.Duration, text string) {
	*to = value
	if value > 0 {
		text += fmt.Sprintf(" (default %v)", value)
	}
	fs.Func(name, text, func(v string) (err error) {
		*to, err = measure.ParseDuration(v)
		return err
	})
}

// unused returns name, or the first of name-2, name-3, ... that does not exist yet: two runs may start within the same
// second.
func unused(name string) string {
	free := name
	for i := 2; ; i++ {
		if _, err := os.Lstat(free); err != nil {
			return free
		}
		free = fmt.Sprintf("%s-%d", name, i)
	}
}
