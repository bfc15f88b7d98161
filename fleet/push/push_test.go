package push

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rebound-nic/rebound/fleet/registry"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

var start = time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)

// source is a collector of what a test sets.
type source struct {
	values  map[float64]uint64
	schema  int32
	targets []string
}

func (*source) Describe(chan<- *prometheus.Desc) {}
func (s *source) Collect(ch chan<- prometheus.Metric) {
	for _, t := range s.targets {
		labels := prometheus.Labels{"target": t, "job": "mine"}
		registry.Count(ch, prometheus.NewDesc("rebound_probes_total", "Probes.", nil, labels), 7)
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("rebound_target_up", "Up.", nil, labels),
			prometheus.GaugeValue, 1)
		sum := 0.0
		for v, n := range s.values {
			sum += v * float64(n)
		}
		ch <- registry.Histogram(prometheus.NewDesc("rebound_rtt_seconds", "Round trips.", nil, labels),
			maps.All(s.values), sum, s.schema, start)
	}
}

func (s *source) gather() ([]*dto.MetricFamily, error) {
	r := prometheus.NewRegistry()
	r.MustRegister(s)
	return r.Gather()
}

func to(t *testing.T, text string, env map[string]string) *To {
	t.Helper()
	return must.Get(Choose(text, 15*time.Second, func(name string) string { return env[name] }))(t)
}

// Each recorded value is in a bucket with bounds around it whose width is that of the schema, in both formats, and each
// bucket has the count of its values and no more.
func TestEachValueIsInItsBucket(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, schema := range []int32{0, 3, 5, 8} {
		for _, n := range []int{0, 1, 2, 300} {
			s := &source{values: map[float64]uint64{}, schema: schema, targets: []string{"a"}}
			all := uint64(0)
			for range n {
				v := 1e-9 * math.Exp2(random.Float64()*33) // 1 ns to 8.6 s
				if random.IntN(20) == 0 {
					v = 0
				}
				count := 1 + random.Uint64N(1000)
				s.values[v] += count
				all += count
			}
			for format, url := range map[string]string{"OTLP": "http://h/v1/metrics",
				"remote-write": "http://h/api/v1/write"} {
				o := &Options{To: to(t, url, nil), Job: "j", Instance: "i", Start: start}
				b := o.To.batch(o)
				for _, f := range must.Get(s.gather())(t) {
					for _, m := range f.Metric {
						b.add(f, m, start.Add(time.Minute), false)
					}
				}
				h := map[string]func(*testing.T, []byte) decoded{"OTLP": fromOTLP,
					"remote-write": fromRemote}[format](t, must.Get(b.body())(t))
				zeros, sum := s.values[0], uint64(0)
				for v, count := range s.values {
					found := v == 0
					for b, have := range h.buckets {
						if v > b.low*(1-1e-12) && v <= b.high*(1+1e-12) && have >= count &&
							b.high/b.low < math.Exp2(math.Ldexp(1, -int(schema)))*(1+1e-9) {
							found = true
						}
					}
					if !found {
						t.Errorf("%s, schema %d: no bucket has %v (%d times)", format, schema, v, count)
					}
				}
				for _, n := range h.buckets {
					sum += n
				}
				if h.count != all || h.zeros != zeros || sum+zeros != all {
					t.Errorf("%s, schema %d: count %d, zeros %d, in buckets %d; want %d and %d zeros", format, schema,
						h.count, h.zeros, sum, all, zeros)
				}
			}
		}
	}
}

// A series that is gone is ended once, and one that could not be ended is ended by the next push; Stop ends all.
func TestEnded(t *testing.T) {
	for _, url := range []string{"http://h/v1/metrics", "http://h/api/v1/write"} {
		synctest.Test(t, func(t *testing.T) {
			s := &source{values: map[float64]uint64{0.1: 1}, schema: 3, targets: []string{"a", "b"}}
			var pushed []string // per push: which targets' series have values, and which ended
			fails := false
			var turn sync.Mutex // of the pusher's goroutine and this one
			gather := func() ([]*dto.MetricFamily, error) { turn.Lock(); defer turn.Unlock(); return s.gather() }
			p := New(Options{To: to(t, url, nil), Job: "j", Instance: "i", Start: start, Gather: gather,
				Log: slog.New(slog.DiscardHandler)})
			p.client.Transport = transport(func(r *http.Request) (*http.Response, error) {
				turn.Lock()
				defer turn.Unlock()
				body, _ := io.ReadAll(r.Body)
				pushed = append(pushed, summary(t, url, body))
				if fails {
					return nil, errors.New("no route")
				}
				return accepted(t, url, body), nil
			})
			go p.run(time.Second)
			for i, want := range []string{"3 of a, 3 of b", "3 of a, 3 ended of b", "3 of a, 3 ended of b", "3 of a"} {
				turn.Lock()
				fails = i == 1
				turn.Unlock()
				time.Sleep(p.To.Interval)
				synctest.Wait()
				check.Equal(t, pushed[len(pushed)-1], want, url+": %q")
				turn.Lock()
				s.targets = []string{"a"}
				turn.Unlock()
			}
			p.Stop()
			check.Equal(t, strings.Join(pushed[4:], "; "), "3 of a; 3 ended of a", url+": after Stop %q")
			if pushes, failures := p.Counts(); pushes != 6 || failures != 1 {
				t.Errorf("%d pushes, %d failures", pushes, failures)
			}
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(status int, body string, header ...string) *http.Response {
	r := &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(body))}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// accepted is the answer of a receiver that took everything.
func accepted(t *testing.T, url string, body []byte) *http.Response {
	t.Helper()
	if strings.HasSuffix(url, otlpPath) {
		return answer(200, "")
	}
	samples, histograms := 0, 0
	for _, w := range fromWrite(t, body) {
		if w.histogram != nil {
			histograms++
		} else {
			samples++
		}
	}
	return answer(204, "", "X-Prometheus-Remote-Write-Samples-Written", number(float64(samples)),
		"X-Prometheus-Remote-Write-Histograms-Written", number(float64(histograms)))
}

// summary counts the series of a push, by target.
func summary(t *testing.T, url string, body []byte) string {
	t.Helper()
	n := map[string]int{}
	count := func(target string, ended bool) { n[map[bool]string{false: "of ", true: "ended of "}[ended]+target]++ }
	if strings.HasSuffix(url, otlpPath) {
		for _, m := range unpack(t, body).ResourceMetrics[0].ScopeMetrics[0].Metrics {
			for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
				count(p.Attributes[1].Value.GetStringValue(), p.Flags == 1)
			}
			for _, p := range m.GetExponentialHistogram().GetDataPoints() {
				count(p.Attributes[1].Value.GetStringValue(), p.Flags == 1)
			}
		}
	} else {
		for labels, w := range fromWrite(t, body) {
			_, target, _ := strings.Cut(labels, "target=")
			count(target, w.stale)
		}
	}
	var all []string
	for what, n := range n {
		all = append(all, number(float64(n))+" "+what)
	}
	slices.SortFunc(all, func(a, b string) int { return strings.Compare(a[len(a)-1:], b[len(b)-1:]) })
	return strings.Join(all, ", ")
}

// Failures are counted, the first of a row is logged, and the next push is made at its time; a receiver may ask for a
// pause. A receiver that hangs delays neither that nor Stop for long.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		partial := &collector.ExportMetricsPartialSuccess{RejectedDataPoints: 3, ErrorMessage: "too\nold"}
		rejects := must.Get(proto.Marshal(&collector.ExportMetricsServiceResponse{PartialSuccess: partial}))(t)
		var log shared
		s := &source{schema: 3, targets: []string{"a"}}
		p := New(Options{To: to(t, "http://u:secret@h/v1/metrics",
			map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "X-Tenant=a%20b"}), Job: "j", Instance: "i", Start: start,
			Gather: s.gather,
			Log:    slog.New(slog.NewTextHandler(&log, nil))})
		hang := func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }
		give := func(a *http.Response) func(*http.Request) (*http.Response, error) {
			return func(r *http.Request) (*http.Response, error) {
				if got := r.Header.Get("X-Tenant"); got != "a b" {
					t.Errorf("header %q", got)
				}
				return a, nil
			}
		}
		steps := []struct {
			do     func(*http.Request) (*http.Response, error)
			at     time.Duration // of the request
			failed bool
			says   string
		}{
			{give(answer(200, "")), 1, false, ""},
			{give(answer(500, "disk\nfull")), 16, true, `disk\\nfull`},
			{hang, 31, true, ""},
			{give(answer(200, "")), 46, false, "pushed again"},
			{give(answer(200, string(rejects))), 61, true, `rejected 3 data points: too\\nold`},
			{give(answer(429, "", "Retry-After", "40")), 76, true, ""}, // until 116
			{give(answer(200, "")), 121, false, "pushed again"},
			{hang, 136, true, "deadline"},
		}
		begin, i, want := time.Now(), 0, uint64(0)
		p.client.Transport = transport(func(r *http.Request) (*http.Response, error) {
			log.mu.Lock()
			s := steps[i]
			i++
			log.mu.Unlock()
			if at := time.Since(begin); at != s.at*time.Second {
				t.Errorf("request %d after %v, want %v s", i, at, int(s.at))
			}
			return s.do(r)
		})
		go p.run(time.Second)
		for n, s := range steps {
			time.Sleep(begin.Add(s.at*time.Second + 11*time.Second).Sub(time.Now()))
			synctest.Wait()
			if s.failed {
				want++
			}
			pushes, failures := p.Counts()
			if pushes != uint64(n+1) || failures != want || !strings.Contains(log.String(), s.says) || s.says == "" &&
				log.String() != "" {
				t.Errorf("push %d: %d pushes, %d failures (want %d), log %q (want %q)", n, pushes, failures, want,
					log.String(), s.says)
			}
			log.reset()
		}
		log.mu.Lock()
		steps = append(steps, steps[0], steps[7])
		steps[8].at, steps[9].at = 151, 166
		log.mu.Unlock()
		time.Sleep(begin.Add(166 * time.Second).Sub(time.Now()))
		synctest.Wait() // the request hangs
		stopped := time.Now()
		p.Stop()
		if took := time.Since(stopped); took != lastPatience {
			t.Errorf("Stop took %v", took)
		}
		if strings.Contains(log.String(), "secret") {
			t.Errorf("the password is in the log: %s", log.String())
		}
	})
}

// A receiver of remote-write that does not confirm what it wrote has failed.
func TestUnconfirmed(t *testing.T) {
	b := &remoteBatch{options: &Options{}}
	b.sentSamples, b.sentHistograms = 2, 1
	for _, c := range []struct {
		samples, histograms, want string
	}{{"", "", "may not support remote-write 2.0"}, {"2", "", "may not support"}, {"2", "0", "0 of 1 Histograms"},
		{"1", "1", "1 of 2 Samples"}, {"2", "1", ""}} {
		h := http.Header{}
		h.Set("X-Prometheus-Remote-Write-Samples-Written", c.samples)
		h.Set("X-Prometheus-Remote-Write-Histograms-Written", c.histograms)
		if err := b.check(h, nil); (err != nil || c.want != "") &&
			(err == nil || c.want == "" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// Many metrics are several requests, each of which is bounded, and so are those that end. The first that fails is the
// last of its push.
func TestBatches(t *testing.T) {
	for _, target := range []string{"http://h/v1/metrics", "http://h/api/v1/write"} {
		s := &source{values: map[float64]uint64{}, schema: 8}
		for v := 1e-6; v < 1; v *= 1.05 {
			s.values[v] = 5
		}
		for i := range 600 {
			s.targets = append(s.targets, number(float64(i))+strings.Repeat("x", 400))
		}
		requests, series, largest, fails := 0, 0, 0, false
		p := New(Options{To: to(t, target, nil), Job: "j", Instance: "i", Start: start, Gather: s.gather,
			Log: slog.New(slog.DiscardHandler)})
		p.client.Transport = transport(func(r *http.Request) (*http.Response, error) {
			body, _ := io.ReadAll(r.Body)
			if requests++; fails {
				return nil, io.ErrClosedPipe
			}
			if target == "http://h/v1/metrics" {
				r := unpack(t, body)
				largest = max(largest, proto.Size(r))
				for _, m := range r.ResourceMetrics[0].ScopeMetrics[0].Metrics {
					series += len(m.GetSum().GetDataPoints()) + len(m.GetGauge().GetDataPoints()) + len(
						m.GetExponentialHistogram().GetDataPoints())
				}
			} else {
				n, _ := snappy.DecodedLen(body)
				largest = max(largest, n)
				series += len(fromWrite(t, body))
			}
			return accepted(t, target, body), nil
		})
		for _, end := range []bool{false, true} {
			requests, fails = 0, true
			check.Fails(t, target, p.send(t.Context(), time.Now(), end), io.ErrClosedPipe)
			check.Equal(t, requests, 1, target+": %d requests with one that fails")
			requests, series, largest, fails = 0, 0, 0, false
			must.OK(t, p.send(t.Context(), time.Now(), end))
			if requests < 2 || requests > 100 || series != 1800 || largest > mostBytes+mostBytes/4 ||
				(len(p.known) == 0) != end {
				t.Errorf("%s: %d requests, %d series of 1800, %d are known, the largest has %d bytes; end %t", target,
					requests, series, len(p.known), largest, end)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	type env = map[string]string
	const base, full = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	for _, c := range []struct {
		flag string
		env  env
		want string // URL and format, or an error
	}{
		{"", nil, "none"},
		{"http://h:9090/api/v1/write", nil, "http://h:9090/api/v1/write remote-write 2.0 10s"},
		{"https://u:p@h/v1/metrics", nil, "https://u:xxxxx@h/v1/metrics OTLP"},
		{"http://h/v1/metrics", env{base: "http://x:4318"}, "http://h/v1/metrics OTLP"},
		{"", env{base: "http://x:4318"}, "http://x:4318/v1/metrics OTLP"},
		{"", env{base: "http://x:4318/otlp/"}, "http://x:4318/otlp/v1/metrics OTLP"},
		{"", env{base: "http://x:4318", full: "http://y:1/v1/metrics"}, "http://y:1/v1/metrics OTLP"},
		{"", env{base: "http://x:4318", "OTEL_METRICS_EXPORTER": "none"}, "none"},
		{"", env{base: "http://x:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL: grpc is not supported"},
		{"", env{base: "x:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: "},
		{"h:1", nil, "is not a URL"},
		{"http://h/x", env{"OTEL_EXPORTER_OTLP_HEADERS": "nonsense"}, "OTEL_EXPORTER_OTLP_HEADERS: want NAME=VALUE"},
		{"http://h/x", env{"OTEL_EXPORTER_OTLP_TIMEOUT": "1s"}, "OTEL_EXPORTER_OTLP_TIMEOUT: "},
		{"http://h/x", env{"OTEL_EXPORTER_OTLP_TIMEOUT": "0"}, "not a number of milliseconds"},
		{"http://h/x", env{"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}, "http://h/x remote-write 2.0 1ms"},
		{"http://h/x", env{"OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "30", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}, "2.0 30ms"},
		{"", env{base: "http://x:4318", "OTEL_SDK_DISABLED": "true"}, "none"},
		{"http:///x", nil, "is not a URL"},
		{"http://h/x", env{"OTEL_RESOURCE_ATTRIBUTES": "=a"}, "OTEL_RESOURCE_ATTRIBUTES: want NAME=VALUE"},
		{"http://h/x", env{"OTEL_RESOURCE_ATTRIBUTES": "a=%"}, "OTEL_RESOURCE_ATTRIBUTES: a: "},
		{"http://h/x", env{"OTEL_RESOURCE_ATTRIBUTES": "a=b, ,"}, "http://h/x remote-write 2.0"},
		{"http://h/x", env{"OTEL_EXPORTER_OTLP_CERTIFICATE": "/none/such"}, "OTEL_EXPORTER_OTLP_CERTIFICATE: "},
		{"http://h/x", env{"OTEL_EXPORTER_OTLP_CLIENT_KEY": "/none/such"}, "OTEL_EXPORTER_OTLP_CLIENT_KEY: "},
	} {
		got := "none"
		r, err := Choose(c.flag, time.Second, func(name string) string { return c.env[name] })
		if err != nil {
			got = err.Error()
		} else if r != nil {
			got = fmt.Sprint(r, " ", r.format(), " ", r.timeout)
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%q, %v: %s, want %s", c.flag, c.env, got, c.want)
		}
	}
	r := to(t, "http://h/v1/metrics", env{"OTEL_RESOURCE_ATTRIBUTES": "deployment=a%2Cb, service.instance.id=x",
		"OTEL_SERVICE_NAME": "s"})
	p := New(Options{To: r, Job: "j", Instance: "i"})
	if got, want := r.resource(label{"service.name", "j"}, label{"service.instance.id", "i"}),
		[]label{{"service.name", "s"}, {"service.instance.id", "x"}, {"deployment", "a,b"}}; !slices.Equal(got, want) {
		t.Errorf("resource %v", got)
	}
	if p.Job != "s" || p.Instance != "x" {
		t.Errorf("remote-write's labels: job %s, instance %s", p.Job, p.Instance)
	}
}

// Only a receiver that is busy may ask for a pause, in seconds, and for five minutes at most. Of what it answers, a log
// has the beginning.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			status int
			after  string
			pause  time.Duration
		}{{429, "40", 40 * time.Second}, {503, "1", time.Second}, {503, "301", 5 * time.Minute}, {429, "0", 0},
			{429, "9000000000000000000", 5 * time.Minute}, {429, "10000000000000000000", 0},
			{429, "soon", 0}, {429, "-1", 0}, {500, "40", 0}, {301, "", 0}, {199, "", 0}} {
			text := strings.Repeat("x", 200)
			p := New(Options{To: to(t, "http://h/write", nil)})
			p.client.Transport = transport(func(r *http.Request) (*http.Response, error) {
				if got := r.Header.Get("Content-Type"); !strings.Contains(got, "write.v2") {
					t.Errorf("content type %q", got)
				}
				return answer(c.status, " "+text+"\n", "Retry-After", c.after), nil
			})
			for range 2 {
				before := time.Now()
				err := p.post(t.Context(), &remoteBatch{options: &p.Options})
				shown := strings.TrimSuffix(text, "y")
				if text != shown {
					shown += "..."
				}
				if err == nil || !strings.HasSuffix(err.Error(), ": "+shown) {
					t.Errorf("%+v: %v", c, err)
				}
				if pause := max(p.after.Sub(before), 0); pause != c.pause {
					t.Errorf("%+v: a pause of %v", c, pause)
				}
				text += "y"
			}
		}
	})
}

// The certificates that the environment names are those of the receiver and of this host.
func TestCertificates(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	own := s.TLS.Certificates[0]
	key := must.Get(x509.MarshalPKCS8PrivateKey(own.PrivateKey))(t)
	dir := t.TempDir()
	file := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600))
		return path
	}
	public, private := file("cert", "CERTIFICATE", own.Certificate[0]), file("key", "PRIVATE KEY", key)
	const root, certificate, secret = "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
		"OTEL_EXPORTER_OTLP_CLIENT_KEY"
	for want, env := range map[string]map[string]string{
		"":                              {root: public, certificate: public, secret: private},
		"certificate required":          {root: public},
		"certificate signed by unknown": {certificate: public, secret: private},
		root + ": " + private + " has no certificate": {root: private},
		certificate + " and " + secret + ": ":         {certificate: public},
		certificate + " and " + secret + ": tls: ":    {certificate: private, secret: public},
	} {
		r, err := Choose(s.URL+"/v1/metrics", time.Second, func(name string) string { return env[name] })
		if err == nil {
			p := New(Options{To: r})
			err = p.post(t.Context(), &otlpBatch{options: &p.Options})
			p.client.CloseIdleConnections()
		}
		if want == "" {
			must.OK(t, err)
		} else {
			check.Fails(t, want, err, nil, want)
		}
	}
}

// A request has each kind of series, with values and as ended, with the fields that its format prescribes.
func TestRequests(t *testing.T) {
	created := timestamppb.New(start.Add(time.Second))
	labels := []*dto.LabelPair{{Name: new("a"), Value: new("1")}, {Name: new("instance"), Value: new("2")}}
	bounds := []*dto.Bucket{{UpperBound: new(1.0), CumulativeCount: new(uint64(1))},
		{UpperBound: new(2.5), CumulativeCount: new(uint64(3))}}
	native := &dto.Histogram{SampleCount: new(uint64(29)), SampleSum: new(-1.5), Schema: new(int32(3)),
		ZeroThreshold: new(0.25), ZeroCount: new(uint64(2)),
		NegativeSpan:  []*dto.BucketSpan{{Offset: new(int32(-7)), Length: new(uint32(2))}},
		NegativeDelta: []int64{5, -1},
		PositiveSpan: []*dto.BucketSpan{{Offset: new(int32(4)), Length: new(uint32(1))},
			{Offset: new(int32(2)), Length: new(uint32(2))}},
		PositiveDelta: []int64{7, -2, 1}}
	var families []*dto.MetricFamily
	for _, m := range []struct {
		name, help string
		kind       dto.MetricType
		metric     *dto.Metric
	}{
		{"x_total", "Counts.", dto.MetricType_COUNTER, &dto.Metric{Counter: &dto.Counter{Value: new(7.0)}}},
		{"y_seconds_total", "", dto.MetricType_COUNTER, &dto.Metric{Counter: &dto.Counter{Value: new(0.0),
			CreatedTimestamp: created}, Label: labels}},
		{"z_bytes", "Size.", dto.MetricType_GAUGE, &dto.Metric{Gauge: &dto.Gauge{Value: new(-2.0)}, Label: labels}},
		{"u", "", dto.MetricType_UNTYPED, &dto.Metric{Untyped: &dto.Untyped{Value: new(3.0)}}},
		{"s_seconds", "Summary.", dto.MetricType_SUMMARY, &dto.Metric{Label: labels, Summary: &dto.Summary{
			SampleCount: new(uint64(4)), SampleSum: new(8.5), CreatedTimestamp: created,
			Quantile: []*dto.Quantile{{Quantile: new(0.5), Value: new(1.5)}, {Quantile: new(1.0), Value: new(3.0)}}}}},
		{"c", "Classic.", dto.MetricType_HISTOGRAM, &dto.Metric{Histogram: &dto.Histogram{
			SampleCount: new(uint64(4)), SampleSum: new(8.0), CreatedTimestamp: created,
			Bucket: append(bounds, &dto.Bucket{UpperBound: new(math.Inf(1)), CumulativeCount: new(uint64(4))})}}},
		{"d", "", dto.MetricType_HISTOGRAM, &dto.Metric{Histogram: &dto.Histogram{SampleCount: new(uint64(3)),
			SampleSum: new(4.0), Bucket: bounds}, Label: labels}},
		{"n_seconds", "Native.", dto.MetricType_HISTOGRAM, &dto.Metric{Histogram: native, Label: labels}},
		{"e", "", dto.MetricType_HISTOGRAM, &dto.Metric{Histogram: &dto.Histogram{Schema: new(int32(0)),
			ZeroThreshold: new(1.0)}}}, // empty
	} {
		families = append(families, &dto.MetricFamily{Name: &m.name, Help: &m.help, Type: &m.kind,
			Metric: []*dto.Metric{m.metric, {Label: []*dto.LabelPair{{Name: new("b"), Value: &m.name}},
				Counter: m.metric.Counter, Gauge: m.metric.Gauge, Untyped: m.metric.Untyped,
				Summary: m.metric.Summary, Histogram: m.metric.Histogram}}})
	}
	var all strings.Builder
	for _, c := range []struct{ url, compression string }{{"http://h/write", ""}, {"http://h/v1/metrics", ""},
		{"http://h/v1/metrics", "none"}} {
		to := to(t, c.url, map[string]string{"OTEL_EXPORTER_OTLP_COMPRESSION": c.compression,
			"OTEL_RESOURCE_ATTRIBUTES": "k=v"})
		b := to.batch(&Options{To: to, Job: "j", Instance: "i", Start: start})
		for _, ended := range []bool{false, true} {
			if ended && c.compression != "" {
				continue
			}
			for _, f := range families {
				for _, m := range f.Metric {
					if ended {
						m = shape(m)
					}
					b.add(f, m, start.Add(time.Minute), ended)
				}
			}
			h := http.Header{}
			b.header(h)
			fmt.Fprintf(&all, "%s %s, ended %t: size %d, %q\n", to.format(), c.compression, ended, b.size(), h)
			body := must.Get(b.body())(t)
			check.Equal(t, b.size(), 0, "%d bytes are left")
			switch {
			case c.compression != "":
				must.OK(t, proto.Unmarshal(body, new(collector.ExportMetricsServiceRequest)))
			case to.otlp():
				r := unpack(t, body)
				scope := r.ResourceMetrics[0].ScopeMetrics[0]
				for _, m := range scope.Metrics {
					inJSON(t, &all, m)
				}
				scope.Metrics = nil
				inJSON(t, &all, r)
			default:
				dump(t, &all, "", must.Get(snappy.Decode(nil, body))(t))
			}
		}
	}
	golden.Equal(t, "testdata/requests.txt", all.String())
}

// The fields of io.prometheus.write.v2.Request that are messages, packed varints, and floating-point numbers.
const (
	messages = " .5 .5.2 .5.3 .5.3.8 .5.3.11 .5.5 "
	packed   = " .5.1 .5.3.9 .5.3.12 "
	doubles  = " .5.2.1 .5.3.3 .5.3.5 "
)

// dump writes a line for each symbol and series of a request, with the paths of its fields.
func dump(t *testing.T, to io.Writer, path string, b []byte) {
	fields(t, b, func(n protowire.Number, v uint64, text []byte) {
		path := fmt.Sprintf("%s.%d", path, n)
		is := func(list string) bool { return strings.Contains(list, " "+path+" ") }
		fmt.Fprint(to, path, " ")
		switch {
		case is(messages):
			dump(t, to, path, text)
		case is(packed):
			for len(text) > 0 {
				v, size := protowire.ConsumeVarint(text)
				text = text[size:]
				fmt.Fprint(to, v, " ")
			}
		case is(doubles):
			fmt.Fprintf(to, "%v (%#x) ", math.Float64frombits(v), v)
		case text != nil:
			fmt.Fprintf(to, "%q ", text)
		default:
			fmt.Fprint(to, v, " ")
		}
		if strings.Count(path, ".") == 1 {
			fmt.Fprintln(to)
		}
	})
}

// inJSON writes a message in one line.
func inJSON(t *testing.T, to *strings.Builder, m proto.Message) {
	var line bytes.Buffer // without the blanks that protojson varies
	must.OK(t, json.Compact(&line, must.Get(protojson.Marshal(m))(t)))
	fmt.Fprintln(to, strings.ReplaceAll(line.String(), `"`+program()+`"`, `"VERSION"`))
}

// shared is a log that a pusher writes and a test reads. (synctest.Wait orders what the pusher did before what the test
// does, not the other way round.)
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}
func (s *shared) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.text.String() }
func (s *shared) reset()         { s.mu.Lock(); defer s.mu.Unlock(); s.text.Reset() }
