package metrics_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/rebound-nic/rebound/fleet/registry"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/proof/must"
)

// A page's histogram is the one that client_golang makes of the same values, the next one in the same memory too.
func TestPageHistogram(t *testing.T) {
	d := prometheus.NewDesc("x_seconds", "x", []string{"queue"}, nil)
	f := new(metrics.Page).Family(dto.MetricType_HISTOGRAM, "x_seconds", "x", "queue")
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 50 {
		counts := map[float64]uint64{}
		for range r.IntN(300) {
			counts[float64(r.IntN(1+1<<r.IntN(30)))*1e-9] += uint64(1 + r.IntN(1000))
		}
		values := func(yield func(float64, uint64) bool) {
			for _, v := range slices.Sorted(maps.Keys(counts)) {
				if !yield(v, counts[v]) {
					return
				}
			}
		}
		since := time.Unix(int64(round), 5)
		var want dto.Metric
		must.OK(t, registry.Histogram(d, values, 7.5, int32(round%9), since, "3").Write(&want))
		f.Again()
		f.Histogram(values, 7.5, int32(round%9), since, "3")
		got := f.First()
		if len(counts) == 0 || len(counts) == 1 && counts[0] > 0 {
			continue // client_golang marks an empty native histogram with an empty span
		}
		if !proto.Equal(got, &want) {
			t.Fatalf("round %d: %v\nwant %v", round, got, &want)
		}
	}
}
