// Package blame tests the attribution of slow round trips: it stops, starves and delays the responder, the bench and
// the link between them, in an order that the bench does not know, and compares the sides that the bench's report names
// with the plants' own records.
package blame

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const help = `usage: prove blame [flags]

Measures the responder over a veth pair in separate network namespaces. In each episode it plants one cause of latency, or two, in
pulses at random times, and compares the side that the report names for each of the slowest probes with what was planted while the
probe was on its way: the bench's report as it is, and then explained by the responder's. It takes root and two cores. Its session's
autogroup gets the nice value of this process meanwhile.

`

// options are the command-line options.
type options struct {
	duration, episode time.Duration
	seed              uint64
	rate              int
	driver            string
	card              string // the driver of the card's model that the bench uses
	timestamps        bool   // and its timestamps
	protocols         []string
	only              *regexp.Regexp
	out               string // keeps the reports
	responder         string // program
}

// Main runs the campaign with the arguments after the command name and returns the exit status.
func Main(args []string) int {
	stdout := sanitize.NewWriter(os.Stdout)
	err := command(args, stdout)
	code, say := process.ExitCode(err)
	if say {
		fmt.Fprintln(os.Stderr, "blame:", sanitize.Error(err))
	}
	return process.Printed(code, "blame", stdout, os.Stderr)
}

func command(args []string, w io.Writer) error {
	var o options
	fs := flag.NewFlagSet("blame", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.DurationVar(&o.duration, "duration", 5*time.Minute, "how long; the episode that is under way is finished")
	fs.DurationVar(&o.episode, "episode", 5*time.Second, "how long each plant, or pair of plants, is measured")
	fs.Uint64Var(&o.seed, "seed", 0,
		"decides the order of the plants and the times of their pulses; 0 takes a random one, which is printed")
	fs.IntVar(&o.rate, "rate", 2000, "probes per second")
	fs.StringVar(&o.driver, "driver", "afpacket", "the responder's driver: afpacket or afxdp")
	fs.StringVar(&o.out, "out", "", "`FOLDER` that keeps each episode's report and pulses; nothing is kept if empty")
	protocols := fs.String("proto", "stamp,udp,icmp", "protocols, separated by commas: stamp, udp, icmp")
	cost := fs.Bool("cost", false,
		"plant nothing: compare runs with and without the kernel's tracepoints, and say what watching costs")
	fs.StringVar(&o.card, "card", "",
		"the bench uses a card's model by `DRIVER` mlx5 or ixgbe instead of a veth interface; ixgbe takes -proto udp")
	fs.BoolVar(&o.timestamps, "timestamps", true, "with -card: the bench records the card's timestamps")
	only := fs.String("only", "", "a `PATTERN` (regular expression): only plants whose names match")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(w)
		fmt.Fprint(w, help)
		fs.PrintDefaults()
		return err
	case err != nil:
		return process.Usagef("%w (-h lists the flags)", err)
	case fs.NArg() > 0:
		return process.Usagef("%q is left over", fs.Arg(0))
	case o.duration <= 0 || o.episode <= 0 || o.rate <= 0:
		return process.Usagef("-duration, -episode and -rate must be above zero")
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return process.Usagef("-only: %w", err)
	}
	if o.card != "" && cards[o.card].model == nil {
		return process.Usagef("-card %s: there are mlx5 and ixgbe", o.card)
	}
	if o.protocols = strings.Split(*protocols, ","); o.card == "ixgbe" && *protocols != "udp" {
		return process.Usagef("-card ixgbe: the card timestamps datagrams only, so that it takes -proto udp")
	}
	if os.Geteuid() != 0 {
		return process.Usagef("namespaces and real-time priority take root")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	if o.responder, err = testbed.FindResponder(); err != nil {
		return err
	}
	return withPriority(func() error {
		if *cost {
			return o.cost(w)
		}
		m, err := o.run(w)
		if err == nil {
			m.write(w)
		}
		return err
	})
}

// run measures episodes until the time is up, and every plant once if there is time.
func (o *options) run(w io.Writer) (*matrix, error) {
	if runtime.NumCPU() < 2 {
		return nil, errors.New("the bench and the responder need a core each, and this machine has one")
	}
	fmt.Fprintf(w, "seed %d, %v, episodes of %v, %d probes per second, %s, driver %s, %d CPUs, kernel %s, load at the start %s\n", o.seed, o.duration, o.episode,
		o.rate, strings.Join(o.protocols, ", "), cmp.Or(o.model(), o.driver), runtime.NumCPU(), release(), load())
	r := rand.New(rand.NewPCG(o.seed, 1))
	var all []*plant
	for i := range plants {
		p := &plants[i]
		if o.only.MatchString(p.name) && p.takes.no != o.driver && (o.card != "" || !p.takes.card) {
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, process.Usagef("no plant matches -only %v", o.only)
	}
	m := newMatrix()
	var order []episode
	for start, n := time.Now(), 0; n == 0 || time.Since(start) < o.duration; n++ {
		if len(order) == 0 {
			for _, protocol := range o.protocols {
				for _, p := range all {
					order = append(order, episode{protocol, []*plant{p}})
				}
				for range len(all) / 2 { // and two at once
					a, b := all[r.IntN(len(all))], all[r.IntN(len(all))]
					if a.side != b.side && a.name != nothing && b.name != nothing {
						order = append(order, episode{protocol, []*plant{a, b}})
					}
				}
			}
			r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		if err := o.measure(order[0], n, r, m); err != nil {
			err = fmt.Errorf("%s, %s: %w", order[0].protocol, names(order[0].what), err)
			if m.failed = append(m.failed, err); len(m.failed) > 1+n/20 {
				return nil, errors.Join(m.failed...)
			}
		}
		order = order[1:]
	}
	m.load = load()
	return m, nil
}

// model says with which model of a card the bench measures, if with one.
func (o *options) model() string {
	switch {
	case o.card == "":
		return ""
	case o.timestamps:
		return "a model of " + cards[o.card].name + " with its timestamps"
	}
	return "a model of " + cards[o.card].name + " without its timestamps"
}

// episode is a measurement with some plants.
type episode struct {
	protocol string
	what     []*plant
}

func names(of []*plant) string {
	var all []string
	for _, p := range of {
		all = append(all, p.name)
	}
	return strings.Join(all, " and ")
}

func load() string {
	b, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

func release() string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(b))
}

// Interfaces and addresses: bench0 and echo0 are a pair, or each of them is one with an interface of the relay.
const (
	nearIface, farIface      = "bench0", "echo0"
	relayNear, relayFar      = "near0", "far0"
	nearPrefix, farPrefix    = "10.99.0.1/24", "10.99.0.3/24"
	farAddress               = "10.99.0.3"
	responderCore, benchCore = 0, 1
)

// bed is the network of one episode.
type bed struct {
	near, middle, far *testbed.Namespace
	relay             *relay
	card              *card // instead of an interface in near
}

func (b *bed) close() {
	b.relay.stop()
	b.card.stop()
	for _, n := range []*testbed.Namespace{b.near, b.middle, b.far} {
		if n != nil {
			n.Close()
		}
	}
}

func newBed(relayed, stamp bool, model string) (b *bed, err error) {
	b = &bed{}
	for _, n := range []**testbed.Namespace{&b.near, &b.middle, &b.far} {
		if *n, err = testbed.NewNamespace(); err != nil {
			return b, fmt.Errorf("a network namespace: %w", err)
		}
	}
	if model != "" {
		if b.card, err = startCard(b.middle, relayNear, model); err == nil {
			err = pair(b.far, farIface, b.middle, relayFar)
		}
		if err == nil {
			b.relay, err = newRelay(b.middle, stamp)
		}
		return b, err
	}
	if !relayed {
		err = pair(b.near, nearIface, b.far, farIface)
	} else if err = errors.Join(pair(b.near, nearIface, b.middle, relayNear),
		pair(b.far, farIface, b.middle, relayFar)); err == nil {
		b.relay, err = newRelay(b.middle, stamp)
	}
	if err == nil {
		err = b.near.Do(func() error { return addAddress(nearIface, nearPrefix) })
	}
	return b, err
}

// pair connects two namespaces by a veth pair that is up.
func pair(a *testbed.Namespace, name string, b *testbed.Namespace, peer string) error {
	up := func(name string) error {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}
	return errors.Join(a.Do(func() error {
		p := netlink.NewVeth(netlink.LinkAttrs{Name: name})
		p.PeerName, p.PeerNamespace = peer, netlink.NsFd(b.FD)
		if err := netlink.LinkAdd(p); err != nil {
			return err
		}
		return up(name)
	}), b.Do(func() error { return up(peer) }))
}

func addAddress(name, prefix string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	return netlink.AddrAdd(l, a)
}

// measure runs one episode and adds its slowest probes to m.
func (o *options) measure(e episode, number int, r *rand.Rand, m *matrix) (err error) {
	clocks := r.IntN(2) == 0 // whether the hosts state their clocks' errors
	stamp := e.protocol == "stamp"
	b, err := newBed(slices.ContainsFunc(e.what, func(p *plant) bool { return p.takes.link }), stamp, o.card)
	defer b.close()
	if err != nil {
		return err
	}
	folder := o.out
	if folder == "" {
		if folder, err = os.MkdirTemp("", "rebound-blame-"); err != nil {
			return err
		}
		defer os.RemoveAll(folder)
	}
	folder = filepath.Join(folder, fmt.Sprintf("%03d", number))

	resp := &testbed.Responder{Bed: &testbed.Testbed{Far: b.far}, Program: o.responder, Driver: o.driver,
		Core:   responderCore,
		Report: folder + "-responder", Set: []string{"respond.stamp_ports=[862]", "stats.offcore=true"}}
	for _, p := range e.what {
		resp.Set = append(resp.Set, p.takes.set...)
	}
	args := []string{"run", farAddress, "-proto", e.protocol, "-explain", "-rate", fmt.Sprint(o.rate), "-duration",
		o.episode.String(), "-runs", "1",
		"-self-test", "0s", "-core", fmt.Sprint(benchCore), "-out", folder}
	if o.card != "" {
		near, _, _ := strings.Cut(nearPrefix, "/")
		args = append(args, "-driver", o.card, "-iface", "vfio-user:"+b.card.socket, "-source", near, "-gateway",
			farAddress, fmt.Sprint("-timestamps=", o.timestamps))
	} else {
		args = append(args, "-driver", "afpacket")
	}
	if clocks && stamp {
		resp.Set = append(resp.Set, "respond.stamp_clock_error=1us")
		args = append(args, "-clock-error", "1us")
	}
	if err := resp.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resp.Stop()) }() // for an early return: a second Stop does nothing
	c, err := startBench(b.near, args)
	if err != nil {
		return err
	}
	defer c.asked.Close()
	defer c.answers.Close()
	s := &scene{start: time.Now(), length: o.episode + 2*time.Second, responder: resp.PID(), bench: c.Process.Pid,
		bed: b, collect: c.collect,
		end: make(chan struct{})}
	// What had the loops' cores is recorded in every episode: other programs run on this machine, too.
	all := append(slices.Clone(e.what), &plant{side: attribution.Responder, do: unplanted(s.responder, responderCore)},
		&plant{side: attribution.Here, do: unplanted(s.bench, benchCore)})
	recorded := make(chan []pulse, len(all))
	failed := make(chan error, len(all))
	for _, p := range all {
		schedule := pulses(r, s.length)
		seed := r.Uint64()
		go func() {
			got, err := p.do(s, schedule, rand.New(rand.NewPCG(seed, 2)))
			for k := range got {
				got[k].side, got[k].name = p.side, p.name
			}
			recorded <- got
			if err != nil {
				err = fmt.Errorf("%s: %w", p.name, err)
			}
			failed <- err
		}()
	}
	werr := c.wait()
	close(s.end)
	var planted []pulse
	for range all {
		planted = append(planted, <-recorded...)
		err = errors.Join(err, <-failed)
	}
	if werr != nil {
		return errors.Join(err, werr)
	}
	rep, rerr := report.Read(folder)
	if err = errors.Join(err, rerr); err != nil {
		return err
	}
	if rep.Attribution == nil {
		return errors.New("the report attributes no probe")
	}
	if err := resp.Stop(); err != nil {
		return err
	}
	explained, refusal, err := explain(folder, resp.Report, clocks)
	if err != nil {
		return err
	}
	if refusal != "" {
		m.refused[refusal]++
	}
	if o.out != "" {
		text := fmt.Appendf(nil, "%s, clocks %v: %s\n", e.protocol, clocks, names(e.what))
		if err := errors.Join(savePulses(filepath.Join(folder, "pulses.txt"), planted),
			os.WriteFile(filepath.Join(folder, "plants.txt"), text, 0o666)); err != nil {
			return err
		}
	}
	if b.relay != nil && b.relay.dropped > 0 {
		m.dropped += b.relay.dropped
		m.reported += int(rep.Counts.Lost)
	}
	protocol := e.protocol
	if o.card != "" {
		protocol += ", " + o.model()
	}
	slices.SortFunc(planted, func(a, b pulse) int { return cmp.Compare(a.from, b.from) })
	was := &records{pulses: planted, stamp: stamp}
	if b.card != nil {
		was.wire = b.relay.wire()
	}
	m.add(e.what, protocol, clocks, rep.Attribution, explained, was)
	return nil
}

// explain returns the attribution of a report after the bench has explained it by the responder's, or the report's own
// and why it refuses.
func explain(folder, responder string, clocks bool) (a *attribution.Result, refusal string, err error) {
	args := []string{"explain", folder, responder}
	if clocks {
		args = slices.Insert(args, 1, "-clock-error", "1us")
	}
	c := child("bench", args...)
	var said process.Tail
	c.Stderr = &said
	if err := c.Run(); err != nil {
		_, refusal, _ = strings.Cut(strings.TrimSpace(said.String()), responder+": ")
		if refusal == "" {
			return nil, "", fmt.Errorf("rebound-bench explain: %w: %s", err, said.String())
		}
	}
	rep, err := report.Read(folder)
	if err != nil {
		return nil, "", err
	}
	return rep.Attribution, refusal, nil
}

// benchProcess is the bench as another process, which collects garbage when it is asked to.
type benchProcess struct {
	*exec.Cmd
	said           process.Tail
	asked, answers *os.File
	lines          *bufio.Reader
}

func startBench(in *testbed.Namespace, args []string) (*benchProcess, error) {
	ask, asked, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	answers, answer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	b := &benchProcess{Cmd: child("bench", args...), asked: asked, answers: answers, lines: bufio.NewReader(answers)}
	b.Stderr, b.ExtraFiles = &b.said, []*os.File{ask, answer}
	err = in.Do(b.Start)
	ask.Close()
	answer.Close()
	return b, err
}

// collect has it collect garbage, and returns when it did.
func (b *benchProcess) collect() (p pulse, err error) {
	_, err = fmt.Fprintln(b.asked)
	if err != nil {
		return p, err
	}
	line, err := b.lines.ReadString('\n')
	if err != nil {
		return p, fmt.Errorf("the bench has ended: %w", unix.EPIPE)
	}
	all, err := readPulses(strings.NewReader(line))
	if err != nil || len(all) != 1 {
		return p, fmt.Errorf("the bench says %q", line)
	}
	return all[0], nil
}

// wait waits for its end.
func (b *benchProcess) wait() error {
	if err := b.Wait(); err != nil {
		return fmt.Errorf("the bench: %w: %s", err, strings.TrimSpace(b.said.String()))
	}
	return nil
}

// sameProbe is by how many ns two clocks may differ about when a probe was sent, and onWire how much later than by the
// card's timestamp it may have passed the relay.
const (
	sameProbe = 100_000
	onWire    = 500_000
)

// records are what was at work in an episode. wire is empty without a card's model: its probes pass the relay between
// the hosts, so that what one of them can have delayed is known.
type records struct {
	pulses []pulse // by start
	wire   []passage
	stamp  bool // the probes say when they were sent
}

// passage returns when a probe passed the relay; nil if that is not known.
func (all *records) passage(row *attribution.Row) *passage {
	sent, tolerance := 1000*row.At+max(row.Times[1], 0), int64(sameProbe)
	if !all.stamp && row.Times[2] >= 0 {
		sent, tolerance = 1000*row.At+row.Times[2], onWire
	}
	k := sort.Search(len(all.wire), func(k int) bool { return all.wire[k].sent >= sent-sameProbe })
	var best *passage
	for ; k < len(all.wire) && all.wire[k].sent <= sent+tolerance; k++ {
		p := &all.wire[k]
		answered := p.off != 0 && p.off <= 1000*row.At+row.RTT+sameProbe
		if answered && (best == nil || abs(p.sent-sent) < abs(best.sent-sent)) {
			best = p
		}
	}
	return best
}

func abs(v int64) int64 { return max(v, -v) }

// truth is what was at work while a probe was where it could delay it: the side whose pulses cover at least half of its
// round trip then. There is none if no pulse does, and two sides may do so at once. Only this host delays a probe
// before it is sent.
func (all *records) truth(row *attribution.Row) (sides []attribution.Side, names map[attribution.Side]string) {
	names = map[attribution.Side]string{}
	from, to := 1000*row.At, 1000*row.At+row.RTT
	sent := from + max(row.Times[1], 0)
	at := map[attribution.Side][]pulse{attribution.Here: {{from: from, to: to}},
		attribution.Responder: {{from: sent, to: to}}, attribution.Network: {{from: sent, to: to}}}
	probe := sent
	if len(all.wire) > 0 {
		p := all.passage(row)
		if p == nil {
			return nil, names
		}
		probe = p.sent
		at[attribution.Here] = []pulse{{from: from, to: p.there}, {from: p.off, to: to}}
		at[attribution.Responder] = []pulse{{from: p.on, to: p.back}}
		at[attribution.Network] = []pulse{{from: p.there, to: p.on}, {from: p.back, to: p.off}}
	}
	sum := map[attribution.Side]int64{}
	last := map[attribution.Side]int64{} // of one side, what overlaps counts once
	for _, p := range all.pulses {
		if p.from > to || p.to < from || p.sent != 0 && abs(p.sent-probe) > sameProbe {
			continue
		}
		for _, in := range at[p.side] {
			b := min(p.to, in.to)
			sum[p.side] += max(b-max(p.from, in.from, last[p.side]), 0)
			if max(p.from, in.from) < b && (names[p.side] == "" || p.name != "") {
				names[p.side] = p.name
			}
		}
		last[p.side] = max(last[p.side], p.to)
	}
	for _, s := range attribution.Sides {
		if 2*sum[s] >= row.RTT {
			sides = append(sides, s)
		}
	}
	return sides, names
}
