package fleet

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fleet/prom"
	"github.com/rebound-nic/rebound/fleet/registry"
	"github.com/rebound-nic/rebound/fleet/suspects"
	"github.com/rebound-nic/rebound/internal/host/command"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

const suspectsHelp = `usage: rebound-watch suspects -prom URL [flags]

Names the most likely set of hosts, zone links and zones whose failure explains the paths that the watches of a fleet report as down or
as losing probes, and the sets that explain them as well. It queries a Prometheus that scrapes the watches. With -listen it continues: a log
line for each change, and a metrics page for alerts.

  rebound-watch suspects -prom http://127.0.0.1:9090
  rebound-watch suspects -prom http://127.0.0.1:9090 -listen 127.0.0.1:9471

`

func suspectsCommand(e *command.Env, args []string) error {
	fs := flag.NewFlagSet("suspects", flag.ContinueOnError)
	base := fs.String("prom", "", "`URL` of the Prometheus; required")
	var labels []prom.Label
	fs.Func("label", "`NAME=VALUE` that all series must have; may be repeated", func(v string) error {
		name, value, _ := strings.Cut(v, "=")
		labels = append(labels, prom.Label{Name: name, Value: value})
		return prom.CheckLabel(name)
	})
	listen := fs.String("listen", "", "`HOST:PORT` of a metrics page; continues until SIGTERM or Ctrl-C")
	every := fs.Duration("every", 15*time.Second, "`TIME` between two verdicts with -listen, 1s or more")
	if err := e.Parse(fs, args, suspectsHelp); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return process.Usagef("%q is left over: every value needs its flag", strings.Join(fs.Args(), " "))
	case *base == "":
		return process.Usagef("-prom is missing: the URL of the Prometheus, like http://127.0.0.1:9090")
	case *every < time.Second:
		return process.Usagef("-every %v: want 1s or more", *every)
	}
	server := &prom.Server{}
	var err error
	if server.Base, err = prom.ParseBase(*base); err != nil {
		return process.Usagef("-prom: %w", err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	j := &judge{server: server, labels: labels, log: e.Log}
	if *listen == "" {
		v, err := j.examine(ctx)
		if err != nil {
			return err
		}
		return printVerdict(e.Stdout, v)
	}
	if err := metrics.CheckAddress(*listen); err != nil {
		return process.Usagef("-listen: %w", err)
	}
	hide, err := registry.Listen(*listen, nil, registry.New(j), nil, nil, e.Log)
	if err != nil {
		return err
	}
	defer hide()
	tick := time.NewTicker(*every)
	defer tick.Stop()
	for {
		j.update(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func printVerdict(w io.Writer, v suspects.Verdict) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s %s, ", latency.FormatCount(v.Failing), sanitize.Count(v.Paths, "path"),
		verb(v.Failing, "fail"))
	if v.Lossy > 0 {
		fmt.Fprintf(&b, "%s with loss, ", latency.FormatCount(v.Lossy))
	}
	fmt.Fprintf(&b, "%s silent: ", sanitize.Count(v.Silent, "host"))
	if len(v.Suspects) == 0 {
		b.WriteString("no suspect")
	} else {
		b.WriteString(sanitize.Count(len(v.Suspects), "suspect"))
	}
	if v.Unexplained > 0 {
		fmt.Fprintf(&b, ", %s unexplained", latency.FormatCount(v.Unexplained))
	}
	b.WriteByte('\n')
	for _, s := range v.Suspects {
		fmt.Fprintf(&b, "  %s: %s; explains %s; %s of these paths %s\n", sanitize.Text(s.String()), s.Fault(),
			sanitize.Count(s.Failing, "failure"), latency.FormatCount(s.Working), verb(s.Working, "work"))
	}
	if len(v.Alternatives) > 0 {
		b.WriteString("other explanations of the same measurements:\n")
	}
	for _, a := range v.Alternatives {
		fmt.Fprintf(&b, "  %s\n", sanitize.Text(names(a)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// verb is the form of a verb that n subjects need.
func verb(n int, plural string) string {
	if n == 1 {
		return plural + "s"
	}
	return plural
}

// names lists suspects in one line.
func names(all []suspects.Suspect) string {
	var out []string
	for _, s := range all {
		out = append(out, s.String())
	}
	return strings.Join(out, " and ")
}

// judge asks a Prometheus repeatedly for the paths of a fleet, and keeps the verdict for its metrics page.
type judge struct {
	server *prom.Server
	labels []prom.Label
	log    *slog.Logger

	mu       sync.Mutex
	verdict  *suspects.Verdict // nil if there is none now
	failures int
}

func (j *judge) examine(ctx context.Context) (suspects.Verdict, error) {
	paths, silent, err := j.server.Fleet(ctx, j.labels, time.Now())
	if err != nil {
		return suspects.Verdict{}, err
	}
	return suspects.Find(paths, silent), nil
}

// update replaces the verdict, and logs what is new.
func (j *judge) update(ctx context.Context) {
	v, err := j.examine(ctx)
	if ctx.Err() != nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.verdict
	if err != nil {
		j.failures++
		if was != nil || j.failures == 1 {
			j.log.Error("no verdict: the query to Prometheus failed", "error", err)
		}
		j.verdict = nil
		return
	}
	j.verdict = &v
	if was == nil {
		was = &suspects.Verdict{}
	}
	in := func(of *suspects.Verdict, s suspects.Suspect) bool {
		return slices.ContainsFunc(of.Suspects, func(o suspects.Suspect) bool { return o.String() == s.String() })
	}
	for _, s := range v.Suspects {
		if !in(was, s) {
			args := []any{"kind", s.Kind.String(), "suspect", s.String(), "fault", s.Fault(), "explains", s.Failing,
				"working", s.Working, "failing", v.Failing, "lossy", v.Lossy, "silent", v.Silent, "unexplained",
				v.Unexplained}
			for _, a := range v.Alternatives {
				args = append(args, "or", names(a))
			}
			j.log.Warn("suspect", args...)
		}
	}
	for _, s := range was.Suspects {
		if !in(&v, s) {
			j.log.Log(context.Background(), nic.Notice, "no longer a suspect", "kind", s.Kind.String(), "suspect",
				s.String(), "failing", v.Failing)
		}
	}
}

var (
	suspectDesc = prometheus.NewDesc("rebound_suspect",
		"Failing and lossy paths and silent hosts that this suspect explains.", []string{"kind", "suspect", "zone"},
		nil)
	fleetPathsDesc = prometheus.NewDesc("rebound_fleet_paths",
		"Paths that the fleet's watches report, by state: failing (down), lossy (up, but losing more probes than chance explains), working.", []string{"state"}, nil)
	fleetSilentDesc = prometheus.NewDesc("rebound_fleet_silent_hosts",
		"Hosts that others probe and whose watch is no longer scraped.", nil, nil)
	unexplainedDesc = prometheus.NewDesc("rebound_fleet_unexplained",
		"Failing and lossy paths and silent hosts that no suspect explains.", nil, nil)
	othersDesc = prometheus.NewDesc("rebound_fleet_other_explanations",
		"Other sets of suspects that explain the same measurements, six at most; the log names them.", nil, nil)
	unjudgedDesc = prometheus.NewDesc("rebound_fleet_verdict_failures_total",
		"Failed queries to Prometheus. After one, the other metrics are absent.", nil, nil)
)

func (j *judge) Describe(chan<- *prometheus.Desc) {}

func (j *judge) Collect(ch chan<- prometheus.Metric) {
	j.mu.Lock()
	defer j.mu.Unlock()
	registry.Count(ch, unjudgedDesc, uint64(j.failures))
	v := j.verdict
	if v == nil {
		return
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for _, s := range v.Suspects {
		gauge(suspectDesc, s.Failing, s.Kind.String(), sanitize.Text(s.String()), sanitize.Text(s.Zone))
	}
	gauge(fleetPathsDesc, v.Failing, "failing")
	gauge(fleetPathsDesc, v.Lossy, "lossy")
	gauge(fleetPathsDesc, v.Paths-v.Failing-v.Lossy, "working")
	gauge(fleetSilentDesc, v.Silent)
	gauge(unexplainedDesc, v.Unexplained)
	gauge(othersDesc, len(v.Alternatives))
}
