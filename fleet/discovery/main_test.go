package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
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

	"github.com/prometheus/prometheus/config"
)

const node = `
  relabel_configs:
  - {source_labels: [__meta_kubernetes_node_label_topology_kubernetes_io_zone], target_label: zone}
  - {source_labels: [__meta_kubernetes_node_name], target_label: node}
  - {source_labels: [__address__], regex: '(.*):\d+', target_label: __address__, replacement: '$1'}
`

// A configuration may be whole, or only its scrape_configs, or only their list. Errors name the file.
func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.yml")
	for text, want := range map[string]string{
		"global: {scrape_interval: 5s}\nscrape_configs:\n- job_name: a\n  static_configs: [{targets: ['h:1']}]\n": "a",
		"scrape_configs:\n- job_name: a\n- job_name: b\n":                                                         "a b",
		"# a list\n\n- job_name: k\n  kubernetes_sd_configs: [{role: node}]\n" + node:                             "k",
		"---\n- job_name: k\n": "k",
		"- job_name: k\n  ec2_sd_configs: [{region: eu-west-1}]\n- job_name: c\n  consul_sd_configs: [{server: 'c:8500'}]\n- job_name: d\n  dns_sd_configs: [{names: [x.example]}]\n": "c d k",
		"":                               "no scrape_configs",
		"global: {}\n":                   "no scrape_configs",
		"- job_name: k\n- job_name: k\n": "multiple scrape configs",
		"- job_name: k\n  gopher_sd_configs: []\n":                "gopher_sd_configs",
		"- job_name: k\n  relabel_configs: [{action: nothing}]\n": "nothing",
		"\x00": "yaml",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		jobs, err := load(file, slog.New(slog.DiscardHandler))
		var names []string
		for name := range jobs {
			names = append(names, name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); err == nil && got != want || err != nil &&
			(!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file)) {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
}

// locked is a log that a test reads while it is written.
type locked struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}
func (l *locked) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.Buffer.String() }

// discovering runs follow with a configuration, until the test ends.
type discovering struct {
	t         *testing.T
	conf, out string
	hup       chan os.Signal
	log       locked
}

func discover(t *testing.T, text string) *discovering {
	t.Helper()
	return discoverInto(t, filepath.Join(t.TempDir(), "fleet.json"), text, 50*time.Millisecond)
}

func discoverInto(t *testing.T, out, text string, settle time.Duration) *discovering {
	t.Helper()
	d := &discovering{t: t, conf: filepath.Join(t.TempDir(), "p.yml"), out: out, hup: make(chan os.Signal, 1)}
	d.write(d.conf, text)
	log := slog.New(slog.NewTextHandler(&d.log, nil))
	jobs, err := load(d.conf, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- follow(ctx, jobs, d.out, settle, d.hup, func() (map[string]*config.ScrapeConfig,
			error) {
			return load(d.conf, log)
		}, log)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
	return d
}

func (d *discovering) write(file, text string) {
	d.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// until waits until the file has these targets, each as ADDRESS LABEL=VALUE..., in order.
func (d *discovering) until(want ...string) {
	d.t.Helper()
	var got []string
	for range 1200 {
		text, err := os.ReadFile(d.out)
		var groups []group
		if err == nil {
			if err := json.Unmarshal(text, &groups); err != nil {
				d.t.Fatalf("a reader sees %q", text)
			}
		}
		got = nil
		for _, g := range groups {
			line := g.Targets[0]
			for _, name := range []string{"__param_proto", "node", "rack", "zone", "job", "instance", "le",
				"__meta_x"} {
				if v, ok := g.Labels[name]; ok {
					line += " " + name + "=" + v
				}
			}
			got = append(got, line)
		}
		if slices.Equal(got, want) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	d.t.Fatalf("the file has %q, want %q\n%s", got, want, d.log.String())
}

// Targets of files and of an HTTP server are merged, relabelled and written; the file follows them and the
// configuration, and an empty discovery leaves it as it is.
func TestFilesAndHTTP(t *testing.T) {
	dir := t.TempDir()
	sd := filepath.Join(dir, "sd.yml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(sd+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(sd+".new", sd); err != nil {
			t.Fatal(err)
		}
	}
	put("- {targets: ['10.0.0.1:9100', '10.0.0.2:9100'], labels: {dc: ams, job: x, le: '1'}}\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `[{"targets": ["10.0.1.1"], "labels": {"zone": "http", "__meta_x": "y"}}]`)
	}))
	defer server.Close()
	const text = `
- job_name: files
  params: {proto: [stamp]}
  file_sd_configs: [{files: ['%s'], refresh_interval: 1s}]
  relabel_configs:
  - {source_labels: [dc], target_label: zone, regex: (.+)}
  - {source_labels: [__address__], action: drop, regex: '%s.*'}
- job_name: http
  http_sd_configs: [{url: '%s', refresh_interval: 1s}]
`
	d := discover(t, fmt.Sprintf(text, sd, "10.9", server.URL))
	d.until("10.0.0.1:9100 __param_proto=stamp zone=ams", "10.0.0.2:9100 __param_proto=stamp zone=ams",
		"10.0.1.1 zone=http")
	if !strings.Contains(d.log.String(), "label=le") {
		t.Errorf("a label of the metrics was left out silently:\n%s", d.log.String())
	}
	put("- {targets: ['10.0.0.3:9100'], labels: {dc: fra}}\n")
	d.until("10.0.0.3:9100 __param_proto=stamp zone=fra", "10.0.1.1 zone=http")
	d.write(d.conf, fmt.Sprintf(text, sd, "10.0.0.3", server.URL))
	d.hup <- os.Interrupt
	put("- {targets: ['10.0.0.3:9100', '10.0.0.4:9100']}\n")
	d.until("10.0.0.4:9100 __param_proto=stamp", "10.0.1.1 zone=http")
	d.write(d.conf, "nonsense: [")
	d.hup <- os.Interrupt
	put("- {targets: ['10.0.0.5:9100']}\n")
	d.until("10.0.0.5:9100 __param_proto=stamp", "10.0.1.1 zone=http")
	d.write(d.conf, fmt.Sprintf(text, sd, "10", "http://127.0.0.1:1"))
	d.hup <- os.Interrupt
	for range 1200 {
		if strings.Contains(d.log.String(), "nothing was discovered") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	d.until("10.0.0.5:9100 __param_proto=stamp", "10.0.1.1 zone=http")
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(d.out), ".rebound*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An empty list is reported once, when it has been empty for a while: at the start, discoveries have not reported yet.
func TestEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &writer{file: filepath.Join(t.TempDir(), "fleet.json"), log: slog.New(slog.NewTextHandler(&log, nil)),
			patience: settle}
		some := []group{{Targets: []string{"10.0.0.1"}}}
		for i, c := range []struct {
			list  []group
			wait  time.Duration
			warns int // in all
		}{{nil, settle - 1, 0}, {some, settle, 0}, {nil, settle + 1, 1}, {nil, settle + 1, 1}, {some, settle, 1},
			{nil, settle + 1, 2}} {
			w.write(c.list)
			time.Sleep(c.wait)
			synctest.Wait()
			if n := strings.Count(log.String(), "nothing was discovered"); n != c.warns {
				t.Errorf("step %d: %d warnings, want %d\n%s", i, n, c.warns, &log)
			}
		}
	})
}

// The file of an earlier process stays while the discoveries of a new one may not have reported everything yet, and is
// then replaced.
func TestRestart(t *testing.T) {
	const before = `[{"targets": ["10.0.0.1"]}, {"targets": ["10.0.0.2"]}]`
	out := filepath.Join(t.TempDir(), "fleet.json")
	if err := os.WriteFile(out, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	const text = "- job_name: a\n  static_configs: [{targets: ['10.0.0.1']}]\n"
	d := discoverInto(t, out, text, time.Hour)
	for range 1200 {
		if strings.Contains(d.log.String(), "stays until") {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	d.until("10.0.0.1", "10.0.0.2")
	d = discoverInto(t, out, text, 50*time.Millisecond)
	d.until("10.0.0.1")
}

// Nodes of an API server become members with name and zone, and follow it.
func TestKubernetes(t *testing.T) {
	object := func(name, address, zone string) map[string]any {
		return map[string]any{"kind": "Node", "apiVersion": "v1",
			"metadata": map[string]any{"name": name, "uid": name, "resourceVersion": "1", "labels": map[string]string{"topology.kubernetes.io/zone": zone}},
			"status": map[string]any{"addresses": []any{map[string]string{"type": "InternalIP", "address": address}},
				"daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]int{"Port": 10250}}}}
	}
	joined := make(chan map[string]any)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		q := r.URL.Query()
		if r.URL.Path != "/api/v1/nodes" {
			http.NotFound(w, r)
			return
		}
		send := func(kind string, o any) {
			json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": o})
			w.(http.Flusher).Flush()
		}
		if q.Get("watch") == "" {
			json.NewEncoder(w).Encode(map[string]any{"kind": "NodeList", "apiVersion": "v1",
				"metadata": map[string]string{"resourceVersion": "1"},
				"items":    []any{object("n1", "10.0.0.1", "a"), object("n2", "10.0.0.2", "b")}})
			return
		}
		if q.Get("sendInitialEvents") == "true" { // a list as a stream
			send("ADDED", object("n1", "10.0.0.1", "a"))
			send("ADDED", object("n2", "10.0.0.2", "b"))
			send("BOOKMARK", map[string]any{"kind": "Node", "apiVersion": "v1",
				"metadata": map[string]any{"resourceVersion": "1",
					"annotations": map[string]string{"k8s.io/initial-events-end": "true"}}})
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case o := <-joined:
				send("ADDED", o)
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	d := discover(t, "- job_name: nodes\n  kubernetes_sd_configs: [{role: node, api_server: '"+server.URL+"'}]\n"+node)
	d.until("10.0.0.1 node=n1 zone=a", "10.0.0.2 node=n2 zone=b")
	joined <- object("n3", "10.0.0.3", "a")
	d.until("10.0.0.1 node=n1 zone=a", "10.0.0.2 node=n2 zone=b", "10.0.0.3 node=n3 zone=a")
}

func TestUsage(t *testing.T) {
	there := filepath.Join(t.TempDir(), "there.json")
	if err := os.WriteFile(there, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, 2, "-config is missing"}, {[]string{"-config", "x", "-out", "y"}, 2, "ends in .json"}, {[]string{"-h"}, 0, "usage: rebound-discover"},
		{[]string{"-config", "/none/such", "-out", "y.json"}, 2, "/none/such"}, {[]string{"x"}, 2, "left over"}, {[]string{"-x"}, 2, "-x"},
		{[]string{"-version"}, 0, "rebound-discover "}, {[]string{"-written"}, 2, "ends in .json"},
		{[]string{"-written", "-out", filepath.Join(t.TempDir(), "x.json")}, 1, "no such file"}, {[]string{"-written", "-out", there}, 0, ""},
	} {
		var out bytes.Buffer
		if code := run(c.args, &out, &out); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%v: exit %d\n%s", c.args, code, &out)
		}
	}
}
