// Package metrics serves Prometheus metrics: a page with a rate limit, so that scrapes cannot disturb a polling loop,
// and histograms that are native and classic at once.
package metrics

import (
	"fmt"
	"iter"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/internal/host/version"
	"github.com/rebound-nic/rebound/latency/plain"
)

// Listen serves the metrics that c collects on HOST:PORT, if that is not empty, until hide is called. After hide has
// returned, c is not used any more and no scrape is running, so the device may be closed. It uses its own registry,
// because the default one's Go collector stops the world. It is for programs whose garbage collector runs: use
// ListenPage for one that leaves no garbage. Requests are answered for IP addresses, localhost, this host's name and
// hosts. status is the page at /, nil for none; it has the limits of the metrics.
func Listen(address string, hosts []string, c prometheus.Collector, status http.Handler, log *slog.Logger) (hide func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	r := prometheus.NewRegistry()
	r.MustRegister(c, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), buildInfo())
	return listenFor("stats.listen", address, hosts, promhttp.HandlerFor(r, promhttp.HandlerOpts{}), status, log)
}

// ListenStatus serves a status page alone on HOST:PORT, as Listen does.
func ListenStatus(address string, status http.Handler, log *slog.Logger) (hide func(), err error) {
	return listen(address, nil, nil, status, log)
}

// listenFor names the setting that contains an address.
func listenFor(setting, address string, hosts []string, h, status http.Handler, log *slog.Logger) (hide func(), err error) {
	if hide, err = listen(address, hosts, h, status, log); err != nil {
		err = fmt.Errorf("%s: %w", setting, err)
	}
	return hide, err
}

func listen(address string, hosts []string, h, status http.Handler, log *slog.Logger) (hide func(), err error) {
	web, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	var pages []*editions
	serve := func(pattern, what, path string, h http.Handler) {
		e := newEditions(h)
		pages = append(pages, e)
		mux.Handle(pattern, e)
		log.Info(what, "url", "http://"+web.Addr().String()+path)
	}
	if h != nil {
		serve("/metrics", "metrics", "/metrics", h)
	}
	if status != nil {
		serve("/{$}", "status page", "/", harmless(status))
	}
	server := newServer(mux, hosts)
	go server.Serve(web)
	return func() {
		server.Close() // ends connections without waiting for running requests
		for _, e := range pages {
			e.shut()
		}
	}, nil
}

// harmless sets headers that forbid scripts, external resources, framing and caching of a page.
func harmless(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			w.Header().Set(name, value)
		}
		h.ServeHTTP(w, r)
	})
}

// Settings are the address of the page and the host names that it is served for.
func Settings(listen *string, hosts *[]string) []setting.Setting {
	return []setting.Setting{
		setting.String("stats.listen", listen, "", CheckAddress, "HOST:PORT to serve Prometheus metrics on, at /metrics; empty is off."),
		setting.Strings("stats.hosts", hosts, checkHost, "Host names, without a port, that clients such as Prometheus may use. IP addresses, localhost "+
			"and this host's name are always allowed. Other names, such as a Kubernetes service, get status 403 unless listed, as a protection from DNS "+
			"rebinding. [\"any\"] allows all.").In("stats.listen"),
	}
}

// CheckAddress returns an error if Listen cannot listen on text. Empty means off.
func CheckAddress(text string) error {
	_, port, err := net.SplitHostPort(text)
	if _, bad := strconv.ParseUint(port, 10, 16); text != "" && (err != nil || bad != nil) {
		return fmt.Errorf("%q is not HOST:PORT", text)
	}
	return nil
}

const buildHelp = "What this program was built from; always 1."

var goversion, goarch = runtime.Version(), runtime.GOARCH

// buildInfo exports the build's version as labels of a constant 1.
func buildInfo() prometheus.Collector {
	v, _ := version.Stamp()
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "rebound_build_info", Help: buildHelp,
		ConstLabels: prometheus.Labels{"version": v, "goversion": goversion, "goarch": goarch}})
	g.Set(1)
	return g
}

// Count exports the value of a counter. Label values are escaped, because a name from outside may not be UTF-8.
func Count(ch chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	for i := range labels {
		labels[i] = plain.Text(labels[i])
	}
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

// Finest is the finest resolution (schema) of native histograms: 2^8 buckets per octave, each 0.27 % wide. The
// narrowest bucket of a polling.Histogram is 0.39 % wide, so no two of them fall into the same bucket, and Prometheus
// has the full resolution.
const Finest = 8

// Classic are the upper bounds, in seconds, of the classic buckets.
var Classic = []float64{1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}

// Histogram returns a metric of these values, in seconds, and the count of each, as both a native and a classic
// histogram: the scrape's format decides which is shown. sum is the sum of all values, schema the resolution of the
// native one, up to Finest.
func Histogram(d *prometheus.Desc, values iter.Seq2[float64, uint64], sum float64, schema int32, since time.Time, labels ...string) prometheus.Metric {
	native, zeros, all := map[int]int64{}, uint64(0), uint64(0)
	cumulative := make([]uint64, len(Classic))
	for v, n := range values {
		all += n
		if v == 0 {
			zeros += n
		} else {
			native[NativeBucket(v, schema)] += int64(n)
		}
		for b := range Classic {
			if v <= Classic[b] {
				cumulative[b] += n
			}
		}
	}
	m, err := prometheus.NewConstNativeHistogram(d, all, sum, native, nil, zeros, schema, 1e-12, since, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return &bothKinds{m, cumulative}
}

// NativeBucket is the index of the bucket that contains v. Its upper bound, 2^(index/2^schema), is inclusive.
func NativeBucket(v float64, schema int32) int {
	return int(math.Ceil(math.Log2(v) * math.Ldexp(1, int(schema))))
}

// bothKinds is a native histogram that has classic buckets as well.
type bothKinds struct {
	prometheus.Metric
	cumulative []uint64 // for Classic
}

// Write implements prometheus.Metric.
func (b *bothKinds) Write(m *dto.Metric) error {
	if err := b.Metric.Write(m); err != nil {
		return err
	}
	h := &dto.Histogram{ // a copy: the native metric must not change
		SampleCount: m.Histogram.SampleCount, SampleSum: m.Histogram.SampleSum, CreatedTimestamp: m.Histogram.CreatedTimestamp,
		Schema: m.Histogram.Schema, ZeroThreshold: m.Histogram.ZeroThreshold, ZeroCount: m.Histogram.ZeroCount,
		PositiveSpan: m.Histogram.PositiveSpan, PositiveDelta: m.Histogram.PositiveDelta,
	}
	for i := range Classic {
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &Classic[i], CumulativeCount: &b.cumulative[i]})
	}
	m.Histogram = h
	return nil
}
