// Package metrics serves Prometheus metrics: a page with a rate limit, so that scrapes cannot disturb a polling loop,
// and histograms that are native and classic at once.
package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"runtime"
	"strconv"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
)

// ListenStatus serves a status page alone on HOST:PORT, as Serve does.
func ListenStatus(address string, status http.Handler, log *slog.Logger) (hide func(), err error) {
	return listen(address, nil, nil, status, nil, log)
}

// Serve serves metrics, which h writes, at /metrics on HOST:PORT, if that is not empty, until hide is called. After
// hide has returned, no scrape is running, so what h reads may be closed. Requests are answered for IP addresses,
// localhost, this host's name and hosts. status is the page at /, nil for links to the others. At /healthz the status
// is 503 while healthy returns an error. Both have the limits of the metrics.
func Serve(address string, hosts []string, h, status http.Handler, healthy func() error, log *slog.Logger) (hide func(),
	err error) {
	if address == "" {
		return func() {}, nil
	}
	if hide, err = listen(address, hosts, h, status, healthy, log); err != nil {
		err = fmt.Errorf("stats.listen: %w", err)
	}
	return hide, err
}

func listen(address string, hosts []string, h, status http.Handler, healthy func() error,
	log *slog.Logger) (hide func(), err error) {
	web, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	var pages []*editions
	add := func(pattern string, h http.Handler) {
		e := newEditions(h)
		pages = append(pages, e)
		mux.Handle(pattern, e)
	}
	serve := func(pattern, what, path string, h http.Handler) {
		add(pattern, h)
		level := slog.LevelInfo
		if _, port, _ := net.SplitHostPort(address); port == "0" { // the kernel has chosen one
			level = nic.Notice
		}
		log.Log(context.Background(), level, what, "url", "http://"+web.Addr().String()+path)
	}
	if h != nil {
		serve("/metrics", "metrics", "/metrics", h)
	}
	if status != nil {
		serve("/{$}", "status page", "/", harmless(status))
	}
	if healthy != nil {
		add("/healthz", health(healthy))
	}
	if status == nil && h != nil {
		mux.Handle("/{$}", harmless(index(healthy != nil)))
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

// index is the page at / of a program without a status page. It links to the others.
func index(healthy bool) http.Handler {
	text := "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\"><title>Rebound metrics</title>\n" +
		"<h1>Rebound metrics</h1>\n<ul>\n<li><a href=\"/metrics\">/metrics</a>: metrics for Prometheus\n"
	if healthy {
		text += "<li><a href=\"/healthz\">/healthz</a>: ok, or the reason why not, with status 503\n"
	}
	page := []byte(text + "</ul>\n")
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(page)
	})
}

// harmless sets headers that forbid scripts, external resources, framing and caching of a page.
func harmless(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options":  "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
			w.Header().Set(name, value)
		}
		h.ServeHTTP(w, r)
	})
}

// Settings are the address of the page and the host names that it is served for.
func Settings(listen *string, hosts *[]string) []setting.Setting {
	return []setting.Setting{
		setting.String("stats.listen", listen, "", CheckAddress,
			"HOST:PORT to serve Prometheus metrics on, at /metrics; empty is off."),
		setting.Strings("stats.hosts", hosts, checkHost,
			"Host names, without a port, that clients such as Prometheus may use. IP addresses, localhost "+
				"and this host's name are always allowed. Other names, such as a Kubernetes service, get status 403 unless listed, as a protection from DNS "+
				"rebinding. [\"any\"] allows all.").In("stats.listen"),
	}
}

// CheckAddress returns an error if Serve cannot listen on text. Empty means off.
func CheckAddress(text string) error {
	_, port, err := net.SplitHostPort(text)
	if _, bad := strconv.ParseUint(port, 10, 16); text != "" && (err != nil || bad != nil) {
		return fmt.Errorf("%q is not HOST:PORT", text)
	}
	return nil
}

// Build is what the metric rebound_build_info says of this program, by label.
func Build() (help string, labels map[string]string) {
	v, _ := process.BuildStamp()
	return "What this program was built from; always 1.", map[string]string{"version": v,
		"goversion": runtime.Version(), "goarch": runtime.GOARCH}
}

// Finest is the finest resolution (schema) of native histograms: 2^8 buckets per octave, each 0.27 % wide. The
// narrowest bucket of a polling.Histogram is 0.39 % wide, so no two of them fall into the same bucket, and Prometheus
// has the full resolution.
const Finest = 8

// Classic are the upper bounds, in seconds, of the classic buckets.
var Classic = []float64{1e-7, 2e-7, 5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01,
	0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}

// NativeBucket is the index of the bucket that contains v. Its upper bound, 2^(index/2^schema), is inclusive.
func NativeBucket(v float64, schema int32) int {
	return int(math.Ceil(math.Log2(v) * math.Ldexp(1, int(schema))))
}
