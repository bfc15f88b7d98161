package push

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/klauspost/compress/snappy"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of the fields of io.prometheus.write.v2.Request and its messages (Prometheus Remote-Write 2.0, protobuf
// message).
const (
	requestSymbols, requestSeries                                       protowire.Number = 4, 5
	seriesLabels, seriesSamples, seriesHistograms, seriesMetadata       protowire.Number = 1, 2, 3, 5
	sampleValue, sampleTime, sampleStart                                protowire.Number = 1, 2, 3
	metadataType, metadataHelp                                          protowire.Number = 1, 3
	histogramCount, histogramSum, histogramSchema, histogramThreshold   protowire.Number = 1, 3, 4, 5
	histogramZeros, histogramNegativeSpans, histogramNegativeDeltas     protowire.Number = 6, 8, 9
	histogramPositiveSpans, histogramPositiveDeltas, histogramTimestamp protowire.Number = 11, 12, 15
	histogramStart                                                      protowire.Number = 17
	spanOffset, spanLength                                              protowire.Number = 1, 2
)

// Values of Metadata.MetricType.
var metadataTypes = map[dto.MetricType]uint64{dto.MetricType_COUNTER: 1, dto.MetricType_GAUGE: 2,
	dto.MetricType_HISTOGRAM: 3, dto.MetricType_SUMMARY: 5}

// stale is the value that marks the end of a series.
var stale = math.Float64frombits(0x7ff0000000000002)

// remoteBatch is a batch of remote-write 2.0.
type remoteBatch struct {
	options *Options
	symbols map[string]uint64
	table   []byte // of symbols, encoded
	series  []byte // encoded
	names   int    // bytes of the symbols

	samples, histograms         int // in this batch
	sentSamples, sentHistograms int // in the last body

	refs, labels, message, inner []byte // used again
}

func (b *remoteBatch) size() int { return len(b.series) + 3*len(b.table) }

func (b *remoteBatch) symbol(s string) uint64 {
	if len(b.symbols) == 0 {
		b.symbols = map[string]uint64{"": 0} // the first one has to be empty
		b.table = protowire.AppendTag(b.table, requestSymbols, protowire.BytesType)
		b.table = protowire.AppendBytes(b.table, nil)
	}
	n, ok := b.symbols[s]
	if !ok {
		n = uint64(len(b.symbols))
		b.symbols[s] = n
		b.table = protowire.AppendTag(b.table, requestSymbols, protowire.BytesType)
		b.table = protowire.AppendString(b.table, s)
	}
	return n
}

type label struct{ name, value string }

// add appends one metric of a family to the request. ended sends the value that marks a series as ended (stale).
func (b *remoteBatch) add(f *dto.MetricFamily, m *dto.Metric, now time.Time, ended bool) {
	start := int64(0)
	value := func(v float64) float64 {
		if ended {
			return stale
		}
		return v
	}
	sample := func(suffix string, v float64, more ...label) {
		b.sample(f, suffix, m, more, value(v), now.UnixMilli(), start)
	}
	switch f.GetType() {
	case dto.MetricType_COUNTER:
		start = b.options.start(m).UnixMilli()
		sample("", m.Counter.GetValue())
	case dto.MetricType_SUMMARY:
		s := m.Summary
		for _, q := range s.GetQuantile() {
			sample("", q.GetValue(), label{"quantile", number(q.GetQuantile())})
		}
		start = b.options.start(m).UnixMilli()
		sample("_sum", s.GetSampleSum())
		sample("_count", float64(s.GetSampleCount()))
	case dto.MetricType_HISTOGRAM:
		h := m.Histogram
		start = b.options.start(m).UnixMilli()
		if native(h) {
			b.histogram(f, m, value(h.GetSampleSum()), now.UnixMilli(), start)
			return
		}
		for _, x := range h.Bucket {
			if !math.IsInf(x.GetUpperBound(), 1) {
				sample("_bucket", float64(x.GetCumulativeCount()), label{"le", number(x.GetUpperBound())})
			}
		}
		sample("_bucket", float64(h.GetSampleCount()), label{"le", "+Inf"})
		sample("_sum", h.GetSampleSum())
		sample("_count", float64(h.GetSampleCount()))
	case dto.MetricType_GAUGE:
		sample("", m.Gauge.GetValue())
	default:
		sample("", m.Untyped.GetValue())
	}
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// sample adds a series with one sample.
func (b *remoteBatch) sample(f *dto.MetricFamily, suffix string, m *dto.Metric, more []label, v float64, at,
	start int64) {
	b.samples++
	b.message = appendDouble(b.message[:0], sampleValue, v)
	b.message = appendVarint(b.message, sampleTime, uint64(at))
	b.message = appendVarint(b.message, sampleStart, uint64(start))
	b.one(f, suffix, m, more, seriesSamples)
}

// histogram adds a series with one native histogram.
func (b *remoteBatch) histogram(f *dto.MetricFamily, m *dto.Metric, sum float64, at, start int64) {
	b.histograms++
	h := m.Histogram
	x := protowire.AppendTag(b.message[:0], histogramCount, protowire.VarintType) // of a oneof, so that 0 is encoded
	x = protowire.AppendVarint(x, h.GetSampleCount())
	x = appendDouble(x, histogramSum, sum)
	x = appendVarint(x, histogramSchema, protowire.EncodeZigZag(int64(h.GetSchema())))
	x = appendDouble(x, histogramThreshold, h.GetZeroThreshold())
	x = protowire.AppendTag(x, histogramZeros, protowire.VarintType)
	x = protowire.AppendVarint(x, h.GetZeroCount())
	x = b.spans(x, histogramNegativeSpans, histogramNegativeDeltas, h.NegativeSpan, h.NegativeDelta)
	x = b.spans(x, histogramPositiveSpans, histogramPositiveDeltas, h.PositiveSpan, h.PositiveDelta)
	x = appendVarint(x, histogramTimestamp, uint64(at))
	b.message = appendVarint(x, histogramStart, uint64(start))
	b.one(f, "", m, nil, seriesHistograms)
}

// spans appends the bucket spans and the differences of their counts to a native histogram.
func (b *remoteBatch) spans(x []byte, spans, deltas protowire.Number, all []*dto.BucketSpan, counts []int64) []byte {
	for _, s := range all {
		b.inner = appendVarint(b.inner[:0], spanOffset, protowire.EncodeZigZag(int64(s.GetOffset())))
		b.inner = appendVarint(b.inner, spanLength, uint64(s.GetLength()))
		x = appendBytes(x, spans, b.inner)
	}
	if len(counts) == 0 {
		return x
	}
	b.inner = b.inner[:0]
	for _, n := range counts {
		b.inner = protowire.AppendVarint(b.inner, protowire.EncodeZigZag(n))
	}
	return appendBytes(x, deltas, b.inner)
}

// one adds a series whose only sample or histogram is in b.message.
func (b *remoteBatch) one(f *dto.MetricFamily, suffix string, m *dto.Metric, more []label, field protowire.Number) {
	labels := append([]label{{"__name__", f.GetName() + suffix}, {"job", b.options.Job},
		{"instance", b.options.Instance}}, more...)
	for _, l := range m.Label {
		labels = append(labels, label{labelName(l.GetName()), l.GetValue()})
	}
	slices.SortFunc(labels, func(a, b label) int { return cmp.Compare(a.name, b.name) })
	b.refs = b.refs[:0]
	for _, l := range labels {
		b.refs = protowire.AppendVarint(b.refs, b.symbol(l.name))
		b.refs = protowire.AppendVarint(b.refs, b.symbol(l.value))
	}
	x := appendBytes(b.labels[:0], seriesLabels, b.refs)
	x = appendBytes(x, field, b.message)
	b.inner = appendVarint(b.inner[:0], metadataType, metadataTypes[f.GetType()])
	b.inner = appendVarint(b.inner, metadataHelp, b.symbol(f.GetHelp()))
	b.labels = appendBytes(x, seriesMetadata, b.inner)
	b.series = appendBytes(b.series, requestSeries, b.labels)
}

func appendBytes(to []byte, n protowire.Number, b []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, n, protowire.BytesType), b)
}

func appendVarint(to []byte, n protowire.Number, v uint64) []byte {
	if v == 0 { // the default
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), v)
}

func appendDouble(to []byte, n protowire.Number, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(to, n, protowire.Fixed64Type), math.Float64bits(v))
}

func (b *remoteBatch) body() ([]byte, error) {
	text := snappy.Encode(nil, append(b.table, b.series...))
	b.sentSamples, b.sentHistograms = b.samples, b.histograms
	b.symbols, b.table, b.series, b.samples, b.histograms = nil, b.table[:0], b.series[:0], 0, 0
	return text, nil
}

func (b *remoteBatch) header(h http.Header) {
	h.Set("Content-Type", "application/x-protobuf;proto=io.prometheus.write.v2.Request")
	h.Set("Content-Encoding", "snappy")
	h.Set("X-Prometheus-Remote-Write-Version", "2.0.0")
}

// check compares what the receiver wrote with what was sent. Without these headers it understands only version 1, and
// found nothing.
func (b *remoteBatch) check(h http.Header, _ []byte) error {
	for _, c := range []struct {
		what string
		sent int
	}{{"Samples", b.sentSamples}, {"Histograms", b.sentHistograms}} {
		text := h.Get("X-Prometheus-Remote-Write-" + c.what + "-Written")
		n, err := strconv.Atoi(text)
		if err != nil && c.sent > 0 {
			return fmt.Errorf("the receiver does not report how many %s it wrote (%q): it may not support remote-write 2.0", c.what, text)
		}
		if n != c.sent {
			return fmt.Errorf("the receiver wrote %d of %d %s", n, c.sent, c.what)
		}
	}
	return nil
}
