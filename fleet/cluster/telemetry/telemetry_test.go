package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebound-nic/rebound/fleet/push"
	"github.com/rebound-nic/rebound/fleet/registry"
	"github.com/rebound-nic/rebound/proof/must"
)

var watch = flag.String("watch", "", "rebound-watch, for TestWatch; built if empty")

// program returns the path of a program that make telemetry built from this go.mod.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, mod := must.Get(filepath.Abs("../../../.cache/telemetry"))(t), must.Get(os.ReadFile("go.mod"))(t)
	if built, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil || !bytes.Equal(built, mod) {
		t.Skipf("%s is not built in %s (make telemetry builds it, which takes minutes)", name, dir)
	}
	return filepath.Join(dir, name)
}

// running is a program that ends with the test.
type running struct {
	*exec.Cmd
	log string
}

func start(t *testing.T, env []string, name string, args ...string) *running {
	t.Helper()
	r := &running{exec.Command(name, args...), filepath.Join(t.TempDir(), "log")}
	r.Env = append(os.Environ(), env...)
	out := must.Get(os.Create(r.log))(t)
	defer out.Close()
	r.Stdout, r.Stderr = out, out
	r.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.OK(t, r.Start())
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			text, _ := os.ReadFile(r.log)
			t.Logf("%s:\n%s", filepath.Base(name), text[max(0, len(text)-4000):])
		}
	})
	return r
}

func (r *running) stop() error {
	if r.ProcessState != nil {
		return nil
	}
	r.Process.Signal(syscall.SIGTERM)
	return r.Wait()
}

// free returns addresses on which nothing listens now.
func free(t *testing.T, n int) (all []string) {
	t.Helper()
	for range n {
		l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer l.Close()
		all = append(all, l.Addr().String())
	}
	return all
}

func until(t *testing.T, what string, done func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// server is a Prometheus with both receivers.
type server struct {
	t       *testing.T
	address string
	*running
}

func prometheusServer(t *testing.T, config string) *server {
	t.Helper()
	s := &server{t: t, address: free(t, 1)[0]}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	must.OK(t, os.WriteFile(file, []byte(config), 0o600))
	s.running = start(t, nil, program(t, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+dir,
		"--web.listen-address="+s.address,
		"--web.enable-remote-write-receiver", "--web.enable-otlp-receiver", "--log.level=warn")
	until(t, "Prometheus is ready", func() error {
		r, err := http.Get("http://" + s.address + "/-/ready")
		if err == nil {
			r.Body.Close()
			if r.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s", r.Status)
			}
		}
		return err
	})
	return s
}

// collector is an OpenTelemetry collector that sends what it gets to a Prometheus. It returns its own address.
func (s *server) collector() string {
	s.t.Helper()
	own := free(s.t, 1)[0]
	file := filepath.Join(s.t.TempDir(), "collector.yml")
	must.OK(s.t, os.WriteFile(file, fmt.Appendf(nil, `
receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters: {otlp_http: {metrics_endpoint: "http://%s/api/v1/otlp/v1/metrics", sending_queue: {num_consumers: 1}}} # in order
service:
  telemetry: {metrics: {level: none}}
  pipelines: {metrics: {receivers: [otlp], exporters: [otlp_http]}}
`, own, s.address), 0o600))
	start(s.t, nil, program(s.t, "collector"), "--config=file:"+file)
	until(s.t, "the collector listens", func() error {
		c, err := net.Dial("tcp", own)
		if err == nil {
			c.Close()
		}
		return err
	})
	return own
}

// vector is the result of a query, by labels without job.
type vector map[string]value

// value is a number, or a native histogram: count, sum, and the count of each bucket by its bounds.
type value struct {
	Number, Count, Sum string
	Buckets            map[string]string
}

func (s *server) query(expression string) (vector, error) {
	r, err := http.Get("http://" + s.address + "/api/v1/query?" + url.Values{"query": {expression}}.Encode())
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric    map[string]string
				Value     []any
				Histogram []any
			}
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expression, answer.Error)
	}
	v := vector{}
	for _, x := range answer.Data.Result {
		name := x.Metric["__name__"]
		delete(x.Metric, "__name__")
		delete(x.Metric, "job")
		var one value
		if len(x.Value) == 2 {
			one.Number = fmt.Sprint(x.Value[1])
		}
		if len(x.Histogram) == 2 {
			h := x.Histogram[1].(map[string]any)
			one.Count, one.Sum, one.Buckets = fmt.Sprint(h["count"]), fmt.Sprint(h["sum"]), map[string]string{}
			list, _ := h["buckets"].([]any)
			for _, b := range list { // boundary rule, lower and upper bound, count
				b := b.([]any)
				bounds := fmt.Sprint(b[1], " ", b[2])
				// both bounds belong to it: that of zero, whose width Prometheus sets itself for OTLP
				if b[0].(float64) == 3 {
					bounds = "zero"
				}
				one.Buckets[bounds] = fmt.Sprint(b[3])
			}
		}
		v[name+fmt.Sprint(x.Metric)] = one
	}
	return v, nil
}

// everything has a metric of each kind, with random values.
type everything struct {
	values map[string]map[float64]uint64 // of histograms, by target
	sums   map[string]float64
	begin  time.Time
}

func newEverything(random *rand.Rand) *everything {
	e := &everything{map[string]map[float64]uint64{}, map[string]float64{}, time.Now()}
	for i := range 20 {
		target := fmt.Sprintf("udp:10.0.0.%d:7", i)
		e.values[target] = map[float64]uint64{}
		for range i * 50 { // the first has none
			v, n := 1e-6*math.Exp2(random.Float64()*22), 1+random.Uint64N(1000)
			if random.IntN(30) == 0 {
				v = 0
			}
			e.values[target][v] += n
			e.sums[target] += v * float64(n)
		}
	}
	return e
}

func (*everything) Describe(chan<- *prometheus.Desc) {}
func (e *everything) Collect(ch chan<- prometheus.Metric) {
	for target, values := range e.values {
		labels := prometheus.Labels{"target": target, "zone": "ä", "job": "own"}
		registry.Count(ch, prometheus.NewDesc("rebound_probes_total", "Probes.", nil, labels),
			uint64(len(values))<<40+1)
		registry.Count(ch, prometheus.NewDesc("rebound_replies_trouble_total", "Trouble.", []string{"kind"}, labels), 3,
			"late")
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("rebound_change_shift_seconds", "Shift.", nil, labels),
			prometheus.GaugeValue, -1e-7)
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("rebound_watch_disk_bytes", "Bytes.", nil, labels),
			prometheus.GaugeValue, 1e9)
		ch <- prometheus.MustNewConstSummary(prometheus.NewDesc("rebound_gap_seconds", "Gaps.", nil, labels), 7, 3.5,
			map[float64]float64{0.5: 0.25, 0.99: 1})
		for i, name := range []string{"rebound_rtt_seconds", "rebound_coarse_seconds"} {
			ch <- registry.Histogram(prometheus.NewDesc(name, "Round trips.", nil, labels), maps.All(values),
				e.sums[target], int32(8-3*i), e.begin)
		}
	}
}

// What Prometheus scrapes, gets by remote-write, by OTLP, and by OTLP through a collector, is the same: names, labels,
// values, and each bucket of the histograms with its bounds. After Stop no pushed series is left.
func TestPush(t *testing.T) {
	program(t, "collector")
	all := registry.New(newEverything(rand.New(rand.NewPCG(7, 7))))
	page := free(t, 1)[0]
	defer must.Get(registry.Listen(page, nil, all, nil, nil, slog.New(slog.DiscardHandler)))(t)()
	s := prometheusServer(t,
		fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n- {job_name: scrape, scrape_native_histograms: true, static_configs: [{targets: [%q]}]}\n", page))
	ways := map[string]string{"write": "http://" + s.address + "/api/v1/write",
		"otlp":      "http://" + s.address + "/api/v1/otlp/v1/metrics",
		"collector": "http://" + s.collector() + "/v1/metrics"}
	pushers := map[string]*push.Pusher{}
	var log bytes.Buffer
	for job, to := range ways {
		r := must.Get(push.Choose(to, time.Second, func(string) string { return "" }))(t)
		p := push.New(push.Options{To: r, Job: job, Instance: page, Start: time.Now(), Gather: all.Gather,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		p.Start()
		pushers[job] = p
	}
	selector := func(job string) string {
		return `{__name__=~"rebound_.*", __name__!="rebound_build_info", job="` + job + `"}`
	}
	var want vector
	until(t, "the scrape", func() error {
		var err error
		if want, err = s.query(selector("scrape")); err == nil && len(want) < 20*8 {
			err = fmt.Errorf("%d series", len(want))
		}
		return err
	})
	buckets := 0
	for _, v := range want {
		buckets += len(v.Buckets)
	}
	if buckets < 10000 {
		t.Errorf("the scrape has %d buckets", buckets)
	}
	for job := range ways {
		until(t, job, func() error {
			got, err := s.query(selector(job))
			if err != nil {
				return err
			}
			return differences(got, want)
		})
		t.Logf("%s: the same %d series and %d buckets as the scrape", job, len(want), buckets)
	}
	for job, p := range pushers {
		p.Stop()
		if pushes, failures := p.Counts(); failures > 0 || pushes < 2 {
			t.Errorf("%s: %d pushes, %d failures\n%s", job, pushes, failures, &log)
		}
		until(t, job+": its series end", func() error {
			got, err := s.query(selector(job))
			if err == nil && len(got) > 0 {
				err = fmt.Errorf("%d are left: %v", len(got), slices.Collect(maps.Keys(got)))
			}
			return err
		})
	}
}

func differences(got, want vector) error {
	var all []string
	for name, w := range want {
		if g, ok := got[name]; !ok {
			all = append(all, name+" is missing")
		} else if g.Number != w.Number || g.Count != w.Count || g.Sum != w.Sum || !maps.Equal(g.Buckets, w.Buckets) {
			all = append(all, fmt.Sprintf("%s: %v, want %v", name, g, w))
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			all = append(all, name+" is not scraped")
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return fmt.Errorf("%d differences of %d: %.1000s", len(all), len(want), strings.Join(all, "\n"))
}

// A watch pushes the series that its page has, answers at once while its receiver is away, and pushes again when it is
// back.
func TestWatch(t *testing.T) {
	program(t, "prometheus")
	if *watch == "" {
		*watch = filepath.Join(t.TempDir(), "watch")
		if out, err := exec.Command("go", "build", "-C", "../../..", "-o", *watch,
			"./cmd/watch").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	echo := must.Get(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer echo.Close()
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := echo.ReadFrom(b)
			if err != nil {
				return
			}
			echo.WriteTo(b[:n], from)
		}
	}()
	pages := free(t, 2)
	s := prometheusServer(t,
		fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs:\n- {job_name: scrape, scrape_native_histograms: true, static_configs: [{targets: [%q, %q]}]}\n", pages[0], pages[1]))
	front := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t) // between the watches and Prometheus, until it is closed
	gone := forward(front, s.address)
	var watches []*running
	ways := []string{"write", "otlp/v1/metrics"}
	for i, way := range ways { // they are on one host
		w := start(t, []string{"OTEL_RESOURCE_ATTRIBUTES=service.instance.id=" + way}, *watch, "-transport", "socket",
			"-target", "udp:"+echo.LocalAddr().String(), "-rate", "20", "-listen", pages[i], "-push-url",
			"http://"+front.Addr().String()+"/api/v1/"+way,
			"-push-interval", "1s")
		watches = append(watches, w)
	}
	names := func(job string) (map[string]bool, error) {
		v, err := s.query(`count by (__name__, target, proto, kind, place, wire) ({__name__=~"rebound_.*|process_.*", job="` + job + `"})`)
		all := map[string]bool{}
		for name, n := range v {
			all[fmt.Sprint(name, n.Number)] = true
		}
		return all, err
	}
	until(t, "both ways have the same series", func() error {
		scraped, err := names("scrape")
		if err != nil {
			return err
		}
		pushed, err := names("rebound-watch")
		if err != nil {
			return err
		}
		if len(scraped) < 25 || !maps.Equal(scraped, pushed) {
			return fmt.Errorf("%d and %d: %v\n%v", len(scraped), len(pushed), scraped, pushed)
		}
		return nil
	})
	trips := func(job string) float64 {
		n := 0.0
		for _, x := range must.Get(s.query(`min(histogram_count(rebound_rtt_seconds{job="` + job + `"}))`))(t) {
			fmt.Sscan(x.Number, &n)
		}
		return n
	}
	gone()
	front.Close()
	counted := func(query string) func() error {
		return func() error {
			v, err := s.query(query)
			if err == nil && len(v) != 2 {
				err = fmt.Errorf("%v", v)
			}
			return err
		}
	}
	before := trips("scrape")
	until(t, "failures are counted", counted(`rebound_push_failures_total{job="scrape"} > 2`))
	until(t, "probes continue meanwhile", func() error {
		if now := trips("scrape"); now < before+20 {
			return fmt.Errorf("%v after %v", now, before)
		}
		return nil
	})
	front = must.Get(net.Listen("tcp", front.Addr().String()))(t)
	defer front.Close()
	defer forward(front, s.address)()
	now := trips("scrape")
	until(t, "it is pushed again", func() error {
		if n := trips("rebound-watch"); n < now {
			return fmt.Errorf("%v of %v", n, now)
		}
		return nil
	})
	for _, w := range watches {
		if err := w.stop(); err != nil {
			t.Errorf("%v", err)
		}
		text, err := os.ReadFile(w.log)
		if err != nil || !strings.Contains(string(text), "cannot push metrics") ||
			!strings.Contains(string(text), "pushed again") {
			t.Errorf("%v, log:\n%s", err, text)
		}
	}
}

// forward connects each client of a listener to an address. The function that it returns ends all connections.
func forward(l net.Listener, to string) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			context.AfterFunc(ctx, func() { c.Close(); s.Close() })
			go func() { io.Copy(s, c); s.Close() }()
			go func() { io.Copy(c, s); c.Close() }()
		}
	}()
	return cancel
}
