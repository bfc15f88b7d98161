// Native serves a native histogram of synthetic latencies at 127.0.0.1:19101, for Prometheus to scrape.
package main

import (
	"log"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func main() {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "rpc_seconds", Help: "made-up latencies",
		NativeHistogramBucketFactor: 1.02})
	registry := prometheus.NewRegistry()
	registry.MustRegister(h)
	go func() {
		random := rand.New(rand.NewPCG(28, 1))
		for range time.Tick(2 * time.Millisecond) {
			h.Observe(0.0005 * math.Exp(0.3*random.NormFloat64()))
		}
	}()
	log.Fatal(http.ListenAndServe("127.0.0.1:19101", promhttp.HandlerFor(registry, promhttp.HandlerOpts{})))
}
