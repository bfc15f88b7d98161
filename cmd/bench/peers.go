package main

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"rebound/cmd/bench/peers"
	"rebound/cmd/bench/probe"
	"rebound/latency/report"
)

const peersHelp = `usage: bench peers [flags]

Measures the responder side by side with others that answer: DPDK's testpmd (forward mode icmpecho) on the same kinds of
socket, the kernel, a program that asks a UDP socket without end, and the floor: the least program in C that answers over
such a socket. One veth pair, the same two CPUs and the same prober for all, in alternating rounds; then the highest rate
of each without loss, and each at fractions of its own. A peer that cannot run is skipped with its reason. It takes root.
testpmd needs the package dpdk-dev and 64 free hugepages of 2 MiB, the floor gcc: make peers sees to all.

`

// peer is one who answers.
type peer struct {
	name        string
	proto       probe.Proto
	target      netip.Addr
	start, stop func() error
	mac         [6]byte // that it answers from, zero for the interface's
}

// contest is bench peers.
type contest struct {
	*demo
	out         string
	prober      string
	dir         string // for programs that are built, gone in the end
	rounds      int
	each        time.Duration // of a round
	trial       time.Duration // of each rate of the search
	core, other int           // the peers', the bench's
	peers       []*peer
	current     *peer
	interrupted atomic.Bool
	table       peers.Table
}

func peersCommand(e *env, args []string) error {
	if len(args) == 3 && args[0] == "udp-echo" { // what this very command starts
		at, err := netip.ParseAddrPort(args[1])
		core, err2 := strconv.Atoi(args[2])
		if err := errors.Join(err, err2); err != nil {
			return usage("%w", err)
		}
		return peers.EchoUDP(at, core, e.stdout)
	}
	fs := flag.NewFlagSet("peers", flag.ContinueOnError)
	out := fs.String("out", "out/peers-"+time.Now().Format("20060102-150405"), "`FOLDER` for the reports")
	rounds := fs.Int("rounds", 11, "rounds of each, alternating; five at least")
	each := fs.Duration("duration", 500*time.Millisecond, "`TIME` to measure in each round")
	prober := fs.String("prober", "afxdp", "the bench's `DRIVER`: afxdp, or afpacket, where its kernel looks at each reply as well")
	readme := fs.String("readme", "", "also put the tables between the lines <!-- peers:begin --> and <!-- peers:end --> of this `FILE`")
	if err := e.parse(fs, args, peersHelp); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return usage("%q is left over", fs.Arg(0))
	case *rounds < 5 || *each <= 0:
		return usage("want at least five rounds, and a duration above zero")
	case *prober != "afpacket" && *prober != "afxdp":
		return usage("-prober %q: want afpacket or afxdp", *prober)
	case os.Geteuid() != 0:
		return usage("namespaces, XDP and hugepages take root")
	}
	program, err := findResponder()
	if err != nil {
		return err
	}
	if err := writable(*out); err != nil {
		return err
	}
	quiet := *e
	quiet.stdout = discard{}
	c := &contest{demo: &demo{env: &quiet, program: program}, out: *out, prober: *prober, rounds: *rounds, each: *each, trial: 300 * time.Millisecond}
	defer onSignal(&c.interrupted)()
	failed := make(chan error)
	go func() { // on a thread that ends with it, since it cannot come back from its namespace
		runtime.LockOSThread()
		failed <- c.run()
	}()
	if err := <-failed; err != nil {
		return err
	}
	text := c.table.Markdown()
	fmt.Fprint(e.stdout, text)
	for _, m := range c.table.Missed() {
		e.log.Warn("not reached", "what", m)
	}
	if err := os.WriteFile(filepath.Join(*out, "README.md"), []byte("# Side by side\n\n"+text), 0o644); err != nil {
		return err
	}
	if *readme != "" {
		err := peers.Insert(*readme, "peers", text)
		if errors.Is(err, peers.ErrNoPlace) {
			e.log.Warn("tables not inserted", "reason", err)
			return nil
		}
		return err
	}
	return nil
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// errInterrupted says that a signal ended the contest.
var errInterrupted = errors.New("interrupted")

// run is on a locked thread, which becomes the bench's side.
func (c *contest) run() (err error) {
	p, leave, err := c.enter()
	if err != nil {
		return err
	}
	defer leave()
	if c.core, c.other = p.other(), p.core; c.core == c.other {
		return errors.New("there is one CPU only: this takes two")
	}
	if c.dir, err = os.MkdirTemp("", "bench-peers-*"); err != nil {
		return err
	}
	defer os.RemoveAll(c.dir)
	defer func() { err = errors.Join(err, c.turnTo(nil)) }()
	if err := c.enlist(); err != nil {
		return err
	}
	byProto := map[probe.Proto][]*peer{}
	for _, p := range c.peers {
		byProto[p.proto] = append(byProto[p.proto], p)
	}
	for _, proto := range []probe.Proto{probe.ICMP, probe.UDP} {
		if err := c.closedLoop(byProto[proto]); err != nil {
			return err
		}
	}
	if err := c.saturate(byProto[probe.ICMP]); err != nil {
		return err
	}
	return c.openLoop(byProto[probe.ICMP])
}

// setting is that of one series of probes to p, at a rate or, with 0, in a closed loop. Its name begins with p's.
func (c *contest) setting(p *peer, rate float64) settings {
	return settings{name: p.name, target: p.target, proto: p.proto, rates: []float64{rate}, sizes: []int{98}, iface: benchIface,
		source: netip.MustParseAddr(benchAddress), driver: c.prober, transport: "raw", timeout: time.Second, port: 7, mac: p.mac}
}

// closedLoop measures all of some peers in alternating rounds.
func (c *contest) closedLoop(some []*peer) error {
	if len(some) < 2 {
		return nil
	}
	o := &options{duration: c.each, warmup: 100 * time.Millisecond, runs: c.rounds, core: c.other, out: filepath.Join(c.out, some[0].proto.String()),
		selfTest: 300 * time.Millisecond, paired: true}
	for _, p := range some {
		o.variants = append(o.variants, c.setting(p, 0))
	}
	reports, err := c.session(o)
	c.table.Closed = append(c.table.Closed, reports...)
	return err
}

// session measures, and returns the reports, which it leaves without their pages. They are for publishing.
func (c *contest) session(o *options) ([]*report.Report, error) {
	// Whoever answers now is asked for its MAC, which is the same for all of them.
	if i := slices.IndexFunc(c.peers, func(p *peer) bool { return strings.HasPrefix(p.name, "responder") }); i >= 0 {
		if err := c.turnTo(c.peers[i]); err != nil {
			return nil, err
		}
	}
	if err := os.RemoveAll(o.out); err != nil {
		return nil, err
	}
	o.anonymous = true
	err := c.measure(o, func(cell *cell) error {
		if c.interrupted.Load() {
			return errInterrupted
		}
		name, _, _ := strings.Cut(cell.name, " at ")
		p := c.peers[slices.IndexFunc(c.peers, func(p *peer) bool { return p.name == name })]
		if err := c.turnTo(p); err != nil {
			return err
		}
		return cell.answered()
	})
	if err != nil {
		return nil, err
	}
	var all []*report.Report
	for i, v := range o.variants {
		rep, err := take(filepath.Join(o.out, folder(fmt.Sprintf("%02d-%s", i+1, v.name))))
		if err != nil {
			return nil, err
		}
		all = append(all, rep)
	}
	return all, nil
}

// take reads a report and removes its page.
func take(dir string) (*report.Report, error) {
	rep, err := report.Read(dir)
	if err != nil {
		return nil, err
	}
	return rep, os.Remove(filepath.Join(dir, "report.html"))
}

// answered waits until the target answers a probe, which is not counted.
func (c *cell) answered() error {
	codec, err := probe.New(c.flow)
	if err != nil {
		return err
	}
	neighbour, buf := c.neighbour(), make([]byte, 1<<12)
	var r probe.Reply
	for range 100 {
		if err := c.port.Send(codec.Build(1<<31, 0)); err != nil {
			return err
		}
		for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
			n, _, err := c.port.Recv(buf)
			if err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			if v := codec.Check(buf[:n], &r); v == probe.Good || v == probe.Unsummed {
				return nil
			}
			if out := neighbour.Answer(buf[:n]); out != nil {
				if err := c.port.Send(out); err != nil {
					return err
				}
			}
		}
	}
	return fmt.Errorf("%s does not answer", c.label())
}
