package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	meshSize = flag.Int("mesh", 3, "hosts of TestMesh, each a network namespace with a responder and a watch, 2 to 200")
	meshRate = flag.Float64("mesh-rate", 10, "probes a second from each host of TestMesh to each other")
	meshTime = flag.Duration("mesh-time", 24*time.Second,
		"how long TestMesh watches: a half is compared with the half before, in windows of a twelfth of that, two seconds at least")
	meshBin  = flag.String("mesh-bin", "", "folder with the programs for TestMesh, in place of building them")
	meshPage = flag.String("mesh-page", "", "keep the page of TestMesh as this file")
)

// started is a process that the test stops.
type started struct {
	*exec.Cmd
	log *strings.Builder
}

// start starts a program in a namespace. If ready is not empty, it returns once the program has printed a line that
// starts with it.
func start(space, ready string, args ...string) (*started, error) {
	p := &started{exec.Command("ip", append([]string{"netns", "exec", space}, args...)...), &strings.Builder{}}
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.Stderr = p.log
	out, err := p.StdoutPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil || ready == "" {
		return p, err
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, ready) {
		return p, fmt.Errorf("%s: %q, %v\n%s", strings.Join(args, " "), line, err, p.log)
	}
	go lines.WriteTo(new(strings.Builder))
	return p, nil
}

func (p *started) stop() error {
	if p.Process == nil {
		return nil
	}
	p.Process.Signal(syscall.SIGTERM)
	return p.Wait()
}

// TestMesh starts several hosts, each with a responder and a watch of all others, and a Prometheus that scrapes them.
// From its data, rebound-watch matrix draws the page, rebound-watch compare compares a path with itself, the
// dashboards' panels have data, and rebound-watch suspects names a host whose responder was stopped. With -mesh 50 it
// measures the figures of docs/fleet/many-hosts.md.
func TestMesh(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	needPrograms(t, "prometheus", "promtool", "ip")
	n := *meshSize
	if n < 2 || n > 200 {
		t.Fatalf("-mesh %d: want 2 to 200", n)
	}
	bin := *meshBin
	if bin == "" {
		o := packaged(t)
		bin = filepath.Join(o.out, "stage-"+o.arch)
	}
	dir := t.TempDir()
	hub := fmt.Sprintf("rbmesh-%d", os.Getpid())
	space := func(i int) string { return fmt.Sprintf("%s-%d", hub, i) }
	kernel, responder := func(i int) string { return fmt.Sprintf("10.77.1.%d", i) },
		func(i int) string { return fmt.Sprintf("10.77.2.%d", i) }
	var script strings.Builder
	fmt.Fprintf(&script, "ip netns add %[1]s\nip -n %[1]s link set lo up\nip -n %[1]s link add br0 type bridge\nip -n %[1]s addr add 10.77.0.1/16 dev br0\nip -n %[1]s link set br0 up\n", hub)
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&script, "ip netns add %[2]s\nip -n %[2]s link add eth0 type veth peer name p%[3]d netns %[1]s\nip -n %[1]s link set p%[3]d master br0 up\n"+
			"ip -n %[2]s addr add %[4]s/16 dev eth0\nip -n %[2]s link set lo up\nip -n %[2]s link set eth0 up\n", hub,
			space(i), i, kernel(i))
	}
	t.Cleanup(func() {
		for i := 1; i <= n; i++ {
			exec.Command("ip", "netns", "del", space(i)).Run()
		}
		exec.Command("ip", "netns", "del", hub).Run()
	})
	must(t, sh(script.String()))

	var all []*started
	run := func(in, ready string, args ...string) *started {
		t.Helper()
		p, err := start(in, ready, args...)
		all = append(all, p)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	t.Cleanup(func() {
		for _, p := range all {
			if p.ProcessState == nil && p.Process != nil {
				p.Process.Kill()
				p.Wait()
			}
		}
	})
	var watches, responders []*started
	for i := 1; i <= n; i++ {
		responders = append(responders, run(space(i), "ready driver=xdp", filepath.Join(bin, "rebound-responder"),
			"-set", "nic.device=eth0", "-set", "nic.driver=xdp", "-set",
			"respond.addresses="+responder(i)+"/16", "-set", "cpu.lock_memory=false", "-set", "log.level=error"))
	}
	var groups strings.Builder // the same for all watches, this host's own included
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&groups, "- targets: [%s]\n  labels: {to: h%d, node: h%[2]d, zone: z%d}\n", responder(i), i, i%2)
	}
	fleet := filepath.Join(dir, "fleet.yml")
	must(t, os.WriteFile(fleet, []byte(groups.String()), 0o644))
	var scrape []string
	for i := 1; i <= n; i++ {
		address := kernel(i) + ":9470"
		scrape = append(scrape, fmt.Sprintf("      - targets: [%q]\n        labels: {from: h%d}\n", address, i))
		watches = append(watches, run(space(i), "watching", filepath.Join(bin, "rebound-watch"), "-file-sd", fleet,
			"-peers", "200", "-self", fmt.Sprintf("h%d", i), "-proto", "icmp", "-rate",
			strconv.FormatFloat(*meshRate, 'g', -1, 64),
			"-listen", address, "-core", strconv.Itoa(i%runtime.NumCPU()), "-driver", "afpacket", "-dir",
			filepath.Join(dir, fmt.Sprintf("logs-%d", i)), "-interval", "1s", "-schema", "3", "-log-level", "warn"))
	}
	every := max(*meshTime/2/12, 2*time.Second)
	rules := value(filepath.Abs("../fleet/deploy/prometheus/fleet.rules.yml"))(t)
	config := fmt.Sprintf("global:\n  scrape_interval: %v\n  scrape_timeout: %[1]v\n  evaluation_interval: %[1]v\nrule_files: [%[3]s]\nscrape_configs:\n  - job_name: rebound-watch\n    static_configs:\n%[2]s  - job_name: prometheus\n    static_configs:\n      - targets: [\"127.0.0.1:9090\"]\n", every, strings.Join(scrape, ""), rules)
	must(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o644))
	server := run(hub, "", "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:9090", "--enable-feature=native-histograms", "--log.level=error")

	s := &scraped{t, hub}
	paths := float64(n * (n - 1))
	s.eventually(`count(rebound_probes_total > 0)`, func(v map[string]float64) bool { return v["map[]"] == paths })
	begun := time.Now()
	time.Sleep(*meshTime + every)
	at := begun.Add(*meshTime + every/2)
	half := *meshTime / 2
	windows := int(half / every)

	page := filepath.Join(dir, "matrix.html")
	if *meshPage != "" {
		page = *meshPage
	}
	ask := func(args ...string) (string, error) {
		out, err := s.in(append([]string{filepath.Join(bin, "rebound-watch")}, args...)...).CombinedOutput()
		return string(out), err
	}
	out, err := ask("matrix", "-prom", "http://127.0.0.1:9090", "-at", at.UTC().Format(time.RFC3339), "-range",
		half.String(), "-before", half.String(), "-windows", strconv.Itoa(windows),
		"-out", page)
	if err != nil || !strings.Contains(out, fmt.Sprintf("\n%d paths: ", int(paths))) {
		t.Fatalf("rebound-watch matrix: %v\n%s", err, out)
	}
	t.Logf("%s", last(out, 4))
	html, err := os.ReadFile(page)
	if err != nil || strings.Count(string(html), "<td class=\"h") != int(paths) {
		t.Errorf("the page has %d cells, %v", strings.Count(string(html), "<td class=\"h"), err)
	}
	target := fmt.Sprintf("prom:http://127.0.0.1:9090?target=icmp:%s&instance=%s:9470&windows=%d", responder(2),
		kernel(1), windows)
	a := fmt.Sprintf("%s&from=%d&to=%d", target, at.Add(-2*half).Unix(), at.Add(-half).Unix())
	b := fmt.Sprintf("%s&from=%d&to=%d", target, at.Add(-half).Unix(), at.Unix())
	out, err = ask("compare", "-v", a, b)
	if err != nil || strings.Contains(out, "NOT COMPARABLE") || !strings.Contains(out, "p50") ||
		!strings.Contains(out, "counts as one run") {
		t.Errorf("rebound-watch compare: %v\n%s", err, out)
	}
	panels(t, s, "../fleet/deploy/prometheus/watch.json", "Loss by direction", "Changed", "Not probed",
		"Whose slow round trips", "Slow round trips")
	panels(t, s, "../fleet/deploy/prometheus/fleet.json", "Outages", "Paths with loss", "Change since yesterday")
	meshFigures(t, s, watches, server)
	if out, err := ask("suspects", "-prom", "http://127.0.0.1:9090"); err != nil ||
		!strings.Contains(out, ": no suspect") {
		t.Errorf("rebound-watch suspects without a fault: %v\n%s", err, out)
	}
	if err := responders[0].stop(); err != nil {
		t.Errorf("%v\n%s", err, responders[0].log)
	}
	want := fmt.Sprintf("  host h1: the paths to it down; explains %d failures; ", n-1)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Second) {
		out, err := ask("suspects", "-prom", "http://127.0.0.1:9090")
		if err == nil && strings.Contains(out, ": 1 suspect\n"+want) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("rebound-watch suspects does not name h1, whose responder was stopped: %v\n%s", err, out)
		}
	}
	for _, p := range append(watches, responders[1:]...) {
		if err := p.stop(); err != nil {
			t.Errorf("%s: %v\n%s", strings.Join(p.Args, " "), err, p.log)
		}
	}
	if server.stop(); server.log.Len() > 0 {
		t.Errorf("prometheus: %s", server.log)
	}
}

func meshFigures(t *testing.T, s *scraped, watches []*started, server *started) {
	t.Helper()
	resident := func(p *started) int {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "VmRSS:" {
				n, _ := strconv.Atoi(f[1])
				return n
			}
		}
		return 0
	}
	sum := 0
	for _, w := range watches {
		sum += resident(w)
	}
	t.Logf("watches: %d MiB resident each; Prometheus: %d MiB", sum/1024/len(watches), resident(server)/1024)
	for _, q := range []string{
		`avg(rate(process_cpu_seconds_total{job="rebound-watch"}[30s]))`,
		`rate(process_cpu_seconds_total{job="prometheus"}[30s])`,
		`avg(scrape_samples_scraped{job="rebound-watch"})`, `avg(scrape_duration_seconds{job="rebound-watch"})`,
		`prometheus_tsdb_head_series`,
		`sum(rate(rebound_probes_total[30s]))`, `sum(increase(rebound_lost_total[30s]))`,
		`histogram_quantile(0.5, sum(rate(rebound_rtt_seconds[30s])))`,
		`histogram_quantile(0.99, sum(rate(rebound_rtt_seconds[30s])))`,
		`histogram_quantile(0.99, sum(rate(rebound_watch_lag_seconds[30s])))`, `avg(rebound_watch_disk_bytes)`,
		`prometheus_tsdb_wal_storage_size_bytes`, `rate(prometheus_tsdb_head_samples_appended_total[30s])`,
	} {
		v, err := s.query(q)
		if err != nil {
			t.Errorf("%s: %v", q, err)
		}
		t.Logf("%s: %v", q, v)
	}
}

func last(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
