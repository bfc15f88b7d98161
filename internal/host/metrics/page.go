package metrics

import (
	"bytes"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Page is the response to a scrape. Its metrics, labels and output buffer are reused between scrapes, so a scrape makes
// a few KB of garbage instead of the several hundred of a client_golang registry. The collector is off while loops run,
// and garbage eventually stops them.
type Page struct {
	families []*Family
	encoded  bytes.Buffer
	wire     []byte
	scratch  []int64
}

// Family is the metrics with one name.
type Family struct {
	page   *Page
	family *dto.MetricFamily
	labels []string      // names
	known  []*dto.Metric // all that ever had a value; family.Metric contains those that have one now
}

// Family adds a family to the page. Scrapes show it once it has a value.
func (p *Page) Family(kind dto.MetricType, name, help string, labels ...string) *Family {
	f := &Family{page: p, family: &dto.MetricFamily{Name: &name, Help: &help, Type: &kind}, labels: labels}
	p.families = append(p.families, f)
	slices.SortFunc(p.families, func(a, b *Family) int {
		return strings.Compare(a.family.GetName(),
			b.family.GetName())
	})
	return f
}

// Counter is Family for counters, Gauge for gauges.
func (p *Page) Counter(name, help string, labels ...string) *Family {
	return p.Family(dto.MetricType_COUNTER, name, help, labels...)
}

func (p *Page) gauge(name, help string, labels ...string) *Family {
	return p.Family(dto.MetricType_GAUGE, name, help, labels...)
}

// metric returns the metric with these label values, creating it if necessary, and shows it in this scrape. The values
// are escaped: an interface's name may not be UTF-8.
func (f *Family) metric(values []string) *dto.Metric {
	for _, m := range f.known {
		if slices.EqualFunc(m.Label, values, func(l *dto.LabelPair,
			v string) bool {
			return *l.Value == sanitize.Text(v)
		}) {
			f.family.Metric = append(f.family.Metric, m)
			return m
		}
	}
	m := &dto.Metric{}
	for i, v := range values {
		name, v := f.labels[i], strings.Clone(sanitize.Text(v))
		m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &v})
	}
	switch f.family.GetType() {
	case dto.MetricType_COUNTER:
		m.Counter = &dto.Counter{Value: new(float64)}
	case dto.MetricType_GAUGE:
		m.Gauge = &dto.Gauge{Value: new(float64)}
	case dto.MetricType_SUMMARY:
		m.Summary = &dto.Summary{SampleCount: new(uint64), SampleSum: new(float64)}
	case dto.MetricType_HISTOGRAM:
		m.Histogram = newHistogram()
	}
	f.known = append(f.known, m)
	f.family.Metric = append(f.family.Metric, m)
	return m
}

// Set sets the counter or gauge with these labels.
func (f *Family) Set(v float64, labels ...string) {
	m := f.metric(labels)
	if m.Counter != nil {
		*m.Counter.Value = v
	} else {
		*m.Gauge.Value = v
	}
}

// Quantile is a quantile of a summary: a fraction Of of all values is below Value.
type Quantile struct{ Of, Value float64 }

// Summary sets the summary with these labels. The sum stays 0. Each call must pass the same quantiles.
func (f *Family) Summary(n uint64, quantiles []Quantile, labels ...string) {
	s := f.metric(labels).Summary
	*s.SampleCount = n
	for i, q := range quantiles {
		if i == len(s.Quantile) {
			s.Quantile = append(s.Quantile, &dto.Quantile{Quantile: new(float64), Value: new(float64)})
		}
		*s.Quantile[i].Quantile, *s.Quantile[i].Value = q.Of, q.Value
	}
}

// Histogram sets the histogram with these labels to these values, in seconds and ascending, and the count of each. It
// is both native and classic: the scrape's format decides which is shown. sum is the sum of all values, schema the
// resolution of the native one, up to Finest.
func (f *Family) Histogram(values iter.Seq2[float64, uint64], sum float64, schema int32, since time.Time,
	labels ...string) {
	h := f.metric(labels).Histogram
	*h.SampleSum, *h.Schema, *h.ZeroThreshold = sum, schema, 1e-12
	if h.CreatedTimestamp.Seconds != since.Unix() || h.CreatedTimestamp.Nanos != int32(since.Nanosecond()) {
		h.CreatedTimestamp.Seconds, h.CreatedTimestamp.Nanos = since.Unix(), int32(since.Nanosecond())
	}
	for _, b := range h.Bucket {
		*b.CumulativeCount = 0
	}
	all, zeros := uint64(0), uint64(0)
	spans := h.PositiveSpan[:0]
	counts := f.page.scratch[:0]
	next := 0 // index after the last bucket
	for v, n := range values {
		all += n
		for b := range Classic {
			if v <= Classic[b] {
				*h.Bucket[b].CumulativeCount += n
			}
		}
		if v == 0 {
			zeros += n
			continue
		}
		i := NativeBucket(v, schema)
		switch gap := i - next; {
		case len(spans) > 0 && gap < 0: // the bucket of the value before
			counts[len(counts)-1] += int64(n)
			continue
		case len(spans) > 0 && gap <= 2: // two empty buckets take less than a span does
			for range gap {
				counts = append(counts, 0)
			}
			counts = append(counts, int64(n))
			*spans[len(spans)-1].Length += uint32(gap) + 1
		default:
			if len(spans) < cap(spans) {
				spans = spans[:len(spans)+1] // reuses the previous span, if any
			} else {
				spans = append(spans, nil)
			}
			s := &spans[len(spans)-1]
			if *s == nil {
				*s = &dto.BucketSpan{Offset: new(int32), Length: new(uint32)}
			}
			*(*s).Offset, *(*s).Length = int32(gap), 1
			counts = append(counts, int64(n))
		}
		next = i + 1
	}
	f.page.scratch = counts
	*h.SampleCount, *h.ZeroCount = all, zeros
	h.PositiveSpan, h.PositiveDelta = spans, h.PositiveDelta[:0]
	last := int64(0)
	for _, n := range counts {
		h.PositiveDelta = append(h.PositiveDelta, n-last)
		last = n
	}
}

// begin hides all values. Those not set before the next encode stay hidden.
func (p *Page) begin() {
	for _, f := range p.families {
		f.family.Metric = f.family.Metric[:0]
	}
}

// encode writes the page in a format that the client requested.
func (p *Page) encode(format expfmt.Format) (err error) {
	p.encoded.Reset()
	for _, f := range p.families {
		if len(f.family.Metric) == 0 {
			continue
		}
		if format.FormatType() == expfmt.TypeProtoDelim {
			p.wire = protowire.AppendVarint(p.wire[:0], uint64(proto.Size(f.family)))
			if p.wire, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(p.wire, f.family); err == nil {
				p.encoded.Write(p.wire)
			}
		} else {
			_, err = expfmt.MetricFamilyToText(&p.encoded, f.family)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pageHandler answers scrapes with a page, one at a time.
type pageHandler struct {
	page    *Page
	process processFamilies
	collect func()
}

func (h *pageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.page.begin()
	h.collect()
	h.process.collect()
	format := expfmt.Negotiate(r.Header)
	if format.FormatType() != expfmt.TypeProtoDelim {
		format = expfmt.NewFormat(expfmt.TypeTextPlain)
	}
	if err := h.page.encode(format); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(format))
	w.Write(h.page.encoded.Bytes())
}

// ListenPage is Listen for a page, which collect fills for each scrape. It adds metrics of this process and its build
// information.
func ListenPage(address string, hosts []string, p *Page, collect func(), healthy func() error,
	log *slog.Logger) (hide func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	return Serve(address, hosts, p.Handler(collect), nil, healthy, log)
}

// Handler returns what answers scrapes with the page, one at a time. It may be called once.
func (p *Page) Handler(collect func()) http.Handler {
	help, build := Build()
	info := p.gauge("rebound_build_info", help, "goarch", "goversion", "version")
	h := &pageHandler{page: p, process: newProcess(p)}
	h.collect = func() {
		info.Set(1, build["goarch"], build["goversion"], build["version"])
		collect()
	}
	return h
}

func newHistogram() *dto.Histogram {
	h := &dto.Histogram{SampleCount: new(uint64), SampleSum: new(float64), CreatedTimestamp: &timestamppb.Timestamp{},
		Schema:        new(int32),
		ZeroThreshold: new(float64), ZeroCount: new(uint64)}
	for i := range Classic {
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &Classic[i], CumulativeCount: new(uint64)})
	}
	return h
}
