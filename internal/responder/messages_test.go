package responder

import (
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// adapters serves two models on one wire from a separate process, and returns their devices. Call end once all drivers
// are gone, one of which may have been killed: it fails the test for any other violation.
func adapters(t *testing.T, model string) (here, there string, end func()) {
	t.Helper()
	dir := t.TempDir()
	here, there = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	c := programs.Start(t, exec.Command(programs.Path(t, "simnic"), "-model", model, "-socket", here, "-model", model,
		"-socket", there, "-wire", "pair", "-counts", "-strict=false"), nil)
	if l, err := c.Lines.ReadString('\n'); err != nil || !strings.HasPrefix(c.Ready, "ready ") ||
		!strings.HasPrefix(l, "ready ") {
		t.Fatalf("simnic: %q, %q, %v\n%s", c.Ready, l, err, c.Log)
	}
	return "vfio-user:" + here, "vfio-user:" + there, func() {
		t.Helper()
		must.OK(t, c.Process.Signal(unix.SIGINT))
		var counts struct {
			Ports []struct{ Violations []string }
		}
		must.OK(t, json.NewDecoder(c.Lines).Decode(&counts))
		c.Wait()
		for _, p := range counts.Ports {
			for _, v := range p.Violations {
				if !strings.Contains(v, "DMA while bus mastering is off") { // of the killed one
					t.Error("violation: ", v)
				}
			}
		}
	}
}

// bench runs the bench, and returns its report.
func bench(t *testing.T, args ...string) *report.Report {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	args = append([]string{"run", "-timeout", "20s", "-warmup", "0s", "-runs", "1", "-self-test", "0s", "-out", dir},
		args...)
	c := exec.Command(programs.Path(t, "bench"), args...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("bench %v: %v\n%s", args, err, out)
	}
	return must.Get(report.Read(dir))(t)
}

// startOn starts a responder on a device of no namespace.
func startOn(t *testing.T, device string, sets ...string) *child {
	t.Helper()
	return &child{programs.Start(t, exec.Command(program(t), set(append(sets, "nic.device="+device)...)...), nil)}
}

// halt stops the process, and returns when all of its threads have stopped.
func (p *child) halt(t *testing.T) {
	t.Helper()
	must.OK(t, p.Process.Signal(unix.SIGSTOP))
	await.Until(t, "the process to stop", func() bool {
		for _, status := range threads(t, p.Process.Pid) {
			if !strings.HasPrefix(status["State"], "T") {
				return false
			}
		}
		return true
	})
}

func (p *child) port(t *testing.T, service string) string {
	t.Helper()
	m := regexp.MustCompile(`[=,]` + service + `@127\.0\.0\.1:(\d+)`).FindStringSubmatch(p.Ready)
	if m == nil {
		t.Fatalf("no %s in %q", service, p.Ready)
	}
	return m[1]
}

// On a pair of EFA models, the bench finds the responder by the hand-over and is answered over both transports,
// including STAMP. After a responder is killed, the next one works.
func TestAnswersMessages(t *testing.T) {
	needs.Long(t)
	here, there, end := adapters(t, "efa3")
	folder := filepath.Join(t.TempDir(), "report")
	start := func() *child {
		return startOn(t, here, "respond.handover=127.0.0.1:0", "respond.stamp_messages=true", "stats.report="+folder)
	}
	p := start()
	want := regexp.MustCompile(
		`^ready driver=efa device=vfio-user:\S+ gid=fe80::\S+ qkey=0x11111111 ud=\d+ srd=\d+ stamp-ud=\d+ stamp-srd=\d+ handover=ud@\S+,srd@\S+,stamp-ud@\S+,stamp-srd@\S+\n$`)
	if !want.MatchString(p.Ready) {
		t.Errorf("ready line %q", p.Ready)
	}
	run := func(proto string, args ...string) *report.Report {
		t.Helper()
		return bench(t, append(args, "-driver", "efa", "-iface", there, "-target", "127.0.0.1", "-count", "40",
			"-proto", proto,
			"-port", p.port(t, proto))...)
	}
	for _, c := range []struct {
		proto string
		size  int
		args  []string
	}{{"ud", 8, nil}, {"srd", 8, nil}, {"srd", 4096, []string{"-size", "4096"}},
		{"srd", 80, []string{"-size", "80", "-rate", "100"}},
		{"stamp-ud", 44, nil}, {"stamp-srd", 100, []string{"-size", "100"}}} {
		r := run(c.proto, c.args...)
		if r.Counts.Sent != 40 || r.Counts.Received+r.Counts.Late != 40 || r.Counts.Corrupt != 0 ||
			r.Traffic.Protocol != c.proto ||
			r.Traffic.FrameSize != c.size || r.Traffic.Transport != "message" || r.Metric != report.RoundTrip ||
			r.Device.Driver != "efa" || r.Device.Backend != "sim" {
			t.Errorf("%s: %+v, %+v, %s, %+v", c.proto, r.Counts, r.Traffic, r.Metric, r.Device)
		}
	}
	must.OK(t, p.Process.Kill())
	p.Wait()
	p = start()
	check.Equal(t, run("srd").Counts.Lost, 0, "%d lost after a kill")
	if s := p.stop(t, unix.SIGTERM); count(t, s, "message") < 40 || count(t, s, "refused") != 0 {
		t.Errorf("%s\n%s", s, p.Log)
	}
	r, err := report.Read(folder)
	if err != nil || r.Device.Driver != "efa" || r.Metric != report.Turnaround || r.Device.Backend != "sim" {
		t.Errorf("the responder's report: %+v, %v", r, err)
	}
	if l, err := net.Listen("tcp", "127.0.0.1:"+p.port(t, "ud")); err != nil {
		t.Errorf("the hand-over's port is still taken: %v", err)
	} else {
		l.Close()
	}
	end()
}
