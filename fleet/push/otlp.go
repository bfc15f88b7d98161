package push

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

const cumulative = otlp.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE

// otlpBatch is a batch of OTLP.
type otlpBatch struct {
	options  *Options
	metrics  []*otlp.Metric
	bytes    int
	compress bool
}

func (b *otlpBatch) size() int { return b.bytes }

// add appends one metric of a family to the request. ended sends a point without a value, which marks the series as
// ended. The size in bytes is estimated.
func (b *otlpBatch) add(f *dto.MetricFamily, m *dto.Metric, now time.Time, ended bool) {
	n := len(b.metrics)
	if n == 0 || b.metrics[n-1].Name != f.GetName() {
		b.metrics = append(b.metrics, &otlp.Metric{Name: f.GetName(), Description: f.GetHelp(),
			Unit: unit(f.GetName())})
		b.bytes += 200
		n++
	}
	to := b.metrics[n-1]
	labels := attributes(m.Label)
	b.bytes += 200 + 100*len(labels)
	at, since, flags := uint64(now.UnixNano()), uint64(b.options.start(m).UnixNano()), uint32(0)
	if ended {
		flags = uint32(otlp.DataPointFlags_DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK)
	}
	number := func(v float64) *otlp.NumberDataPoint {
		p := &otlp.NumberDataPoint{Attributes: labels, TimeUnixNano: at, Flags: flags}
		if !ended {
			p.Value = &otlp.NumberDataPoint_AsDouble{AsDouble: v}
		}
		return p
	}
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		p := number(m.Counter.GetValue())
		p.StartTimeUnixNano = since
		s, ok := to.Data.(*otlp.Metric_Sum)
		if !ok {
			s = &otlp.Metric_Sum{Sum: &otlp.Sum{AggregationTemporality: cumulative, IsMonotonic: true}}
			to.Data = s
		}
		s.Sum.DataPoints = append(s.Sum.DataPoints, p)
	case dto.MetricType_SUMMARY:
		p := &otlp.SummaryDataPoint{Attributes: labels, StartTimeUnixNano: since, TimeUnixNano: at, Flags: flags,
			Count: m.Summary.GetSampleCount(), Sum: m.Summary.GetSampleSum()}
		for _, q := range m.Summary.GetQuantile() {
			p.QuantileValues = append(p.QuantileValues, &otlp.SummaryDataPoint_ValueAtQuantile{
				Quantile: q.GetQuantile(), Value: q.GetValue()})
		}
		s, ok := to.Data.(*otlp.Metric_Summary)
		if !ok {
			s = &otlp.Metric_Summary{Summary: &otlp.Summary{}}
			to.Data = s
		}
		s.Summary.DataPoints = append(s.Summary.DataPoints, p)
	case dto.MetricType_HISTOGRAM:
		h := m.Histogram
		if !native(h) {
			s, ok := to.Data.(*otlp.Metric_Histogram)
			if !ok {
				s = &otlp.Metric_Histogram{Histogram: &otlp.Histogram{AggregationTemporality: cumulative}}
				to.Data = s
			}
			p := classic(h)
			p.Attributes, p.StartTimeUnixNano, p.TimeUnixNano, p.Flags = labels, since, at, flags
			b.bytes += 16 * len(p.BucketCounts)
			s.Histogram.DataPoints = append(s.Histogram.DataPoints, p)
			return
		}
		p := exponential(h)
		p.Attributes, p.StartTimeUnixNano, p.TimeUnixNano, p.Flags = labels, since, at, flags
		b.bytes += 8 * (len(p.Positive.GetBucketCounts()) + len(p.Negative.GetBucketCounts()))
		s, ok := to.Data.(*otlp.Metric_ExponentialHistogram)
		if !ok {
			s = &otlp.Metric_ExponentialHistogram{ExponentialHistogram: &otlp.ExponentialHistogram{
				AggregationTemporality: cumulative}}
			to.Data = s
		}
		s.ExponentialHistogram.DataPoints = append(s.ExponentialHistogram.DataPoints, p)
	default:
		v := m.GetGauge().GetValue()
		if m.Untyped != nil {
			v = m.Untyped.GetValue()
		}
		s, ok := to.Data.(*otlp.Metric_Gauge)
		if !ok {
			s = &otlp.Metric_Gauge{Gauge: &otlp.Gauge{}}
			to.Data = s
		}
		s.Gauge.DataPoints = append(s.Gauge.DataPoints, number(v))
	}
}

// exponential converts a native histogram. The buckets are the same: with the same scale, the upper bound of OTLP's
// bucket i is that of the native bucket i+1.
func exponential(h *dto.Histogram) *otlp.ExponentialHistogramDataPoint {
	return &otlp.ExponentialHistogramDataPoint{Count: h.GetSampleCount(), Sum: new(h.GetSampleSum()),
		Scale: h.GetSchema(), ZeroCount: h.GetZeroCount(),
		ZeroThreshold: h.GetZeroThreshold(), Positive: buckets(h.PositiveSpan, h.PositiveDelta),
		Negative: buckets(h.NegativeSpan, h.NegativeDelta)}
}

// buckets converts the spans and differences of a native histogram to consecutive counts; gaps between spans are
// zeros. It returns nil for no buckets.
func buckets(spans []*dto.BucketSpan, deltas []int64) *otlp.ExponentialHistogramDataPoint_Buckets {
	if len(deltas) == 0 {
		return nil
	}
	b := &otlp.ExponentialHistogramDataPoint_Buckets{Offset: spans[0].GetOffset() - 1}
	n, i := int64(0), 0
	for k, s := range spans {
		if k > 0 {
			b.BucketCounts = append(b.BucketCounts, make([]uint64, s.GetOffset())...)
		}
		for range s.GetLength() {
			n += deltas[i]
			i++
			b.BucketCounts = append(b.BucketCounts, uint64(n))
		}
	}
	return b
}

// classic converts a histogram with cumulative buckets.
func classic(h *dto.Histogram) *otlp.HistogramDataPoint {
	p := &otlp.HistogramDataPoint{Count: h.GetSampleCount(), Sum: new(h.GetSampleSum())}
	last := uint64(0)
	for _, b := range h.Bucket {
		if !math.IsInf(b.GetUpperBound(), 1) {
			p.ExplicitBounds = append(p.ExplicitBounds, b.GetUpperBound())
			p.BucketCounts = append(p.BucketCounts, b.GetCumulativeCount()-last)
			last = b.GetCumulativeCount()
		}
	}
	p.BucketCounts = append(p.BucketCounts, p.Count-last)
	return p
}

// unit is the unit in the notation of UCUM that the end of a metric's name says.
func unit(name string) string {
	name = strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	case strings.HasSuffix(name, "_bytes"):
		return "By"
	}
	return ""
}

func attributes(labels []*dto.LabelPair) (all []*common.KeyValue) {
	for _, l := range labels {
		all = append(all, attribute(labelName(l.GetName()), l.GetValue()))
	}
	return all
}

func attribute(name, value string) *common.KeyValue {
	return &common.KeyValue{Key: name, Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: value}}}
}

func (b *otlpBatch) body() ([]byte, error) {
	o := b.options
	r := &resource.Resource{}
	for _, l := range o.To.resource(label{"service.name", o.Job}, label{"service.instance.id", o.Instance},
		label{"service.version", program()}) {
		r.Attributes = append(r.Attributes, attribute(l.name, l.value))
	}
	text, err := proto.Marshal(&collector.ExportMetricsServiceRequest{
		ResourceMetrics: []*otlp.ResourceMetrics{{Resource: r,
			ScopeMetrics: []*otlp.ScopeMetrics{{Scope: &common.InstrumentationScope{Name: "rebound",
				Version: program()}, Metrics: b.metrics}}}}})
	b.metrics, b.bytes = nil, 0
	if err != nil || !b.compress {
		return text, err
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	w.Write(text)
	err = w.Close()
	return out.Bytes(), err
}

func (b *otlpBatch) header(h http.Header) {
	if b.compress {
		h.Set("Content-Encoding", "gzip")
	}
}

// check reads the answer, which may name rejected data points.
func (b *otlpBatch) check(_ http.Header, text []byte) error {
	var answer collector.ExportMetricsServiceResponse
	if err := proto.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("the receiver's answer is not OTLP (%w): %s", err, excerpt(text))
	}
	if n := answer.PartialSuccess.GetRejectedDataPoints(); n > 0 {
		return fmt.Errorf("the receiver rejected %d data points: %s", n,
			excerpt([]byte(answer.PartialSuccess.GetErrorMessage())))
	}
	return nil
}
