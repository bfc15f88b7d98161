package push

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/rebound-nic/rebound/proof/must"
)

// bucket is one of a histogram: the values above low, up to high.
type bucket struct{ low, high float64 }

func bucketOf(index, schema int32) bucket { // with native indexes
	bound := func(i int32) float64 { return math.Exp2(math.Ldexp(float64(i), -int(schema))) }
	return bucket{bound(index - 1), bound(index)}
}

type decoded struct {
	count, zeros uint64
	buckets      map[bucket]uint64
}

func unpack(t *testing.T, body []byte) *collector.ExportMetricsServiceRequest {
	t.Helper()
	z := must.Get(gzip.NewReader(bytes.NewReader(body)))(t)
	text := must.Get(io.ReadAll(z))(t)
	var r collector.ExportMetricsServiceRequest
	must.OK(t, proto.Unmarshal(text, &r))
	return &r
}

func fromOTLP(t *testing.T, body []byte) decoded {
	t.Helper()
	for _, m := range unpack(t, body).ResourceMetrics[0].ScopeMetrics[0].Metrics {
		if m.Name != "rebound_rtt_seconds" {
			continue
		}
		h := m.GetExponentialHistogram()
		p := h.DataPoints[0]
		d := decoded{p.Count, p.ZeroCount, map[bucket]uint64{}}
		for i, n := range p.Positive.GetBucketCounts() {
			if n > 0 {
				d.buckets[bucketOf(p.Positive.Offset+int32(i)+1, p.Scale)] = n
			}
		}
		if m.Unit != "s" || h.AggregationTemporality != cumulative || p.StartTimeUnixNano != uint64(start.UnixNano()) ||
			p.ZeroThreshold != 1e-12 {
			t.Errorf("unit %q, %v, %v", m.Unit, h.AggregationTemporality, p)
		}
		return d
	}
	t.Fatal("no histogram")
	return decoded{}
}

// fields calls f for each field of a message, with its number or its bytes.
func fields(t *testing.T, b []byte, f func(n protowire.Number, v uint64, text []byte)) {
	t.Helper()
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		b = b[size:]
		var v uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			v, size = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			v, size = protowire.ConsumeFixed64(b)
		default:
			text, size = protowire.ConsumeBytes(b)
		}
		if size < 0 {
			t.Fatal(protowire.ParseError(size))
		}
		b = b[size:]
		f(n, v, text)
	}
}

// written is a series of remote-write.
type written struct {
	value     float64
	stale     bool
	histogram *decoded
}

func fromWrite(t *testing.T, body []byte) map[string]written {
	t.Helper()
	text := must.Get(snappy.Decode(nil, body))(t)
	var symbols []string
	all := map[string]written{}
	fields(t, text, func(n protowire.Number, _ uint64, text []byte) {
		if n == 4 {
			symbols = append(symbols, string(text))
			return
		}
		var w written
		var labels []string
		fields(t, text, func(n protowire.Number, _ uint64, text []byte) {
			switch n {
			case 1:
				for len(text) > 0 {
					name, a := protowire.ConsumeVarint(text)
					value, b := protowire.ConsumeVarint(text[a:])
					text = text[a+b:]
					labels = append(labels, symbols[name]+"="+symbols[value])
				}
			case 2:
				fields(t, text, func(n protowire.Number, v uint64, _ []byte) {
					if n == 1 {
						w.value, w.stale = math.Float64frombits(v), v == 0x7ff0000000000002
					}
				})
			case 3:
				w.histogram = &decoded{buckets: map[bucket]uint64{}}
				w.stale = w.histogram.read(t, text)
			}
		})
		if !slices.IsSorted(labels) || len(labels) == 0 {
			t.Errorf("labels %q", labels)
		}
		all[strings.Join(labels, " ")] = w
	})
	if len(symbols) == 0 || symbols[0] != "" {
		t.Errorf("symbols %q", symbols)
	}
	return all
}

func (d *decoded) read(t *testing.T, text []byte) (isStale bool) {
	t.Helper()
	schema := int32(0)
	var at []int32 // index of each bucket
	next := int32(0)
	fields(t, text, func(n protowire.Number, v uint64, text []byte) {
		switch n {
		case 1:
			d.count = v
		case 3:
			isStale = v == 0x7ff0000000000002
		case 4:
			schema = int32(protowire.DecodeZigZag(v))
		case 6:
			d.zeros = v
		case 11:
			fields(t, text, func(n protowire.Number, v uint64, _ []byte) {
				if n == 1 {
					next += int32(protowire.DecodeZigZag(v))
				} else {
					for range v {
						at = append(at, next)
						next++
					}
				}
			})
		case 12:
			count := int64(0)
			for len(text) > 0 {
				v, size := protowire.ConsumeVarint(text)
				text = text[size:]
				if count += protowire.DecodeZigZag(v); count > 0 {
					d.buckets[bucketOf(at[0], schema)] = uint64(count)
				}
				at = at[1:]
			}
		}
	})
	return isStale
}

func fromRemote(t *testing.T, body []byte) decoded {
	t.Helper()
	return *fromWrite(t, body)["__name__=rebound_rtt_seconds exported_job=mine instance=i job=j target=a"].histogram
}
