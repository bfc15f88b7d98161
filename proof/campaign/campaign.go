package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

type campaign struct {
	options
	w      io.Writer
	work   string             // folder for sockets and the small disk, removed at the end
	space  *testbed.Namespace // the responder's namespace
	simLog *slog.Logger
	log    *os.File         // log of the responders
	steps  *sanitize.Writer // a line for each fault
	models *sanitize.Writer // log of the models
	parts  int
	proc   *supervisor // supervisor of the current part

	start, finish time.Time
	report        report
	before        own // resources that this process held at the start
}

func newCampaign(o options, w io.Writer) (c *campaign, err error) {
	c = &campaign{options: o, w: w, start: time.Now()}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return nil, err
	}
	if c.log, err = os.Create(filepath.Join(o.out, "responder.log")); err != nil {
		return nil, err
	}
	for name, to := range map[string]**sanitize.Writer{"steps.log": &c.steps, "models.log": &c.models} {
		f, err := os.Create(filepath.Join(o.out, name))
		if err != nil {
			return nil, err
		}
		*to = sanitize.NewWriter(f)
	}
	c.simLog = slog.New(slog.NewTextHandler(c.models, nil))
	if c.work, err = os.MkdirTemp("", "rebound-campaign-"); err != nil {
		return nil, err
	}
	if c.space, err = testbed.NewNamespace(); err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	err = c.space.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	c.report.init()
	return c, err
}

// readyLine is the ready line of the running responder, "" if none is running.
func (c *campaign) readyLine() string {
	c.proc.mu.Lock()
	defer c.proc.mu.Unlock()
	return c.proc.ready
}

// responder runs one of the responder's commands.
func (c *campaign) responder(args ...string) (string, error) {
	out, err := exec.Command(c.program, args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// disk is the small file system that full-disk faults fill.
func (c *campaign) disk() string { return filepath.Join(c.work, "disk") }

// run executes parts until the time is up.
func (c *campaign) run(ctx context.Context) error {
	defer os.RemoveAll(c.work)
	if err := os.Mkdir(c.disk(), 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", c.disk(), "tmpfs", 0, "size=256k,mode=755"); err != nil {
		return fmt.Errorf("a small file system: %w", err)
	}
	// If the run ends early, files still open on the disk must not prevent the removal of the folder.
	defer unix.Unmount(c.disk(), unix.MNT_DETACH)
	fmt.Fprintf(c.w, "campaign: seed %d, %v, into %s\n", c.seed, c.duration, c.out)
	p := newPlan(c.seed, c.only)
	for ctx.Err() == nil && (c.parts == 0 || time.Since(c.start) < c.duration) {
		next := p.next()
		if len(next.faults) == 0 {
			return process.Usagef("no fault matches -only %v (-list prints all)", c.only)
		}
		if err := c.part(ctx, next); err != nil {
			return err
		}
		c.parts++
		if c.parts == 1 {
			c.before = settled(own{})
			continue
		}
		for _, left := range settled(c.before).more(c.before) {
			c.failed(next.kind.name, "", "the campaign's process holds "+left)
		}
	}
	c.finish = time.Now()
	if err := unix.Unmount(c.disk(), 0); err != nil {
		c.failed("", "", "the small file system cannot be unmounted, something has it open: "+err.Error())
	}
	failed := c.save()
	if n := len(c.report.failures); n > 0 {
		failed = errors.Join(fmt.Errorf("%d failures with seed %d, see %s", n, c.seed,
			filepath.Join(c.out, "campaign.md")), failed)
	}
	return failed
}

// settled returns the held resources once goroutines and files have had time to end: when there are no more than
// before, or after a timeout.
func settled(before own) (o own) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		o = holding()
		if before != (own{}) && len(o.more(before)) == 0 || time.Now().After(end) {
			return o
		}
		if before == (own{}) && time.Until(end) < 4*time.Second {
			return o
		}
	}
}

// failed counts a failure and prints it immediately.
func (c *campaign) failed(kind, fault, what string) {
	c.report.failures = append(c.report.failures, failure{c.parts, kind, fault, what})
	fmt.Fprintf(c.w, "FAILED part %d, %s, %s: %s\n", c.parts, kind, fault, what)
}

// session is one part in progress.
type session struct {
	*campaign
	kind    *kind
	t       target
	proc    *supervisor
	traffic *traffic
	scraper *scraper
	extra   []string // additional settings for the next start

	r      *rand.Rand // random numbers of the current fault
	fault  *fault
	detail []string // the seed's choices, and observations
	began  int      // number of endings before the fault
	helped bool     // recovery needed a restart that only an operator would have done
	skip   string   // why the fault cannot be tested on this machine
	lossy  bool     // the fault may have made the device lose a command, which the driver awaits until its timeout
}

func (c *campaign) part(ctx context.Context, p part) error {
	s := &session{campaign: c, kind: p.kind}
	var err error
	if s.t, err = p.kind.open(c, rand.New(rand.NewPCG(p.seed, 0))); err != nil {
		return fmt.Errorf("%s: %w", p.kind.name, err)
	}
	s.proc = supervise(c.program, c.space, c.log, s.args)
	c.proc = s.proc
	s.traffic = newTraffic(s.t)
	s.scraper = scrape(c.space, s.proc.metricsAt)
	fmt.Fprintf(c.steps, "%8.3f part %d: %s (%v)\n", time.Since(c.start).Seconds(), c.parts, p.kind.name, s.t)
	if err := s.comesBack(c.patience); err != nil {
		c.failed(p.kind.name, "start", err.Error())
	} else {
		for i, f := range p.faults {
			if ctx.Err() != nil || time.Since(c.start) > c.duration && c.parts > 0 {
				break
			}
			s.r = rand.New(rand.NewPCG(p.seed, uint64(i+1)))
			if err := s.break_(f); err != nil {
				c.failed(p.kind.name, f.name, err.Error()+"; "+s.said())
				break // further faults would only show the same failure
			}
		}
	}
	s.end()
	return nil
}

func (s *session) args() []string {
	all := []string{"-config", "/dev/null", "-set", "stats.listen=127.0.0.1:0"}
	for _, set := range append(s.t.args(), s.extra...) {
		all = append(all, "-set", set)
	}
	return all
}

func (s *session) said() string { return s.proc.lastWords() }

// comesBack waits until the responder is ready and answers requests.
func (s *session) comesBack(patience time.Duration) error {
	_, err := s.back(patience)
	return err
}

func (s *session) back(patience time.Duration) (time.Duration, error) {
	d, err := s.traffic.back(patience, func() error { return nil })
	if err != nil {
		return d, fmt.Errorf("it does not answer: %w", err)
	}
	return d, s.proc.up(patience)
}

// standstill is how long to wait for recovery from a fault that may stall a ring before the responder is restarted.
const standstill = 10 * time.Second

// break_ injects one fault, and waits for recovery.
func (s *session) break_(f *fault) error {
	before, _ := s.traffic.tell()
	s.fault, s.detail, s.helped, s.skip = f, nil, false, ""
	s.lossy = s.lossy || f.ends
	s.began = s.proc.endings()
	err := f.do(s)
	var took time.Duration
	if err == nil && s.skip == "" {
		patience := s.patience
		if f.ends {
			patience = min(patience, standstill)
		}
		took, err = s.back(patience)
		if err != nil && f.ends { // as an operator would do when nothing is answered
			s.helped = true
			if _, serr := s.proc.signal(unix.SIGTERM, s.patience); serr != nil {
				return serr
			}
			took, err = s.back(s.patience)
		}
		if err == nil {
			err = s.until("statistics", s.statistics)
		}
	}
	if s.traffic.bears {
		s.traffic.mu.Lock()
		s.traffic.bears = false
		s.traffic.mu.Unlock()
	}
	after, silent := s.traffic.tell()
	d := after.since(before)
	ends := s.proc.since(s.began)
	outcome := step{kind: s.kind.name, fault: f.name, took: took, silent: silent, counts: d, helped: s.helped,
		skipped: s.skip}
	for _, e := range ends {
		switch {
		case e.panicked() != "":
			err = errors.Join(err, fmt.Errorf("the responder broke: %s", e.panicked()))
		case e.ours:
			outcome.restarted = true
		case !f.ends:
			err = errors.Join(err, fmt.Errorf("the responder ended, which it need not: %s", lastLine(e)))
		default:
			outcome.restarted = true
		}
	}
	if d.Wrong > 0 {
		s.traffic.mu.Lock()
		err = errors.Join(err, fmt.Errorf("%d wrong replies: %v", d.Wrong, s.traffic.wrongs))
		s.traffic.mu.Unlock()
	}
	s.report.steps = append(s.report.steps, outcome)
	fmt.Fprintf(s.steps, "%8.3f   %s: %s; back after %v, silent for %v, %d asked, %d lost, %d ends%s\n",
		time.Since(s.start).Seconds(), f.name,
		strings.Join(s.detail, ", "), took.Round(10*time.Microsecond), silent.Round(time.Millisecond), d.Sent, d.Lost,
		len(ends),
		map[bool]string{true: ", restarted by hand"}[s.helped])
	return err
}

func lastLine(e ending) string {
	lines := strings.Split(strings.TrimSpace(e.said), "\n")
	return e.how + ": " + lines[len(lines)-1]
}

// end stops the responder of the part and checks for leaks.
func (s *session) end() {
	fail := func(what string) { s.failed(s.kind.name, "the end", what) }
	s.proc.hold()
	if e, err := s.proc.signal(unix.SIGTERM, s.patience); err != nil {
		fail(err.Error())
	} else if said := lastLine(e); s.lossy && e.how == "exit 1" && strings.Contains(said, nic.ErrTimeout.Error()) {
		fmt.Fprintf(s.steps, "%8.3f   the end: a command that the device lost was still waited for: %s\n",
			time.Since(s.start).Seconds(), said)
	} else if e.how != "" && e.how != "exit 0" {
		fail("SIGTERM: " + said)
	}
	s.proc.close()
	s.scraper.end()
	s.traffic.end()
	for _, left := range s.t.left() {
		fail("left: " + left)
	}
	s.proc.mu.Lock()
	all, starts, ended := s.proc.held, s.proc.starts, s.proc.ended
	s.proc.mu.Unlock()
	for _, left := range gone(all, 20*time.Second) {
		fail("left: " + left)
	}
	for _, left := range s.t.close() {
		fail("left: " + left)
	}
	_ = s.space.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Attrs().Name != "lo" {
				fail("left: interface " + l.Attrs().Name)
			}
		}
		return err
	})
	total, _ := s.traffic.tell()
	s.report.counts.add(total)
	s.report.starts += starts
	s.report.objects += len(all)
	for _, e := range ended {
		s.report.ends[e.how]++
	}
	s.report.scrapes += s.scraper.read
	s.report.scrapesRefused += s.scraper.limit
	s.report.scrapesFailed += s.scraper.failed
	if c, ok := s.t.(interface {
		transactions() (frames, interrupts, violations uint64)
	}); ok {
		f, i, v := c.transactions()
		s.report.transactions += f
		s.report.interrupts += i
		s.report.violations += v
	}
}

// statistics reports whether the driver can read the device's counters, which shows that the control path has recovered
// too.
func (s *session) statistics() bool {
	s.scraper.fresh()
	s.scraper.mu.Lock()
	defer s.scraper.mu.Unlock()
	_, ok := s.scraper.values[`rebound_device_frames_total{direction="rx"}`]
	return ok && s.scraper.ok
}

// note records a choice of the seed, or an observation.
func (s *session) note(format string, args ...any) {
	s.detail = append(s.detail, fmt.Sprintf(format, args...))
}

// for_ waits for a time between least and most, chosen by the seed, while a fault lasts.
func (s *session) for_(least, most time.Duration) {
	d := least + time.Duration(s.r.Int64N(int64(most-least)+1))
	s.note("for %v", d.Round(time.Millisecond))
	time.Sleep(d)
}

// until waits for an expected effect of a fault.
func (s *session) until(what string, ok func() bool) error {
	for end := time.Now().Add(s.patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s: not within %v", what, s.patience)
		}
	}
	return nil
}

const resets = `rebound_device_trouble_total{kind="resets"}`

// noticed calls f and waits until the driver has restarted the device because of it, or has ended.
func (s *session) noticed(f func()) error {
	s.scraper.fresh()
	n := s.scraper.value(resets)
	f()
	return s.until("the driver's restart of the device", func() bool {
		return s.scraper.value(resets) > n || s.proc.endings() > s.began
	})
}
