package main

import (
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/net/netutil"
)

// metricsAddress is where a responder or a watch serves its metrics, for this process alone.
const metricsAddress = "127.0.0.1:9470"

// serveWeb serves the pages on a port. They are read-only.
func (a *appliance) serveWeb(port int) (*http.Server, error) {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	pages := http.NewServeMux()
	pages.HandleFunc("GET /{$}", a.index)
	pages.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		s := a.shown.get()
		s.MemoryMB = memoryInUse()
		e.Encode(s)
	})
	pages.HandleFunc("GET /metrics", a.metrics)
	pages.Handle("GET /reports/", http.StripPrefix("/reports/", http.FileServerFS(os.DirFS(run+"/reports"))))
	s := &http.Server{Handler: guarded(pages, a.shown.get), ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10}
	go s.Serve(netutil.LimitListener(l, 32))
	return s, nil
}

// guarded refuses names of other hosts, so that no page in a browser can read these by DNS rebinding.
func guarded(h http.Handler, state func() status) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && host != "localhost" &&
			!strings.EqualFold(strings.Split(host, ".")[0], state().Name) {
			http.Error(w, "use this machine's address or name", http.StatusForbidden)
			return
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Frame-Options", "DENY")
		h.ServeHTTP(w, r)
	})
}

var page = template.Must(template.New("").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{.Name}}: {{.State}}</title><style>body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
pre{overflow-x:auto}</style><main><h1>{{.Name}}: {{.State}}</h1>{{if .Problem}}<p><strong>{{.Problem}}</strong></p>{{end}}<pre>{{.Text}}</pre>
<p><a href="/status">status</a> · <a href="/metrics">metrics</a></p>{{if .Reports}}<h2>Reports</h2><ul>{{range .Reports}}<li><a href="/reports/{{.}}">{{.}}</a></li>{{end}}</ul>{{end}}</main>`))

func (a *appliance) index(w http.ResponseWriter, _ *http.Request) {
	s := a.shown.get()
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	page.Execute(w, struct {
		status
		Text string
	}{s, s.text()})
}

// metrics serves the program's own page, and the appliance's figures after it.
func (a *appliance) metrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if body, err := a.scrape(); err == nil {
		w.Write(body)
	}
	s := a.shown.get()
	fmt.Fprintf(w, "# HELP rebound_appliance_info Constant 1; what runs.\n# TYPE rebound_appliance_info gauge\nrebound_appliance_info{version=%q,kernel=%q,mode=%q} 1\n",
		s.Version, s.Kernel, s.Mode)
	figure := func(kind, name, help string, value float64) {
		fmt.Fprintf(w, "# HELP rebound_appliance_%[1]s %[2]s\n# TYPE rebound_appliance_%[1]s %[3]s\nrebound_appliance_%[1]s %[4]g\n", name, help, kind, value)
	}
	figure("counter", "restarts_total", "Unexpected ends of the program.", float64(s.Restarts))
	figure("gauge", "problem", "Whether the status names a problem.", float64(min(1, len(s.Problem))))
	figure("gauge", "memory_in_use_bytes", "Memory in use without huge pages, files included.", 1e6*memoryInUse())
	figure("gauge", "ready_seconds", "From the start of the kernel to the responder's first ready line.", s.ReadyAfter)
	if s.Core != nil {
		i := a.usage.on(*s.Core)
		figure("counter", "core_interrupts_total", "Interrupts on the polling core.", i.interrupts)
		figure("counter", "core_switches_total", "Time slices that the scheduler began on the polling core.",
			i.switches)
		figure("counter", "core_other_seconds_total",
			"CPU time on the polling core of threads other than the one that used it most.", i.other.Seconds())
	}
}

// scrape returns the program's metrics page.
func (a *appliance) scrape() ([]byte, error) {
	c := http.Client{Timeout: 5 * time.Second}
	r, err := c.Get("http://" + metricsAddress + "/metrics")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s", r.Status)
	}
	return io.ReadAll(io.LimitReader(r.Body, 8<<20))
}

// figures takes what the console shows from a responder's metrics page.
func figures(body []byte, s *status) error {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	total := 0.0
	for _, m := range families["rebound_answered_total"].GetMetric() {
		total += m.GetCounter().GetValue()
	}
	s.Answered = total
	for _, m := range families["rebound_wait_seconds"].GetMetric() {
		for _, q := range m.GetSummary().GetQuantile() {
			text := time.Duration(q.GetValue() * 1e9).String()
			switch q.GetQuantile() {
			case 0.999:
				s.GapP999 = text
			case 1:
				s.GapMax = text
			}
		}
	}
	return nil
}

// temperature returns what the kernel's driver of a device reports, "" if it reports nothing.
func temperature(device string) string {
	dir := "/sys/bus/pci/devices/" + device
	if !strings.Contains(device, ":") {
		dir = "/sys/class/net/" + device + "/device"
	}
	files, _ := filepath.Glob(dir + "/hwmon/hwmon*/temp*_input")
	slices.Sort(files)
	var all []string
	for _, f := range files {
		b, err := os.ReadFile(f)
		var milli int
		if _, e := fmt.Sscan(string(b), &milli); err == nil && e == nil {
			all = append(all, fmt.Sprintf("%.0f °C", float64(milli)/1000))
		}
	}
	return strings.Join(all, ", ")
}
