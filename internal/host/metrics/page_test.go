package metrics

import (
	"bytes"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/rebound-nic/rebound/proof/must"
)

func example() (*Page, func()) {
	p := new(Page)
	refused := p.Counter("a_refused_total", "Refused.", "queue", "reason")
	gap := p.Family(dto.MetricType_HISTOGRAM, "a_gap_seconds", "Gaps.", "queue")
	wait := p.Family(dto.MetricType_SUMMARY, "a_wait_seconds", "Waits.", "queue")
	queues := []string{"0", "1", "2", "3"}
	reasons := make([]string, 40)
	for i := range reasons {
		reasons[i] = strings.Repeat("r", i+1)
	}
	quantiles := []Quantile{{Of: 0.5}, {Of: 0.99}}
	n := 0.0
	return p, func() {
		n++
		for _, q := range queues {
			for _, r := range reasons {
				refused.Set(n, q, r)
			}
			gap.Histogram(func(yield func(float64, uint64) bool) {
				for i := range 1000 {
					if !yield(float64(i*i)*1e-9, uint64(n)) {
						return
					}
				}
			}, 1, Finest, time.Unix(1, 0), q)
			quantiles[0].Value, quantiles[1].Value = n, 2*n
			wait.Summary(uint64(n), quantiles, q)
		}
	}
}

const wantsProtobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"

// Both formats have the same values, and a value that was not set again disappears.
func TestPageFormats(t *testing.T) {
	p, fill := example()
	h := &pageHandler{page: p, process: newProcess(p), collect: fill}
	gone := p.gauge("gone", "Gone.")
	gone.Set(1)
	families := map[string]map[string]*dto.MetricFamily{}
	for name, accept := range map[string]string{"text": "", "protobuf": wantsProtobuf} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, &http.Request{Header: http.Header{"Accept": {accept}}})
		format := expfmt.ResponseFormat(w.Header())
		if (format.FormatType() == expfmt.TypeProtoDelim) != (name == "protobuf") {
			t.Fatalf("%s is answered with %q", name, format)
		}
		families[name] = map[string]*dto.MetricFamily{}
		for d := expfmt.NewDecoder(w.Body, format); ; {
			var f dto.MetricFamily
			if err := d.Decode(&f); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(name, err)
			}
			families[name][f.GetName()] = &f
		}
	}
	for name, all := range families {
		for _, want := range []string{"a_refused_total", "a_gap_seconds", "a_wait_seconds", "process_cpu_seconds_total",
			"process_open_fds", "process_start_time_seconds"} {
			if all[want] == nil {
				t.Errorf("%s: no %s among %v", name, want, slices.Sorted(maps.Keys(all)))
			}
		}
		if all["gone"] != nil {
			t.Errorf("%s: a value that was not set is shown", name)
		}
		if n := len(all["a_refused_total"].GetMetric()); n != 160 {
			t.Errorf("%s: %d counters", name, n)
		}
		if n := all["a_gap_seconds"].GetMetric()[3].Histogram.GetSampleCount(); n == 0 || n%1000 != 0 {
			t.Errorf("%s: %d samples", name, n)
		}
	}
	if n := len(families["protobuf"]["a_gap_seconds"].Metric[0].Histogram.PositiveDelta); n < 900 {
		t.Errorf("the native histogram has %d buckets", n)
	}
}

func TestProcessMetrics(t *testing.T) {
	p := new(Page)
	own := newProcess(p)
	own.collect()
	stat, _ := os.ReadFile("/proc/self/stat")
	before, _ := os.ReadDir("/proc/self/fd")
	for _, f := range p.families {
		if len(f.family.Metric) != 1 {
			t.Fatalf("%s has no value", f.family.GetName())
		}
	}
	if n := own.open.family.Metric[0].Gauge.GetValue(); n < 3 || n > float64(len(before)) {
		t.Errorf("%v descriptors, os.ReadDir finds %d with its own", n, len(before))
	}
	if began := own.start.family.Metric[0].Gauge.GetValue(); began > float64(time.Now().Unix()+1) ||
		began < float64(time.Now().Unix()-3600) {
		t.Errorf("the process began at %v", began)
	}
	if rss := own.resident.family.Metric[0].Gauge.GetValue(); rss < 1<<20 || rss > 1<<33 {
		t.Errorf("%v bytes are resident: %s", rss, stat)
	}
	if v := statField([]byte("1 (a b) c) S 3 4 5"), 4); v != 3 {
		t.Errorf("field 4 is %v", v)
	}
}

// A scrape leaves little garbage. client_golang's registry leaves several hundred KB for the same page, which stops the
// loops every few hours.
func TestScrapeLeavesLittle(t *testing.T) {
	p, fill := example()
	address, hide := listening(t, func(log *slog.Logger) (func(),
		error) {
		return ListenPage("127.0.0.1:0", nil, p, fill, nil, log)
	})
	defer hide()
	defer func(was time.Duration) { scrapePause = was }(scrapePause)
	scrapePause = 0
	for name, accept := range map[string]string{"text": "text/plain", "protobuf": wantsProtobuf} {
		request := []byte("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: " + accept + "\r\n\r\n")
		c := must.Get(net.Dial("tcp", address))(t)
		defer c.Close()
		buffer := make([]byte, 1<<20)
		scrape := func() int { // as Prometheus does: on one connection
			must.Get(c.Write(request))(t)
			n := 0
			for !bytes.HasSuffix(buffer[:n], []byte("\r\n0\r\n\r\n")) {
				n += must.Get(c.Read(buffer[n:]))(t)
			}
			return n
		}
		for range 3 {
			scrape()
		}
		const times = 5
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		size := 0
		for range times {
			size = scrape()
		}
		runtime.ReadMemStats(&after)
		each := (after.TotalAlloc - before.TotalAlloc) / times
		t.Logf("%s: %d bytes of page, %d bytes allocated for each", name, size, each)
		if each > 16<<10 {
			t.Errorf("%s: a scrape allocates %d bytes, want 16 KiB at most", name, each)
		}
	}
}
