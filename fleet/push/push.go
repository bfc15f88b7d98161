// Package push sends a program's metrics to a receiver at an interval: by OTLP over HTTP, or by Prometheus remote-write
// 2.0. Metrics and labels have the names that a scrape of the program shows, and native histograms become exponential
// histograms with the same buckets.
//
// Each push is a snapshot of all metrics, whose counters are cumulative. A failed push is not repeated, because the
// next one contains what it would have said. So a receiver that does not answer costs no memory.
package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

// Options say what is pushed, and where.
type Options struct {
	To            *To
	Job, Instance string    // service.name and service.instance.id of OTLP, unless the environment sets them
	Start         time.Time // of counters that do not have their own
	Gather        func() ([]*dto.MetricFamily, error)
	Log           *slog.Logger
}

const (
	lastPatience = 3 * time.Second // of all requests after Stop
	longestPause = 5 * time.Minute // that a receiver may ask for
	mostBytes    = 512 << 10       // of a batch in memory, after which it is sent; receivers refuse large requests
	mostAnswer   = 64 << 10        // bytes of an answer that are read
)

// Pusher pushes metrics until it is stopped.
type Pusher struct {
	Options
	client      *http.Client
	stop, ended chan struct{}

	pushes, failures atomic.Uint64

	known map[string]*series // by name and labels: what the receiver has
	round int
	bad   bool      // the last push failed
	after time.Time // the receiver asked for a pause until then
}

// series is what is needed to tell a receiver that a metric ended.
type series struct {
	family *dto.MetricFamily // without metrics
	shape  *dto.Metric       // labels, and the bounds of buckets and quantiles, without values
	round  int               // the last push that contained it
}

// batch builds a request.
type batch interface {
	// add adds a metric's values, or that it ended.
	add(family *dto.MetricFamily, m *dto.Metric, now time.Time, ended bool)
	// size is roughly how many bytes of memory the batch takes; 0 if it is empty.
	size() int
	// body returns the encoded request, and empties the batch.
	body() ([]byte, error)
	header(http.Header)
	// check returns what the receiver rejected of the last body, although its status was a success.
	check(http.Header, []byte) error
}

// New returns a pusher that has not started.
func New(o Options) *Pusher {
	for _, a := range o.To.attributes {
		switch a.name {
		case "service.name":
			o.Job = a.value
		case "service.instance.id":
			o.Instance = a.value
		}
	}
	return &Pusher{Options: o, client: &http.Client{Transport: o.To.transport()}, stop: make(chan struct{}),
		ended: make(chan struct{}), known: map[string]*series{}}
}

// Start begins to push. The first push is at a random time within the interval, so that the hosts of a fleet do not
// push all at once.
func (p *Pusher) Start() {
	p.Log.Info("pushing metrics", "url", p.To.String(), "format", p.To.format(), "interval", p.To.Interval)
	go p.run(rand.N(p.To.Interval))
}

// Counts returns how often metrics were pushed, and how many of these pushes failed.
func (p *Pusher) Counts() (pushes, failures uint64) { return p.pushes.Load(), p.failures.Load() }

// Stop pushes once more, and then that all metrics ended, unless the last push failed. It takes three seconds at most.
// Gather is not called after it.
func (p *Pusher) Stop() {
	close(p.stop)
	<-p.ended
}

// run pushes after the time first and then at the set interval until Close. Then it pushes once more, and marks all
// series as ended. The last push takes lastPatience at most.
func (p *Pusher) run(first time.Duration) {
	defer close(p.ended)
	defer p.client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-p.stop:
			select {
			case <-time.After(lastPatience):
				cancel()
			case <-ctx.Done():
			}
		case <-ctx.Done():
		}
	}()
	next := time.NewTimer(first)
	defer next.Stop()
	for {
		select {
		case <-p.stop:
			if now := time.Now(); !p.bad {
				if p.push(ctx, now, false); !p.bad {
					p.push(ctx, now.Add(time.Millisecond), true)
				}
			}
			return
		case <-next.C:
			begin := time.Now()
			if !begin.Before(p.after) {
				p.push(ctx, begin, false)
			}
			next.Reset(max(p.To.Interval-time.Since(begin), 0))
		}
	}
}

// push sends all metrics, or that all have ended.
func (p *Pusher) push(ctx context.Context, now time.Time, end bool) {
	err := p.send(ctx, now, end)
	p.pushes.Add(1)
	switch {
	case err != nil:
		p.failures.Add(1)
		if !p.bad {
			p.Log.Warn("cannot push metrics: probing continues, and the next push has all counts so far", "url",
				p.To.String(), "error", err)
		}
	case p.bad:
		p.Log.Log(ctx, nic.Notice, "metrics are pushed again", "url", p.To.String(), "failures", p.failures.Load())
	}
	p.bad = err != nil
}

// send pushes all series, in several requests if they are large. Series that were there the last time and are gone,
// or all if end is set, are marked as ended.
func (p *Pusher) send(ctx context.Context, now time.Time, end bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.To.timeout)
	defer cancel()
	var families []*dto.MetricFamily
	if !end {
		var err error
		if families, err = p.Gather(); err != nil {
			return err
		}
	}
	b := p.To.batch(&p.Options)
	p.round++
	for _, f := range families {
		var header *dto.MetricFamily
		for _, m := range f.Metric {
			s := p.known[key(f, m)]
			if s == nil {
				if header == nil {
					header = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.Type}
				}
				s = &series{family: header, shape: shape(m)}
				p.known[key(f, m)] = s
			}
			s.round = p.round
			if b.add(f, m, now, false); b.size() >= mostBytes {
				if err := p.post(ctx, b); err != nil {
					return err
				}
			}
		}
	}
	var gone []string
	for key, s := range p.known {
		if s.round == p.round {
			continue
		}
		gone = append(gone, key)
		if b.add(s.family, s.shape, now, true); b.size() >= mostBytes {
			if err := p.post(ctx, b); err != nil {
				return err
			}
		}
	}
	if b.size() > 0 {
		if err := p.post(ctx, b); err != nil {
			return err
		}
	}
	for _, key := range gone {
		delete(p.known, key)
	}
	return nil
}

// post sends a batch.
func (p *Pusher) post(ctx context.Context, b batch) error {
	body, err := b.body()
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.To.url.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	for name, value := range p.To.headers {
		r.Header.Set(name, value)
	}
	r.Header.Set("User-Agent", "rebound/"+program())
	r.Header.Set("Content-Type", "application/x-protobuf")
	b.header(r.Header)
	answer, err := p.client.Do(r)
	if err != nil {
		if u := errors.Unwrap(err); u != nil { // without the URL, which is logged
			err = u
		}
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
	if answer.StatusCode/100 == 2 && err == nil {
		return b.check(answer.Header, text)
	}
	if answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusServiceUnavailable {
		if s, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && s > 0 {
			p.after = time.Now().Add(time.Duration(min(s, int(longestPause/time.Second))) * time.Second)
		}
	}
	return errors.Join(fmt.Errorf("the receiver answers %s: %s", answer.Status, excerpt(text)), err)
}

// excerpt is the beginning of an answer, for a log.
func excerpt(answer []byte) string {
	text := strings.TrimSpace(string(answer))
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return sanitize.Text(text)
}

func program() string { v, _ := process.BuildStamp(); return v }

func key(f *dto.MetricFamily, m *dto.Metric) string {
	var b strings.Builder
	b.WriteString(f.GetName())
	for _, l := range m.Label {
		b.WriteByte(0)
		b.WriteString(l.GetName())
		b.WriteByte(0)
		b.WriteString(l.GetValue())
	}
	return b.String()
}

// shape returns a metric without its values.
func shape(m *dto.Metric) *dto.Metric {
	s := &dto.Metric{Label: m.Label}
	switch {
	case m.Summary != nil:
		s.Summary = &dto.Summary{}
		for _, q := range m.Summary.Quantile {
			s.Summary.Quantile = append(s.Summary.Quantile, &dto.Quantile{Quantile: q.Quantile})
		}
	case native(m.Histogram):
		s.Histogram = &dto.Histogram{Schema: m.Histogram.Schema, ZeroThreshold: m.Histogram.ZeroThreshold}
	case m.Histogram != nil:
		s.Histogram = &dto.Histogram{}
		for _, b := range m.Histogram.Bucket {
			s.Histogram.Bucket = append(s.Histogram.Bucket, &dto.Bucket{UpperBound: b.UpperBound})
		}
	}
	return s
}

// native reports whether a histogram has native buckets, which are sent in place of classic ones, as in a scrape.
func native(h *dto.Histogram) bool {
	return h != nil && h.Schema != nil && (h.GetZeroThreshold() > 0 || len(h.PositiveSpan)+len(h.NegativeSpan) > 0)
}

// start returns when a counter or histogram began, or otherwise the program.
func (o *Options) start(m *dto.Metric) time.Time {
	for _, created := range []interface {
		IsValid() bool
		AsTime() time.Time
	}{m.Counter.GetCreatedTimestamp(), m.Histogram.GetCreatedTimestamp(), m.Summary.GetCreatedTimestamp()} {
		if created.IsValid() {
			return created.AsTime()
		}
	}
	return o.Start
}

// Names of labels that a receiver sets: a metric's own are renamed, as a scrape renames them.
func labelName(name string) string {
	if name == "job" || name == "instance" {
		return "exported_" + name
	}
	return name
}
