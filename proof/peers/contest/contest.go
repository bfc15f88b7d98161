// Package contest measures the responder and other programs alternately, on one veth pair and the same two CPUs.
package contest

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/peers/tables"
)

// peer is a program that answers requests.
type peer struct {
	name        string
	proto       probe.Proto
	target      netip.Addr
	start, stop func() error
	mac         [6]byte // MAC that it answers from, zero for the interface's
}

// Options describe a contest.
type Options struct {
	Out       string // folder for the reports of the closed loop
	Responder string // its program
	Prober    string // the driver used by the bench
	Rounds    int
	Each      time.Duration // duration of a round
	Trial     time.Duration // duration of each rate in the search
	Only      []string      // only these peers, and only the closed loop; nil for everything
	Stop      *atomic.Bool
	Log       *slog.Logger
}

type contest struct {
	Options
	bed     *testbed.Testbed
	dir     string // temporary folder for built programs and intermediate reports
	peers   []*peer
	current *peer
	table   tables.Table
}

// errInterrupted means that a signal ended the contest.
var errInterrupted = errors.New("interrupted")

// Run measures all peers that can run: one probe at a time in alternating rounds, then the highest rate of each without
// loss, then each at fractions of that rate. It requires root.
func Run(o Options) (*tables.Table, error) {
	c := &contest{Options: o}
	failed := make(chan error)
	go func() { // on a thread that ends with it, because it cannot leave its namespace
		runtime.LockOSThread()
		failed <- c.run()
	}()
	return &c.table, <-failed
}

// enter moves the calling thread into the bench's namespace.
func (c *contest) enter() (leave func(), err error) {
	if c.dir, err = os.MkdirTemp("", "peers-*"); err != nil {
		return nil, err
	}
	if c.bed, err = testbed.Enter(false); err != nil {
		os.RemoveAll(c.dir)
		return nil, err
	}
	return func() {
		c.bed.Close()
		os.RemoveAll(c.dir)
	}, nil
}

// run runs on a locked thread in the bench's namespace.
func (c *contest) run() (err error) {
	leave, err := c.enter()
	if err != nil {
		return err
	}
	defer leave()
	if c.bed.Core.Other() == c.bed.Core.CPU {
		return errors.New("there is one CPU only: this takes two")
	}
	defer func() { err = errors.Join(err, c.turnTo(nil)) }()
	if err := c.competitors(); err != nil {
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
	if c.Only != nil {
		return nil
	}
	if err := c.saturate(byProto[probe.ICMP]); err != nil {
		return err
	}
	return c.openLoop(byProto[probe.ICMP])
}

// setting has the settings for probes to p, at a rate or, with 0, in a closed loop. Its name starts with p's.
func (c *contest) setting(p *peer, rate float64) measure.Settings {
	return measure.Settings{Name: p.name, Target: p.target, Proto: p.proto, Rates: []float64{rate}, Sizes: []int{98},
		Iface:  testbed.NearIface,
		Source: netip.MustParseAddr(testbed.NearAddress), Driver: c.Prober, Transport: "raw", Timeout: time.Second,
		Port: 7, MAC: p.mac}
}

// closedLoop measures some peers in alternating rounds.
func (c *contest) closedLoop(some []*peer) error {
	if len(some) < 2 {
		return nil
	}
	o := c.options(c.Each, 100*time.Millisecond)
	o.Interval, o.Runs, o.SelfTest, o.Paired = c.Each, c.Rounds, 300*time.Millisecond, true
	o.Out = filepath.Join(c.Out, some[0].proto.String())
	for _, p := range some {
		o.Variants = append(o.Variants, c.setting(p, 0))
	}
	reports, err := c.measure(o)
	c.table.Closed = append(c.table.Closed, reports...)
	return err
}

// options are the options of every session, with reports suitable for publishing.
func (c *contest) options(duration, warmup time.Duration) measure.Plan {
	return measure.Plan{Duration: duration, Warmup: warmup, Runs: 1, Core: c.bed.Core.CPU, Anonymous: true,
		Stop: c.Stop, Log: c.Log, ProgressTo: io.Discard}
}

// measure activates each peer in its turn, and returns the reports, without their pages.
func (c *contest) measure(o measure.Plan) ([]*report.Report, error) {
	// The active peer is asked for its MAC, which is the same for all of them.
	if i := slices.IndexFunc(c.peers, func(p *peer) bool { return strings.HasPrefix(p.name, "responder") }); i >= 0 {
		if err := c.turnTo(c.peers[i]); err != nil {
			return nil, err
		}
	}
	if err := os.RemoveAll(o.Out); err != nil {
		return nil, err
	}
	o.Before = func(s *measure.Series) error {
		if c.Stop.Load() {
			return errInterrupted
		}
		name, _, _ := strings.Cut(s.Name, " at ")
		p := c.peers[slices.IndexFunc(c.peers, func(p *peer) bool { return p.name == name })]
		if err := c.turnTo(p); err != nil {
			return err
		}
		return s.Answered()
	}
	result, err := measure.Run(o)
	if err != nil {
		return nil, err
	}
	for _, rep := range result.Reports {
		if err := os.Remove(filepath.Join(rep.Dir, "report.html")); err != nil {
			return nil, err
		}
	}
	return result.Reports, nil
}
