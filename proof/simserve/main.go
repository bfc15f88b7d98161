// Package simserve serves device models over vfio-user and joins them by wires: for QEMU's vfio-user-pci, and for our
// own drivers (device = "vfio-user:PATH").
//
//	rebound-simnic -model ixgbe -socket /run/nic0 -wire tap:rb0
//	rebound-simnic -model mlx5 -profile cx6dx -socket /run/nic0 -wire tap:rb0
//	rebound-simnic -model ixgbe -socket /run/a -model ixgbe -socket /run/b -wire pair -wire pcap:ab.pcap
//	rebound-simnic -model mlx4 -profile cx3-ib -socket /run/a -model mlx4 -profile cx3-ib -socket /run/b -wire pair
//	rebound-simnic -model mlx4 -profile cx3-ib -socket /run/a -model mlx4 -profile cx3-ib -socket /run/b -wire subnet
//
// SIGUSR1 prints the PCIe transactions counted so far, and how many of the frames that arrived at each device were
// lost, delayed, duplicated and reordered by its wire. SIGUSR2 resets every device while its driver is running, to test
// the driver's recovery (the driver then accesses a device that is not configured: use -strict=false).
package simserve

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rebound-nic/rebound/internal/host/manual"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/atomicfile"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/fabric"
	"github.com/rebound-nic/rebound/sim/vfioserver"
)

// Main runs simnic with the arguments after the program name and returns the exit status.
func Main(args []string) int {
	sig := make(chan os.Signal, 8)
	signal.Notify(sig, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	return run(args, os.Stdout, os.Stderr, sig)
}

// many is a flag that may be given more than once.
type many []string

func (m *many) String() string     { return strings.Join(*m, ",") }
func (m *many) Set(s string) error { *m = append(*m, s); return nil }

// strictness is the value of -strict. A flag without a value is "true".
type strictness string

func (s *strictness) String() string   { return string(*s) }
func (s *strictness) IsBoolFlag() bool { return true }

func (s *strictness) Set(v string) error {
	if v != "true" && v != "refused" && v != "false" {
		return errors.New("one of true, refused, false is expected")
	}
	*s = strictness(v)
	return nil
}

type config struct {
	models, sockets, wires many
	profiles               many
	impair                 sim.Impairment
	counts, debug          bool
	strict                 strictness
	trace                  string
}

func (c *config) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("rebound-simnic", flag.ContinueOnError)
	fs.Var(&c.models, "model", "`name` of a device model ("+strings.Join(catalogue.Names(), ", ")+
		"); once for each device")
	fs.Var(&c.sockets, "socket", "`path` of the vfio-user socket; once for each model, in the same order")
	fs.Var(&c.profiles, "profile", profileHelp())
	fs.Var(&c.wires, "wire",
		"`pair` joins the two models, both of Ethernet or both of InfiniBand, subnet joins InfiniBand models by a switch with a subnet manager, "+
			"tap:NAME joins the one to a new interface, pcap:FILE records the first one's wire")
	fs.DurationVar(&c.impair.Delay, "delay", 0, "how much later frames arrive")
	fs.Float64Var(&c.impair.Loss, "loss", 0, "probability that a frame is lost")
	fs.Float64Var(&c.impair.Duplicate, "duplicate", 0, "probability that a frame arrives twice")
	fs.Float64Var(&c.impair.Reorder, "reorder", 0, "probability that a frame is overtaken by the next")
	fs.Uint64Var(&c.impair.Seed, "seed", 1, "decides which frames -loss, -duplicate and -reorder hit")
	fs.BoolVar(&c.counts, "counts", false,
		"print PCIe transactions, what the wire did to arriving frames, and violations as JSON at the end, as SIGUSR1 does at any time")
	fs.StringVar(&c.trace, "trace", "",
		"write what drivers did last, and programmed, to `file` at the end, and on SIGUSR1")
	c.strict = "true"
	fs.Var(&c.strict, "strict",
		"which violations make the exit code 1: `true` for all, refused for those that no device would let pass, false for none")
	fs.BoolVar(&c.debug, "debug", false, "log clients that come and go")
	return fs
}

// run returns the exit code: 0 done, 1 failed or a driver violation, 2 wrong usage.
func run(args []string, stdout, stderr io.Writer, sig <-chan os.Signal) int {
	out, said := sanitize.NewWriter(stdout), sanitize.NewWriter(stderr)
	return process.Printed(serve(args, out, said, sig), "rebound-simnic", out, said)
}

func serve(args []string, stdout, stderr io.Writer, sig <-chan os.Signal) int {
	if len(args) == 1 && slices.Contains([]string{"version", "-version", "--version"}, args[0]) {
		fmt.Fprint(stdout, process.Version("rebound-simnic"))
		return 0
	}
	if len(args) > 0 && slices.Contains([]string{"manual", "completion", manual.CompleteCommand}, args[0]) {
		if err := printManual(stdout, args[0], args[1:]); err != nil {
			fmt.Fprintln(stderr, "rebound-simnic:", sanitize.Error(err))
			return 1
		}
		return 0
	}
	var c config
	fs := c.flags()
	fs.SetOutput(io.Discard)
	if err := fs.Parse(args); err != nil {
		fs.SetOutput(stderr)
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stderr, "rebound-simnic: %s (-h explains the flags)\n",
				sanitize.Error(setting.Unknown(err, fs)))
			return 2
		}
		fs.Usage()
		return 0
	}
	level := slog.LevelInfo
	if c.debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	if err := c.check(fs.Args()); err != nil {
		fmt.Fprintln(stderr, "rebound-simnic:", sanitize.Error(err))
		return 2
	}
	b, err := c.build(log)
	defer b.close()
	if err == nil {
		err = b.writeTrace() // fail now rather than after hours
	}
	if err != nil {
		fmt.Fprintln(stderr, "rebound-simnic:", sanitize.Error(err))
		return 1
	}
	for i := range b.ports {
		fmt.Fprintf(stdout, "ready model=%s socket=%s\n", c.models[i], c.sockets[i])
	}
	code := 0
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(stderr, "rebound-simnic:", sanitize.Error(err))
			code = 1
		}
	}
serve:
	for s := range sig {
		switch s {
		case syscall.SIGUSR1:
			fail(b.writeTrace())
			b.report(stdout)
		case syscall.SIGUSR2:
			for _, p := range b.ports {
				p.Reset()
			}
		default:
			break serve
		}
	}
	b.stop()
	fail(b.writeTrace())
	if c.counts {
		b.report(stdout)
	}
	for _, p := range b.ports {
		all := p.Violations()
		for _, v := range all {
			fmt.Fprintln(stderr, "violation:", v)
		}
		if c.strict == "true" && len(all) > 0 || c.strict == "refused" && len(p.Errors()) > 0 {
			code = 1
		}
	}
	if b.capture != nil && b.capture.Err() != nil {
		fail(fmt.Errorf("-wire pcap: it has the frames up to an error: %w", b.capture.Err()))
	}
	return code
}

func (c *config) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case len(c.models) == 0 || len(c.models) != len(c.sockets):
		return fmt.Errorf("%d models and %d sockets: each model needs a socket", len(c.models), len(c.sockets))
	}
	if n := len(c.profiles); n != 0 && n != len(c.models) {
		return fmt.Errorf("%d models and %d profiles: -profile is given for each model, or for none", len(c.models), n)
	}
	joins := 0
	for _, w := range c.wires {
		kind, name, _ := strings.Cut(w, ":")
		switch {
		case kind == "pair" && name == "" && len(c.models) == 2, kind == "tap" && name != "" && len(c.models) == 1,
			w == "subnet":
			joins++
		case kind == "pcap" && name != "":
		default:
			return fmt.Errorf("-wire %s does not fit %d models: pair takes two, tap:NAME one, subnet any number", w,
				len(c.models))
		}
	}
	link, err := c.link()
	subnet := slices.Contains(c.wires, "subnet")
	switch {
	case err != nil:
		return err
	case joins != 1:
		return fmt.Errorf("one -wire pair, subnet or tap:NAME is needed, there are %d", joins)
	case subnet && link != sim.LinkInfiniBand:
		return fmt.Errorf("-wire subnet joins InfiniBand ports, these are of %v: -wire pair joins two of them", link)
	case !subnet && link != sim.LinkEthernet && len(c.models) == 1:
		return fmt.Errorf("-wire tap:NAME carries Ethernet, the port is of %v: -wire pair or subnet joins two of them",
			link)
	}
	for _, p := range []float64{c.impair.Loss, c.impair.Duplicate, c.impair.Reorder} {
		if p < 0 || p > 1 {
			return fmt.Errorf("-loss, -duplicate and -reorder are probabilities, 0 to 1: %v is none", p)
		}
	}
	if c.impair.Delay < 0 {
		return fmt.Errorf("-delay %v is negative", c.impair.Delay)
	}
	return nil
}

// profile is the value of -profile for the n-th model.
func (c *config) profile(n int) string {
	if len(c.profiles) == 0 {
		return ""
	}
	return c.profiles[n]
}

// link is the link layer of the wire, which both of its ends must have.
func (c *config) link() (sim.LinkType, error) {
	first, err := catalogue.FindProfile(c.models[0], c.profile(0))
	if err != nil {
		return 0, err
	}
	for i, name := range c.models {
		p, e := catalogue.FindProfile(name, c.profile(i))
		switch {
		case e != nil:
			return 0, e
		case p.Link != first.Link:
			return 0, fmt.Errorf("%s has an %v port, %s an %v one: a wire joins two of one kind", first.Name,
				first.Link, p.Name, p.Link)
		}
	}
	return first.Link, nil
}

// bench has everything that one run has built.
type bench struct {
	config  *config
	ports   []*sim.Port
	wires   []*sim.Impaired // as ports see them
	servers []*vfioserver.Server
	tap     *sim.Tap
	manage  chan struct{} // stops the subnet manager
	file    *os.File
	capture *sim.Capture
}

// build also returns what it has built if it fails.
func (c *config) build(log *slog.Logger) (*bench, error) {
	b := &bench{config: c}
	for i, name := range c.models {
		m, err := newModel(name, c.profile(i), i)
		if err != nil {
			return b, err
		}
		p, err := sim.New(m, sim.Options{Name: fmt.Sprintf("%s.%d", name, i)})
		if err != nil {
			return b, err
		}
		if c.trace != "" {
			p.StartTrace(traceDepth)
		}
		b.ports = append(b.ports, p)
	}
	ends, err := b.join(log)
	if err != nil {
		return b, err
	}
	for i, p := range b.ports {
		impair := c.impair
		impair.Seed += uint64(i)
		b.wires = append(b.wires, sim.Impair(ends[i], impair))
		p.Connect(b.wires[i])
		p.Start()
		s, err := vfioserver.Listen(c.sockets[i], p, log)
		if err != nil {
			return b, err
		}
		b.servers = append(b.servers, s)
	}
	return b, nil
}

// traceDepth is how many events of each device -trace keeps: a few megabytes.
const traceDepth = 1 << 16

// writeTrace replaces the file given by -trace.
func (b *bench) writeTrace() error {
	if b.config.trace == "" {
		return nil
	}
	err := atomicfile.Write(b.config.trace, func(w io.Writer) error {
		for _, p := range b.ports {
			if _, err := p.Trace().WriteTo(w); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("-trace: %w", err)
	}
	return nil
}

// tapMTU leaves room for the longest jumbo frames of any model.
const tapMTU = 9500

func (b *bench) join(log *slog.Logger) ([]sim.Wire, error) {
	var ends []sim.Wire
	for _, w := range b.config.wires {
		switch kind, name, _ := strings.Cut(w, ":"); kind {
		case "pair":
			x, y := sim.Pair()
			ends = []sim.Wire{x, y}
		case "subnet":
			ends = b.subnet(log)
		case "tap":
			var err error
			if b.tap, err = sim.OpenTap(name, tapMTU); err != nil {
				return nil, err
			}
			ends = []sim.Wire{b.tap}
		}
	}
	for _, w := range b.config.wires {
		name, ok := strings.CutPrefix(w, "pcap:")
		if !ok {
			continue
		}
		var err error
		if b.file, err = os.Create(name); err != nil {
			return nil, err
		}
		link, err := b.config.link()
		if err != nil {
			return nil, err
		}
		if b.capture, err = sim.NewCapture(ends[0], b.file, link); err != nil {
			return nil, err
		}
		ends[0] = b.capture
	}
	return ends, nil
}

// subnet returns the ports of a switch that has a subnet manager.
func (b *bench) subnet(log *slog.Logger) (ends []sim.Wire) {
	var ports []*sim.Cable
	for range b.ports {
		near, far := sim.Pair()
		ends, ports = append(ends, near), append(ports, far)
	}
	f := fabric.New(func(format string, args ...any) { log.Warn("subnet: " + fmt.Sprintf(format, args...)) }, ports...)
	f.Sweep = sweep
	b.manage = make(chan struct{})
	go func(end <-chan struct{}) {
		for {
			select {
			case <-end:
				return
			default:
			}
			f.Received() // discard packets for the manager's host, which does not exist
			if !f.Step() {
				time.Sleep(20 * time.Microsecond)
			}
		}
	}(b.manage)
	return ends
}

// sweep is the interval at which the manager checks for a card that was reset.
const sweep = 100 * time.Millisecond

func (b *bench) report(w io.Writer) {
	type port struct {
		Model      string            `json:"model"`
		Socket     string            `json:"socket"`
		Counts     sim.Counts        `json:"counts"`
		Wire       sim.WireCounts    `json:"wire"`
		Drops      map[string]uint64 `json:"drops,omitempty"` // by reason
		Violations []string          `json:"violations"`
	}
	var all []port
	for i, p := range b.ports {
		all = append(all, port{b.config.models[i], b.config.sockets[i], p.Counts(), b.wires[i].Counts(), p.Drops(),
			append([]string{}, p.Violations()...)})
	}
	json.NewEncoder(w).Encode(map[string]any{"ports": all})
}

// stop disconnects the clients and stops the devices.
func (b *bench) stop() {
	for _, s := range b.servers {
		s.Close()
	}
	b.servers = nil
	for _, p := range b.ports {
		p.Stop()
	}
}

func (b *bench) close() {
	b.stop()
	for _, p := range b.ports {
		p.Connect(nil)
		p.Close()
	}
	if b.tap != nil {
		b.tap.Close()
	}
	if b.manage != nil {
		close(b.manage)
	}
	if b.file != nil {
		b.file.Close()
	}
}
