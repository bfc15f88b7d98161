package main

import (
	"flag"
	"slices"
	"strings"
	"time"

	"rebound/cmd/internal/device"
)

const runHelp = `usage: bench run -target IP [flags]

Sends probes to IP, checks every byte of every reply, and records the round trips. It ends by itself, or at Ctrl-C; either
way it prints the percentiles and writes a report folder (report.json, rtt.hgrm, rtt.hlog, report.html).

Load. -closed (the default) keeps one probe outstanding: the unloaded latency. -rate sends at a rate, whatever the replies
do, and times each from the moment when it should have been sent, so that a stall counts for all that queued up behind it.

  bench run -target 10.0.0.2                                 ICMP echo, closed loop, ten seconds
  bench run -target 10.0.0.2 -proto udp -port 7 -rate 20k    UDP echo at 20000 probes per second
  bench run -target 10.0.0.2 -rate 1k,10k,100k               a sweep: one report for each rate
  bench run -target 10.0.0.2 -size rfc2544                   a sweep over the frame sizes of RFC 2544
  bench run -target 10.0.0.2 -lossless 1M -duration 5s       the highest rate without loss, up to a million a second
  bench run -ab target=10.0.0.2 -ab target=10.0.0.3          two targets in short alternating slices: machines drift
  bench run -target 10.0.0.2 -ab name=small,size=60 -ab name=big,size=1514

Rights. Raw frames need CAP_NET_RAW (AF_PACKET) or CAP_NET_ADMIN and CAP_BPF (AF_XDP); -transport socket needs none.

`

// options are the flags of bench run.
type options struct {
	base     settings
	variants []settings // -ab, or the points of a sweep
	paired   bool       // the variants are to be compared: their slices alternate
	lossless float64
	verify   int // how often a trial of lossless that failed is repeated before it counts (ETSI GS NFV-TST 009: loss verification)

	duration, warmup, slice time.Duration
	count                   int64
	runs                    int
	core                    int
	out                     string
	raw                     bool
	timestamps              bool
	anonymous               bool
	nic                     device.Config // but for driver and device, which are settings of each variant
	selfTest                time.Duration
}

func runCommand(e *env, args []string) error {
	o, err := e.runFlags(args)
	if err != nil {
		return err
	}
	if err := writable(o.out); err != nil {
		return err
	}
	return e.measure(o, nil)
}

func (e *env) runFlags(args []string) (*options, error) {
	o := &options{base: settings{rates: []float64{0}, sizes: []int{0}, driver: "auto", transport: "raw", timeout: time.Second}}
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	setting := func(name, text string) {
		fs.Func(name, text, func(v string) error { return o.base.set(name, v) })
	}
	setting("target", "`IP` address to measure, v4 or v6; required, unless each -ab has its own")
	setting("proto", "`PROTOCOL` to ask for: icmp (echo), udp (echo), or stamp (RFC 8762, TWAMP-Light) (default icmp)")
	setting("port", "UDP `PORT` of the target (default 7 for udp, 862 for stamp)")
	setting("rate", "open loop at `N` probes per second (500, 20k, 1.5M); several with commas are a sweep")
	closed := fs.Bool("closed", false, "closed loop: the next probe leaves when the last one is answered (default unless -rate)")
	setting("size", "`BYTES` of the Ethernet frame, headers included, without the 4 bytes of FCS; several with commas are a sweep,\n"+
		"rfc2544 is that document's list (default the smallest)")
	setting("iface", "network `INTERFACE` to use (default where the route to the target leads); for a driver that drives the card\n"+
		"itself, what that driver takes")
	setting("driver", "`DRIVER` for raw frames, of "+strings.Join(device.Drivers(), ", ")+"; auto takes afxdp where the bench has an address of its own,\n"+
		"and afpacket where the host uses the interface too (default auto)")
	setting("source", "`IP` address to send from; it may be one that the kernel does not have (default the kernel's choice)")
	setting("gateway", "`IP` address of the router to go through (default by the kernel's routes)")
	setting("transport", "`HOW` to send: raw frames, or the kernel's own socket for hosts without the right to raw frames (default raw)")
	setting("timeout", "`DURATION` after which a probe without a reply is overdue; a reply that comes later counts as late (default 1s)")
	lossless := fs.String("lossless", "", "search for the highest rate without loss, as in RFC 2544 §26.1, up to `N` probes per second;\n"+
		"each trial lasts -duration (the RFC wants 60s)")
	fs.Func("ab", "`KEY=VALUE[,...]` of one of two or more variants (repeat -ab), measured in short alternating slices;\n"+
		"keys are name and those flags of which one value makes one measurement: target, port, size, driver, ...", func(v string) error {
		o.variants = append(o.variants, settings{name: v})
		return nil
	})
	fs.DurationVar(&o.duration, "duration", 0, "`TIME` to measure, of each run and each point of a sweep (default 10s, unless -count)")
	fs.Int64Var(&o.count, "count", 0, "probes to measure, of each run and each point of a sweep; 0 for no limit")
	fs.DurationVar(&o.warmup, "warmup", 200*time.Millisecond, "`TIME` to send before each run without counting")
	fs.IntVar(&o.runs, "runs", 1, "repeats, all kept apart in the report: what differs between runs is not the target's difference")
	fs.DurationVar(&o.slice, "slice", 250*time.Millisecond, "-ab: length of one slice")
	fs.IntVar(&o.core, "core", -1, "CPU to measure on, alone if you can (default the last one that this process may use)")
	fs.StringVar(&o.out, "out", "", "`FOLDER` for the report, or for several in it (default out/bench-TIME)")
	fs.BoolVar(&o.raw, "raw", false, "keep single round trips as well, the first million of each report (raw.csv.zst)")
	fs.BoolVar(&o.anonymous, "anonymous", false, anonymousHelp)
	fs.BoolVar(&o.timestamps, "timestamps", false, "keep the kernel's and the card's timestamps as further histograms: what lies between them and the\n"+
		"round trip is this host's own share. It costs time on each frame")
	fs.DurationVar(&o.selfTest, "self-test", 500*time.Millisecond, "`TIME` to watch the bench's own core before measuring, 0 for none")
	for _, n := range o.nic.Settings() {
		if !slices.Contains([]string{"nic.driver", "nic.device", "nic.mac"}, n.Key) {
			n.Flag(fs, "")
		}
	}
	if err := e.parse(fs, args, runHelp); err != nil {
		return nil, err
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	switch {
	case fs.NArg() > 0:
		return nil, usage("%q is left over: every value needs its flag, as in -target %s", strings.Join(fs.Args(), " "), fs.Arg(0))
	case *closed && given["rate"]:
		return nil, usage("-closed and -rate exclude each other")
	case given["lossless"] && (*closed || given["rate"] || len(o.variants) > 0 || given["count"]):
		return nil, usage("-lossless chooses its rates itself: it goes without -closed, -rate, -ab and -count")
	case len(o.variants) == 1:
		return nil, usage("-ab wants at least two variants: repeat it")
	case o.runs < 1 || o.runs > 10000:
		return nil, usage("-runs %d: want 1 to 10000", o.runs)
	case o.count < 0:
		return nil, usage("-count %d: want 1 or more", o.count)
	case o.duration < 0 || o.warmup < 0 || o.selfTest < 0:
		return nil, usage("-duration, -warmup and -self-test cannot be below zero")
	case o.slice < 10*time.Millisecond:
		return nil, usage("-slice %v: want 10ms or more", o.slice)
	}
	if *lossless != "" {
		r, err := parseRates(*lossless)
		if err != nil || len(r) != 1 {
			return nil, usage("-lossless %q: want one rate, like 1M", *lossless)
		}
		o.lossless = r[0]
	}
	if o.duration == 0 && o.count == 0 {
		o.duration = 10 * time.Second
	}
	for i := range o.variants {
		v := o.base
		v.name = ""
		v, err := v.vary(o.variants[i].name)
		if err != nil {
			return nil, usage("%w", err)
		}
		o.variants[i] = v
	}
	if o.paired = len(o.variants) > 0; !o.paired {
		o.variants = sweep(o.base)
	}
	for i := range o.variants {
		if err := o.variants[i].complete(); err != nil {
			return nil, err
		}
	}
	if o.out == "" {
		o.out = "out/bench-" + time.Now().Format("20060102-150405")
	}
	return o, nil
}

// sweep returns one variant for each combination of rate and size.
func sweep(s settings) []settings {
	var out []settings
	for _, r := range s.rates {
		for _, n := range s.sizes {
			v := s
			v.rates, v.sizes = []float64{r}, []int{n}
			var name []string
			if len(s.rates) > 1 {
				name = append(name, "rate-"+rateName(r))
			}
			if len(s.sizes) > 1 {
				name = append(name, "size-"+sizeName(n))
			}
			v.name = strings.Join(name, "-")
			out = append(out, v)
		}
	}
	return out
}

// complete fills in what follows from other settings.
func (s *settings) complete() error {
	if !s.target.IsValid() {
		return usage("-target is missing: the address to measure")
	}
	if s.port == 0 {
		switch s.proto.String() {
		case "udp":
			s.port = 7 // RFC 862
		case "stamp":
			s.port = 862 // RFC 8762 §4.1
		}
	}
	return nil
}
