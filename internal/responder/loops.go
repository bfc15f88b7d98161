package responder

import (
	"context"
	"fmt"
	"io"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// pollingLoops answer in this process. Their counters are read while they run, without making them wait.
type pollingLoops struct {
	*engine
	*answering
	cores    []int
	remarks  []remark // about the host, logged once start-up has succeeded
	match    *fastpath.Config
	messages nic.Messenger // dev, if it carries messages; otherwise nil
	clock    *latency.Clock
	hand     *handover.Server // nil unless respond.handover is set

	before map[string]int64 // bus transactions of a device model at the start of serving
}

// openLoops chooses the cores, prepares clock and memory, opens the device and creates a loop for each core. calibrated
// completes the clock's calibration.
func (a *answering) openLoops(online []int, calibrated func() (*latency.Clock, error)) error {
	s := a.settings
	p := &pollingLoops{answering: a, cores: s.cpu.cores}
	if len(p.cores) == 0 {
		p.cores = []int{chooseCore(online)}
		a.log.Info("core chosen", "core", p.cores[0])
	}
	a.core = p.cores[0]
	err := s.guarded(p.cores, a.log)
	if err != nil {
		return err
	}
	if p.remarks, err = prepare(s, p.cores, online); err != nil {
		return err
	}
	p.match = s.match()
	s.nic.Queues, s.nic.Match, s.nic.Log = len(p.cores), p.match, a.log
	s.nic.Services = s.services()
	if iface := s.nic.BesideInterface(); iface != "" {
		lent, giveBack, err := lendAddresses(iface, s.respond.addresses, a.log)
		if err != nil {
			return err
		}
		a.later(func() {
			if err := giveBack(); err != nil {
				a.log.Warn("addresses could not be removed from the interface", "interface", iface, "error", err)
			}
		})
		s.nic.Dedicated = lent
	}
	a.stages.done("cores")
	dev, err := s.nic.OpenAnswerer()
	if err != nil {
		return err
	}
	a.stages.done("device")
	a.opened(dev, "queues", dev.Info().Queues)
	p.messages, _ = dev.(nic.Messenger)
	if link, err := dev.Link(); err == nil && !link.Up {
		a.log.Warn("link is down; answering starts when it comes up", "device", a.info.Device)
	}
	if p.clock, err = calibrated(); err != nil {
		return err
	}
	s.respond.stamp.timed(p.match, p.clock)
	if s.stampAsked() {
		stamps := newStampClock(p.clock, s.respond.stamp.clockError)
		p.match.Clock = &stamps.now
		keeping, stop := context.WithCancel(context.Background())
		a.later(stop)
		go stamps.keep(keeping)
	}
	a.stages.done("clock")
	p.engine = &engine{dev: dev, priority: s.cpu.priority, bound: heapBound, log: a.log,
		guard: loopGuard{limit: s.guard.loop}}
	p.followed, _ = dev.(nic.Followed)
	p.locks = s.cpu.lockMemory
	if err := s.fits(a.info, p.messages != nil); err != nil {
		return err
	}
	newResponder := fastpath.NewMessages
	if p.messages == nil {
		newResponder = fastpath.New
		if err := mac(p.match, a.info); err != nil {
			return err
		}
	}
	p.match.PartialChecksums = a.info.PartialChecksums
	for i, core := range p.cores {
		r, err := newResponder(*p.match)
		if err != nil {
			return err
		}
		p.loops = append(p.loops, &loop{core: core, queue: i, responder: r})
	}
	if s.stats.report != "" {
		p.gaps = newGapLog(p.loops, p.clock)
	}
	a.stages.done("loops")
	p.before, _ = p.transactions()
	a.answerer = p
	return nil
}

// arm opens the hand-over's listener, gives the cores to the loops, and attaches the programs that watch the cores.
func (p *pollingLoops) arm() (err error) {
	s, log := p.settings, p.answering.log
	if s.respond.handover.IsValid() {
		if p.hand, err = handover.Listen(s.respond.handover, p.messages, log); err != nil {
			return fmt.Errorf("respond.handover: %w", err)
		}
		p.undo = append(p.undo, p.hand.Close)
	}
	lease, release, err := s.lease(p.cores, log)
	if err != nil {
		return err
	}
	p.later(release)
	p.join = lease.Join
	// Not earlier, so that an error is not hidden among remarks.
	for _, r := range p.remarks {
		log.Warn(r.what, r.attrs...)
	}
	warn(s, p.cores, log)
	if s.stats.offcore { // the programs are attached before the rights for that are dropped
		var each func(osnoise.Event)
		if p.gaps != nil {
			each = p.gaps.cause
		}
		if p.noise, err = osnoise.Watch(p.cores, osnoise.Threshold, each); err != nil {
			log.Warn("the causes of polling gaps are unknown", "error", err)
		} else {
			p.later(p.noise.Close)
			log.Info("causes of polling gaps", "by", p.noise.How())
		}
	}
	p.stages.done("tracepoints")
	return nil
}

func (p *pollingLoops) run(ctx context.Context, ready func()) error {
	if p.gaps == nil {
		return p.engine.run(ctx, ready)
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.gaps.follow(following)
	}()
	err := p.engine.run(ctx, ready)
	stop()
	<-read
	return err
}

func (p *pollingLoops) readyLine() string {
	if p.messages != nil {
		return readyMessages(p.info, p.messages, p.hand)
	}
	return p.settings.ready(p.info)
}

// stats returns the sum of all loops' counters.
func (p *pollingLoops) stats() (sum fastpath.Stats) {
	for _, l := range p.loops {
		s := l.responder.Stats()
		sum.Add(&s)
	}
	return sum
}

// transactions returns a device model's bus transaction counts, nil for any other device.
func (p *pollingLoops) transactions() (map[string]int64, error) {
	return cards.Transactions(p.dev)
}

// histogram merges one histogram of all loops.
func (p *pollingLoops) histogram(of func(*polling.Loop) *polling.Histogram) *latency.Histogram {
	hs := make([]*latency.Histogram, len(p.loops))
	for i, l := range p.loops {
		hs[i] = latency.FromHot(of(&l.responder.Loop), p.clock)
	}
	return latency.Merge(hs...)
}

func turnaround(l *polling.Loop) *polling.Histogram { return &l.Turnaround }
func gap(l *polling.Loop) *polling.Histogram        { return &l.Gap }

func (p *pollingLoops) timings() []latency.Series {
	gaps := p.histogram(gap)
	return []latency.Series{{Name: "wait", Summary: gaps.Wait()},
		{Name: "turnaround", Summary: p.histogram(turnaround).Summary()},
		{Name: "gap", Summary: gaps.Summary()}}
}

func (p *pollingLoops) explain() string {
	return "wait: how long a frame that arrives at a random time waits for the loop. turnaround, gap: one value per loop iteration, not per frame"
}

func (p *pollingLoops) latest() (attrs []any) {
	var t, gaps ticks
	for _, l := range p.loops {
		t.add(&l.responder.Loop.Turnaround)
		gaps.add(&l.responder.Loop.Gap)
	}
	return append(t.attrs(p.clock.Nanoseconds), "wait_p99_ns", p.clock.Nanoseconds(gaps.wait(0.99)), "gap_max_ns",
		p.clock.Nanoseconds(gaps.greatest))
}

// details writes how often the loops were stopped, and what else had their cores.
func (p *pollingLoops) details(w io.Writer) {
	fmt.Fprintf(w, "collections\t%s\n", latency.FormatCount(p.collections.Load()))
	if p.noise == nil {
		return
	}
	fmt.Fprintf(w, "off core\tby %s\n", p.noise.How())
	printTotals(w, p.noise.Sorted())
}

// printTotals writes the first ten sums of what had the loops' cores.
func printTotals(w io.Writer, all []osnoise.Total) {
	for _, t := range all[:min(len(all), 10)] {
		fmt.Fprintf(w, "  %s\t%s", sanitize.Text(t.String()), sanitize.Count(int64(t.Count), "time"))
		if t.Seconds > 0 {
			fmt.Fprintf(w, ", %s", latency.FormatNS(t.Seconds*1e9))
		}
		fmt.Fprintln(w)
	}
}

// fill puts the loops' turnaround and gaps into a report.
func (p *pollingLoops) fill(r *report.Report) {
	r.Clock = p.clock.Info()
	if now, err := p.transactions(); err == nil && now != nil {
		r.Transfers = map[string]int64{}
		for kind, n := range now {
			r.Transfers[kind] = n - p.before[kind]
		}
	}
	r.Add(latency.MainSeries, p.histogram(turnaround))
	r.Add(latency.GapSeries, p.histogram(gap))
	if p.gaps != nil {
		how := ""
		if p.noise != nil {
			p.noise.Close() // its last events
			how = p.noise.How()
		}
		r.Gaps = p.gaps.report(how)
	}
	if n := p.collections.Load(); n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("the loops were stopped %s for a garbage collection",
			sanitize.Count(int64(n), "time")))
	}
}

func (p *pollingLoops) page() (*metrics.Page, func()) {
	page, shown := newPage(p)
	return page, shown.collect
}
