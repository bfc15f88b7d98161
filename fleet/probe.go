package fleet

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fleet/push"
	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/fleet/watch"
	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
)

// watchShortHelp has the most frequently needed flags, on one screen.
const watchShortHelp = `usage: rebound-watch [TARGET ...] [-config FILE] [flags]

Probes many targets continuously at a low rate: round trips and loss on a metrics page, a log for each hour, and a verdict on change, this
hour against the same hour on previous days. It stops at SIGTERM or Ctrl-C; SIGHUP reads all sources of targets again.

Examples:
  rebound-watch 10.0.0.2 stamp:10.0.0.3 -listen 127.0.0.1:9470
  rebound-watch -file targets.txt -dir /var/lib/rebound/watch -rate 10
  rebound-watch -file-sd '/etc/prometheus/far/*.yml' -peers 20
  rebound-watch -config watch.toml              settings from a file: rebound-watch config prints one

Whom to probe:
  stamp:10.0.0.3            a target, or more (the same as -target)
  -file targets.txt         targets, one on each line
  -file-sd '/etc/far/*.yml' targets in the format of Prometheus' file_sd
  -peers 20                 of a fleet's list, probe so many hosts
How:
  -rate 10                  probes per second to each target
  -proto icmp|udp|stamp     protocol of targets that name none
  -transport socket         use ordinary sockets: needs no root for UDP and STAMP
  -source-ports 8           rotate through so many source ports, each with its own path
  -iface eth1               interface (default by the route to each target)
Results:
  -listen 127.0.0.1:9470    address of the metrics and the status page
  -push-url URL             push the metrics by OTLP or Prometheus remote-write
  -dir /var/lib/rebound     folder for one log per hour

"rebound-watch probe -help-all" lists every flag; "man 5 rebound-watch" explains them too.
`

const watchHelp = `usage: rebound-watch [TARGET ...] [-config FILE] [flags]

Probes many targets continuously at a low rate: round trips and loss on a metrics page, a log for each hour, and a verdict on change, this
hour against the same hour on previous days. It stops at SIGTERM or Ctrl-C; SIGHUP reads all sources of targets again.

  rebound-watch 10.0.0.2 stamp:10.0.0.3 -listen 127.0.0.1:9470
  rebound-watch -file targets.txt -dir /var/lib/rebound/watch -rate 10
  rebound-watch -file-sd '/etc/prometheus/far/*.yml' -proto udp -port 7
  rebound-watch -dns stamp:_stamp._udp.example.org

Every setting is a flag and a key of the file (rebound-watch config prints one with all of them; man 5 rebound-watch); a flag overrides the file.

`

// configIntro is the text at the top of watch.toml.
const configIntro = "What rebound-watch measures, and how. Every key is here with its default; each is a flag, too: rebound-watch probe -help-all.\n\n" +
	"`rebound-watch config` prints this file."

type watchSettings struct {
	table *setting.Table

	targets struct {
		list, fileSD, dns []string
		file, dnsType     string
		dnsPort, peers    int
		self              string
		refresh           time.Duration
	}
	probe struct {
		measure.Settings // the measurement settings that apply to each target
		rate             float64
		size             int
		timing           bool
		source, gateway  []netip.Addr
	}
	nic cards.Config
	cpu struct {
		core int
		idle string
	}
	keep struct {
		dir      string
		bytes    int64
		interval time.Duration
	}
	change struct{ days int }
	stats  struct {
		listen string
		hosts  []string
		schema int
		push   string
		every  time.Duration
	}
	log process.Log
}

// notInWatch are the settings of [nic] without a meaning for a watch, which uses the device's own address and sends
// frames itself.
var notInWatch = []string{"nic.mac", "nic.pin", "nic.qkey"}

// period returns a parser for a time within bounds.
func period(low, high time.Duration) func(string) (time.Duration, error) {
	return func(s string) (time.Duration, error) {
		d, err := measure.ParseDuration(s)
		if err == nil && (d < low || d > high) {
			err = fmt.Errorf("%v is not %v to %v", d, low, high)
		}
		return d, err
	}
}

func parseBytes(s string) (int64, error) {
	number, unit := s, int64(1)
	for suffix, u := range map[string]int64{"k": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40} {
		if n, ok := strings.CutSuffix(s, suffix); ok {
			number, unit = n, u
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > 1<<50/unit || n*unit < 1<<20 {
		return 0, fmt.Errorf("%q: want bytes, a mebibyte or more, like 500M or 10G", s)
	}
	return n * unit, nil
}

func newWatchSettings() *watchSettings {
	s := &watchSettings{}
	frames := setting.New(s.nic.Settings()...)
	frames.Settings = slices.DeleteFunc(frames.Settings, func(n setting.Setting) bool {
		return slices.Contains(notInWatch, n.Key)
	})
	for i := range frames.Settings {
		if f := &frames.Settings[i]; f.Key != "nic.device" {
			f.Needs = append(f.Needs, "probe.transport=raw")
		}
	}
	frames.Find("nic.device").FlagName = "iface"
	text := func(s string) (string, error) { return s, nil }
	measured := setting.New(s.probe.Rows()...)
	// the corresponding setting of a measurement, with an addition for many targets
	probe := func(name, doc string) setting.Setting {
		row := *measured.Find("probe." + name)
		if doc != "" {
			row.Doc = doc
		}
		return row
	}
	proto := probe("proto", "The protocol of targets that do not name one:")
	proto.Default, proto.Choices = `"icmp"`, proto.Choices[:3] // frames
	s.table = setting.New(slices.Concat([]setting.Setting{
		setting.Strings("targets.list", &s.targets.list, text,
			"Targets, each [PROTO:]HOST[:PORT]: \"10.0.0.2\", \"udp:10.0.0.2:7\", \"stamp:[fd00::2]:862\", \"host.example\". A name is looked "+
				"up again every 30 seconds.").Flag("target", ""),
		setting.String("targets.file", &s.targets.file, "", nil,
			"A FILE with one target per line, followed by labels of its metrics: \"stamp:10.0.0.2 site=ams rack=12\". Text after a # is a comment. Labels that are not "+
				"exported: __param_interval=200ms, __param_size=1514, __param_dscp=46 and __param_source_ports=8 override -rate, -size, -dscp and -source-ports for this target; __param_stamp_ssid=7 and "+
				"__param_stamp_key=FILE are the session identifier and the key of this STAMP target; a key selects the authenticated mode."),
		setting.Strings("targets.file_sd", &s.targets.fileSD, text,
			"Files in the formats of Prometheus' file_sd: lists of groups with targets and labels, in JSON (.json) or YAML (.yml, .yaml). The last "+
				"part of a path may have a *. The label __param_proto is the protocol of its group, the others are as in targets.file. A port is for UDP and STAMP; "+
				"for an ICMP target of such a file it is ignored, because it belongs to another service (elsewhere a port after icmp is an error). Like targets.file they are read again when they "+
				"change, and at SIGHUP; if a file has an error then, the log shows its line, and its previous targets are kept."),
		setting.Strings("targets.dns", &s.targets.dns, text,
			"Names whose records are targets, as with Prometheus' dns_sd: \"_stamp._udp.example.org\", or with a protocol, \"stamp:_stamp._udp.example.org\"."),
		setting.OneOf("targets.dns_type", &s.targets.dnsType, "SRV",
			[]setting.Choice{{Name: "SRV", Doc: "hosts and ports"}, {Name: "A", Doc: "IPv4 addresses"},
				{Name: "AAAA", Doc: "IPv6 addresses"}},
			"The records of targets.dns:").In("targets.dns"),
		setting.Range("targets.dns_port", &s.targets.dnsPort, 1, 65535, 0, "the protocol's own",
			"The port of targets from A and AAAA records.").In("targets.dns_type!=SRV"),
		setting.Parsed("targets.refresh", &s.targets.refresh, "30s", period(time.Second, 24*time.Hour),
			"Interval of DNS queries for targets.dns, \"1s\" to \"24h\".").In("targets.dns"),
		setting.Range("targets.peers", &s.targets.peers, 1, 1000, 0, "all targets",
			fmt.Sprintf("How many hosts to probe, if the targets are a fleet whose hosts all run this with the same list. Each computes its own "+
				"choice, so that at least %d probe each host and each ordered pair of zones. The labels node, zone and rack of a target are its host's name, zone and rack.", watch.FewestProbers)),
		setting.String("targets.self", &s.targets.self, "", nil,
			"This host's label node, or the host of its target. Empty: its host name, the first part of that, or one of its addresses.").In("targets.peers"),

		proto,
		probe("port", "The UDP port of all targets, 1 to 65535. It overrides ports in target files that belong to other services. 0 uses the target's port, or 7 for udp "+
			"and 862 for stamp."),
		setting.Parsed("probe.rate", &s.probe.rate, "1", func(s string) (float64, error) {
			r, err := measure.ParseRates(s)
			if err != nil || len(r) != 1 || r[0] > 10000 {
				return 0, fmt.Errorf("%q: want probes a second to each target, 0.01 to 10000, like \"1\" or \"0.2\"", s)
			}
			return r[0], nil
		}, "Probes per second to each target, \"0.01\" to \"10k\". All probes of all targets are spread evenly."),
		setting.Range("probe.size", &s.probe.size, 0, 65535, 0, "the smallest",
			"Bytes of the Ethernet frame, headers included, without the 4 bytes of FCS."),
		probe("timeout", "How long a reply may take, \"1ms\" to \"1m\"; then the probe is lost."),
		probe("dscp", ""), probe("ecn", ""), probe("ttl", ""),
		probe("stamp_ssid", "The session identifier of STAMP's probes (RFC 8972 §3) to targets without the label __param_stamp_ssid, 1 to 65535; 0 is none."),
		probe("stamp_key", "The FILE with the key (64 hexadecimal digits, readable only by its owner) of STAMP targets without the label "+
			"__param_stamp_key; their probes use authenticated mode (RFC 8762 §4.2.2). Empty: unauthenticated."),
		setting.Bool("probe.stamp_timing", &s.probe.timing, false,
			"Ask STAMP targets when their loop last ran before it saw the probe (a private TLV that rebound-responder answers; 20 bytes more): "+
				"rebound_slow_seconds_total then divides slow round trips between the responder's host and the network. Other reflectors return the TLV unrecognized."),
		setting.Range("probe.source_ports", &s.probe.Ports, 1, targets.MostSourcePorts, 0, "1",
			"UDP source ports to rotate through, for UDP and STAMP targets without the label "+
				"__param_source_ports: equal-cost paths, which routers choose by a hash of the ports (ECMP), all get probes. Each port has its own counters; if the probes from some "+
				"ports are lost and those from others are not, the log says which, and a trace with the same ports shows after which hop."),
		setting.Strings("probe.source", &s.probe.source, netip.ParseAddr,
			"The address to send from, or one of each family; with raw "+
				"frames it need not be configured in the kernel. Empty: the kernel's choice."),
		setting.Strings("probe.gateway", &s.probe.gateway, netip.ParseAddr,
			"The gateway, or one of each family. Empty: from the "+
				"kernel's routes.").In("probe.transport=raw"),
		probe("transport", ""), probe("qdisc", "").In("probe.transport=raw"),
	}, frames.Settings, []setting.Setting{
		setting.Range("cpu.core", &s.cpu.core, -1, 1<<16, -1, "",
			"The CPU to measure on. -1 is the last one available to the process."),
		setting.OneOf("cpu.idle", &s.cpu.idle, "sleep", []setting.Choice{
			{Name: "sleep", Doc: "the core is free between probes and polls from a probe to its reply. After three lost probes in " +
				"a row it does not poll for that target, and the next reply is counted but not timed."},
			{Name: "poll", Doc: "the core polls continuously and stays out of deep idle states"},
		}, "What the core does when no reply is expected:"),

		setting.String("keep.dir", &s.keep.dir, "", nil,
			"A FOLDER for one HdrHistogram log per hour (UTC, 2026-11-22T10.hlog) "+
				"with all targets. Empty: no logs and no verdicts. A restarted watch continues the current log. If the disk is full, "+
				"measuring continues, and missing records are counted."),
		setting.Parsed("keep.bytes", &s.keep.bytes, "1G", parseBytes,
			"Maximum size of all logs, \"1M\" or more; the oldest are "+
				"removed.").In("keep.dir"),
		setting.Parsed("keep.interval", &s.keep.interval, "5m", func(s string) (time.Duration, error) {
			d, err := period(time.Second, time.Hour)(s)
			if err == nil && time.Hour%d != 0 {
				err = fmt.Errorf("%v does not divide an hour", d)
			}
			return d, err
		}, "The length of an interval in the logs, a part of an hour, \"1s\" to \"1h\". The verdict treats each interval as a "+
			"run: it needs eight per hour, each with 20 round trips for p50, 100 for p90, 1000 for p99.").In(
			"keep.dir"),
		setting.Range("change.days", &s.change.days, watch.FewestDays, 31, 7, "no verdict",
			fmt.Sprintf("How many earlier days to compare this hour "+
				"with. A verdict needs data of %d.", watch.FewestDays)).In("keep.dir"),
	}, metrics.Settings(&s.stats.listen, &s.stats.hosts), []setting.Setting{
		setting.Range("stats.schema", &s.stats.schema, 0, metrics.Finest, 5, "",
			"The resolution of the native histograms of round trips. 2 "+
				"to this power is the number of buckets per octave: 8 has buckets 0.27 % wide, 5 2.2 %, 3 9 %. Prometheus keeps them "+
				"all, for each target."),
	}, push.Settings(&s.stats.push, &s.stats.every), s.log.Settings())...)
	return s
}

func probeCommand(e *command.Env, args []string) error {
	s := newWatchSettings()
	fs := flag.NewFlagSet("probe", flag.ContinueOnError)
	config := fs.String("config", "", "`FILE` of settings (rebound-watch config prints one)")
	s.table.AddFlags(fs)
	fs.BoolVar(&s.log.Verbose, "v", false, process.VerboseHelp)
	rest, err := e.ParseMixed(fs, args, watchHelp, watchShortHelp)
	if err != nil {
		return err
	}
	for _, target := range rest {
		if err := fs.Set("target", target); err != nil {
			return process.Usagef("%s: %w", target, err)
		}
	}
	if *config != "" {
		if err := s.table.Read(*config); err != nil {
			return process.Usagef("%w", err)
		}
	}
	s.table.Assign()
	if err := s.table.Apply(); err != nil {
		return process.Usagef("%w", err)
	}
	o, err := s.options(e)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	// a second signal ends it immediately, unless it came together with the first
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	defer stop()
	hup, again := make(chan os.Signal, 1), make(chan struct{}, 1)
	signal.Notify(hup, unix.SIGHUP)
	defer signal.Stop(hup)
	go func() {
		for {
			select {
			case <-hup:
				select {
				case again <- struct{}{}:
				default:
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return watch.Run(ctx, *o, again, e.Stdout)
}

// options checks the combination of settings, and returns them as watch options.
func (s *watchSettings) options(e *command.Env) (*watch.Options, error) {
	fail := func(key, format string, a ...any) (*watch.Options, error) {
		return nil, process.Usagef("%w", s.table.Fail(key, format, a...))
	}
	d := targets.Defaults{Proto: s.probe.Proto, Port: s.probe.Port, SSID: s.probe.STAMP.SSID, Key: s.probe.STAMP.Key,
		Probes: targets.Probes{Interval: time.Duration(float64(time.Second) / s.probe.rate), Size: s.probe.size,
			DSCP: s.probe.DSCP, SourcePorts: s.probe.Ports}}
	o := &watch.Options{Sources: targets.Sources{Defaults: d, List: s.targets.file, FileSD: s.targets.fileSD,
		Refresh: s.targets.refresh},
		Peers: s.targets.peers, Self: s.targets.self, Timeout: s.probe.Timeout, ECN: s.probe.ECN, TTL: s.probe.TTL,
		Source: s.probe.source, Gateway: s.probe.gateway, Transport: s.probe.Transport, Timing: s.probe.timing,
		NIC: s.nic, Core: s.cpu.core, Idle: s.cpu.idle,
		Dir: s.keep.dir, Bound: s.keep.bytes, Interval: s.keep.interval, Days: s.change.days, Listen: s.stats.listen,
		Hosts: s.stats.hosts, Schema: int32(s.stats.schema)}
	for i, text := range s.targets.list {
		t, err := d.Parse(text)
		if err != nil {
			return nil, process.Usagef("%w", s.table.FailAt("targets.list", i, "%w", err))
		}
		o.Sources.Static = append(o.Sources.Static, t)
	}
	for i, text := range s.targets.dns {
		q, err := d.ParseQuery(text, s.targets.dnsType, uint16(s.targets.dnsPort))
		if err != nil {
			return nil, process.Usagef("%w", s.table.FailAt("targets.dns", i, "%w", err))
		}
		o.Sources.DNS = append(o.Sources.DNS, q)
	}
	for key, list := range map[string][]netip.Addr{"probe.source": s.probe.source, "probe.gateway": s.probe.gateway} {
		if len(list) > 2 || len(list) == 2 && list[0].Is4() == list[1].Is4() {
			return fail(key, "want one address of each family at most")
		}
	}
	if cards.CarriesMessages(s.nic.Driver) {
		return fail("nic.driver", "%s carries messages, not frames: a watch has none", s.nic.Driver)
	}
	if s.nic.InKernel() {
		return fail("nic.driver", "%s answers in the kernel: nothing can be sent through it", s.nic.Driver)
	}
	if o.NIC.Qdisc = s.probe.Qdisc; o.NIC.Qdisc {
		if s.nic.Driver != "auto" && s.nic.Driver != "afpacket" {
			return fail("probe.qdisc", "driver %s sends without the kernel's queueing discipline: use afpacket",
				s.nic.Driver)
		}
		o.NIC.Driver = "afpacket"
	}
	if s.nic.Device != "" {
		if err := cards.Fits(s.nic.Driver, s.nic.Device); err != nil {
			return fail("nic.driver", "%w", err)
		}
	} else if cards.OnBus(s.nic.Driver) {
		return fail("nic.device", "is empty: driver %s needs its device (-iface)", s.nic.Driver)
	}
	if cards.IsPCIDevice(s.nic.Device) && s.probe.Transport == "socket" {
		return fail("probe.transport", "%s is not a kernel interface, which sockets need: use raw", s.nic.Device)
	}
	if s.probe.rate*s.probe.Timeout.Seconds() > watch.MostUnderWay {
		return fail("probe.rate", "%g probes a second for a timeout of %v: too many would be in flight to one target",
			s.probe.rate, s.probe.Timeout)
	}
	var err error
	if o.Push, err = push.Choose(s.stats.push, s.stats.every, os.Getenv); err != nil {
		return nil, process.Usagef("%w", err)
	}
	o.Log = s.log.New(e.Stderr)
	o.NIC.Log = o.Log
	driver := s.nic.Driver
	if driver == "auto" { // known only after opening it
		driver = ""
	}
	s.table.WarnUnused(driver, o.Log)
	return o, nil
}

func configCommand(e *command.Env, args []string) error {
	if len(args) > 0 {
		return process.Usagef("unexpected argument %q", args[0])
	}
	_, err := io.WriteString(e.Stdout, newWatchSettings().table.TOML(configIntro))
	return err
}
