package responder

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rebound-nic/rebound/fleet/registry"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/must"
)

// No two buckets of the loop's histogram share a bucket of the native histogram, whatever the counter's frequency.
func TestNoResolutionIsLost(t *testing.T) {
	for _, hz := range []float64{24e6, 1e9, 2.1e9, 2.45e9, 3.6e9, 5e9} {
		last := math.MinInt
		for i := 1; i < polling.Buckets; i++ {
			n := metrics.NativeBucket(middle(i)/hz, metrics.Finest)
			if n <= last {
				t.Fatalf("%v Hz: buckets %d and %d (from %d ticks) are both bucket %d", hz, i-1, i, polling.Lowest(i),
					n)
			}
			last = n
		}
	}
}

// The metric contains every value once, in both kinds of buckets, and a quantile of the native one equals the loop's
// own.
func TestHistogramMetric(t *testing.T) {
	const hz = 2.1e9
	var h polling.Histogram
	r := rand.New(rand.NewPCG(1, 2))
	const n = 100000
	h.Record(0)
	for range n - 1 {
		h.Record(uint64(math.Exp(r.NormFloat64()*1.5+8) * 2))
	}
	var ts ticks
	ts.add(&h)
	d := prometheus.NewDesc("x_seconds", "x", []string{"queue"}, nil)
	var m dto.Metric
	must.OK(t, registry.Histogram(d, ts.values(1/hz), ts.sum/hz, metrics.Finest, time.Unix(1, 0), "0").Write(&m))
	g := m.Histogram
	if g.GetSampleCount() != n || g.GetZeroCount() != 1 || g.GetSchema() != metrics.Finest || len(m.Label) != 1 {
		t.Fatalf("count %d, zeros %d, schema %d", g.GetSampleCount(), g.GetZeroCount(), g.GetSchema())
	}
	type bucket struct {
		index int
		count int64
	}
	var all []bucket
	at, delta, sum := 0, int64(0), int64(1)
	k := 0
	for _, s := range g.PositiveSpan {
		at += int(s.GetOffset())
		for range s.GetLength() {
			delta += g.PositiveDelta[k]
			k++
			all = append(all, bucket{at, delta})
			sum += delta
			at++
		}
	}
	if sum != n {
		t.Errorf("the native buckets have %d values, want %d", sum, n)
	}
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999, 0.9999} {
		rank, seen := int64(math.Ceil(q*n)), int64(1)
		var upper float64
		for _, b := range all {
			if seen += b.count; seen >= rank {
				upper = math.Exp2(float64(b.index) / (1 << metrics.Finest))
				break
			}
		}
		low := ts.quantile(q) // the lowest value of the loop's bucket
		high := polling.Lowest(polling.Bucket(low)+1) + 1
		if upper < float64(low)/hz || upper > float64(high)/hz*1.003 {
			t.Errorf("quantile %v: %v s, want within %v and %v", q, upper, float64(low)/hz, float64(high)/hz)
		}
	}
	last := uint64(0)
	for i, b := range g.Bucket {
		if b.GetCumulativeCount() < last || b.GetUpperBound() != metrics.Classic[i] {
			t.Errorf("classic bucket %d: %v", i, b)
		}
		last = b.GetCumulativeCount()
	}
	if last != n || len(g.Bucket) != len(metrics.Classic) {
		t.Errorf("the classic buckets have %d values, want %d", last, n)
	}
}
