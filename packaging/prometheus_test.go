package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func needPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			t.Skipf("needs %s, which is not installed (apt install prometheus)", n)
		}
	}
}

func TestRules(t *testing.T) {
	needPrograms(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "../fleet/deploy/prometheus/rebound.rules.yml"},
		{"test", "rules", "../fleet/deploy/prometheus/rebound.rules_test.yml"},
		{"check", "rules", "../fleet/deploy/prometheus/fleet.rules.yml"},
		{"test", "rules", "../fleet/deploy/prometheus/fleet.rules_test.yml"},
		{"check", "config", "--syntax-only", "../fleet/deploy/prometheus/prometheus.yml"},
	} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// scraped is a responder in its own network with a client that pings it, and a Prometheus that scrapes it.
type scraped struct {
	t     *testing.T
	space string
}

func (s *scraped) in(args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", s.space}, args...)...)
}

func (s *scraped) query(expression string) (map[string]float64, error) {
	out, err := s.in("promtool", "query", "instant", "-o", "json", "http://127.0.0.1:9090", expression).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var list []struct {
		Metric map[string]string
		Value  [2]any
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	values := map[string]float64{}
	for _, e := range list {
		delete(e.Metric, "instance")
		text, _ := e.Value[1].(string) // a native histogram has none
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			v = math.NaN()
		}
		values[fmt.Sprint(e.Metric)] = v
	}
	return values, nil
}

func (s *scraped) eventually(expression string, good func(map[string]float64) bool) map[string]float64 {
	s.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(300 * time.Millisecond) {
		v, err := s.query(expression)
		if err == nil && good(v) {
			return v
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %v, %v", expression, v, err)
		}
	}
}

// wire makes a namespace, with an interface eth1 whose other end is in the namespace with -far behind its name, until
// the test ends.
func wire(t *testing.T, space string) {
	t.Helper()
	t.Cleanup(func() { sh(fmt.Sprintf("ip netns del %[1]s; ip netns del %[1]s-far", space)) })
	must(t, sh(fmt.Sprintf("ip netns add %[1]s; ip netns add %[1]s-far; ip -n %[1]s link set lo up; ip -n %[1]s link add eth1 type veth peer name peer0 netns %[1]s-far; "+
		"ip -n %[1]s link set eth1 up; ip -n %[1]s-far addr add 10.9.0.1/24 dev peer0; ip -n %[1]s-far link set peer0 up", space)))
}

// Debian's Prometheus scrapes a confined responder, and its quantile of the turnaround equals the responder's own.
// promtool accepts the page. Each dashboard panel has a valid query, and one that is not about errors has data.
func TestScrape(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	needPrograms(t, "prometheus", "promtool", "ping", "ip", "curl")
	o := packaged(t)
	s := &scraped{t, fmt.Sprintf("rebound-prom-%d", os.Getpid())}
	far := s.space + "-far"
	wire(t, s.space)

	responder := s.in(filepath.Join(o.out, "stage-"+o.arch, "rebound-responder"), "-set", "nic.device=eth1", "-set",
		"respond.addresses=10.9.0.2/24", "-set",
		"nic.driver=afpacket", "-set", "stats.listen=127.0.0.1:9469", "-set", "trust.confine=require")
	var log strings.Builder
	responder.Stderr = &log
	stdout := value(responder.StdoutPipe())(t)
	must(t, responder.Start())
	t.Cleanup(func() {
		if responder.ProcessState == nil {
			responder.Process.Kill()
			responder.Wait()
		}
	})
	lines := bufio.NewReader(stdout)
	if line, err := lines.ReadString('\n'); err != nil {
		t.Fatalf("%q, %v\n%s", line, err, log.String())
	}

	config := value(os.ReadFile("../fleet/deploy/prometheus/prometheus.yml"))(t)
	text := strings.NewReplacer("10.0.0.10:9469", "127.0.0.1:9469", "scrape_interval: 15s",
		"scrape_interval: 1s\n  evaluation_interval: 1s").Replace(string(config))
	dir := t.TempDir()
	rules := value(os.ReadFile("../fleet/deploy/prometheus/rebound.rules.yml"))(t)
	for name, content := range map[string]string{"prometheus.yml": text, "rebound.rules.yml": string(rules)} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	server := s.in("prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:9090", "--enable-feature=native-histograms", "--log.level=warn")
	var serverLog strings.Builder
	server.Stderr = &serverLog
	must(t, server.Start())
	t.Cleanup(func() { server.Process.Signal(syscall.SIGTERM); server.Wait() })

	s.eventually(`up{job="rebound"}`, func(v map[string]float64) bool {
		return len(v) == 1 &&
			v["map[__name__:up job:rebound]"] == 1
	})
	const pings = 200
	if out, err := exec.Command("ip", "netns", "exec", far, "ping", "-q", "-c", strconv.Itoa(pings), "-i", "0.01", "-W",
		"5", "10.9.0.2").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, log.String())
	}
	answered := s.eventually(`sum(rebound_answered_total{kind="icmpv4"})`,
		func(v map[string]float64) bool { return v["map[]"] >= pings })

	// Prometheus may just have scraped, and the page's rate is limited.
	page := value(s.in("curl", "-sf", "--retry", "20", "--retry-delay", "1", "--retry-all-errors",
		"http://127.0.0.1:9469/metrics").Output())(t)
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(string(page))
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
	for _, want := range []string{`rebound_turnaround_seconds_bucket{queue="0",le="1e-05"} `, "rebound_build_info{",
		"process_resident_memory_bytes "} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page for those without native histograms has no %s", want)
		}
	}

	// The page was requested after the last ping. Prometheus must have scraped the same count before its quantile is
	// compared with the responder's own.
	recorded := regexp.MustCompile(`(?m)^rebound_turnaround_seconds_count\{queue="0"\} (\S+)$`).FindSubmatch(page)
	if recorded == nil {
		t.Fatalf("no count of turnarounds on the page:\n%s", page)
	}
	all := value(strconv.ParseFloat(string(recorded[1]), 64))(t)
	s.eventually(`sum(histogram_count(rebound_turnaround_seconds))`,
		func(v map[string]float64) bool { return v["map[]"] >= all })
	quantiles := map[string]float64{}
	for name, q := range map[string]string{"p50": "0.5", "p90": "0.9", "p99": "0.99"} {
		v := s.eventually(`histogram_quantile(`+q+`, rebound_turnaround_seconds)`,
			func(v map[string]float64) bool { return len(v) == 1 })
		for _, x := range v {
			quantiles[name] = x
		}
	}
	panels(t, s, "../fleet/deploy/prometheus/dashboard.json", "Refused", "What had the polling cores")

	must(t, responder.Process.Signal(syscall.SIGTERM))
	var summary strings.Builder
	lines.WriteTo(&summary)
	if err := responder.Wait(); err != nil {
		t.Errorf("%v\n%s", err, log.String())
	}
	own := regexp.MustCompile(`(?m)^turnaround +([\d,]+) +(\S+ .?s) +(\S+ .?s) +(\S+ .?s)`).FindStringSubmatch(
		summary.String())
	if own == nil {
		t.Fatalf("no turnaround in\n%s", summary.String())
	}
	for i, name := range []string{"p50", "p90", "p99"} {
		d, err := time.ParseDuration(strings.ReplaceAll(own[2+i], " ", ""))
		must(t, err)
		ns := float64(d.Nanoseconds())
		if got := quantiles[name] * 1e9; math.Abs(got-ns) > 0.02*ns+1 {
			t.Errorf("%s: Prometheus says %.0f ns, the responder %.0f ns", name, got, ns)
		}
	}
	t.Logf("%v answered; Prometheus: %v; the responder: %s", answered, quantiles, own[0])
	if serverLog.Len() > 0 {
		t.Errorf("prometheus: %s", serverLog.String())
	}
}

func panels(t *testing.T, s *scraped, dashboard string, trouble ...string) {
	t.Helper()
	b := value(os.ReadFile(dashboard))(t)
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, RefID string }
		}
	}
	must(t, json.Unmarshal(b, &d))
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: id %d, place %+v", p.Title, p.ID, p.GridPos)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			e := strings.NewReplacer("$__rate_interval", "30s", "$instance", ".*").Replace(target.Expr)
			v, err := s.query(e)
			if err != nil {
				t.Errorf("panel %q: %s: %v", p.Title, e, err)
			} else if len(v) == 0 && !slices.Contains(trouble, p.Title) {
				// A scrape too soon after a late one was refused, so there is no data until the next.
				t.Logf("panel %q: %s: no answer yet", p.Title, e)
				s.eventually(e, func(v map[string]float64) bool { return len(v) > 0 })
			}
		}
	}
	if len(d.Panels) < 8 {
		t.Errorf("%d panels", len(d.Panels))
	}
}
