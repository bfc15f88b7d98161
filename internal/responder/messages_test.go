package responder

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// adapters serves two EFA models on one wire from a separate process, and returns their devices. Call end once all
// drivers are gone: it returns the models' violations.
func adapters(t *testing.T, model string) (here, there string, end func() []string) {
	t.Helper()
	dir := t.TempDir()
	here, there = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	c := programs.Start(t, exec.Command(programs.Path(t, "simnic"), "-model", model, "-socket", here, "-model", model, "-socket", there, "-wire", "pair", "-counts", "-strict=false"), nil)
	if l, err := c.Lines.ReadString('\n'); err != nil || !strings.HasPrefix(c.Ready, "ready ") || !strings.HasPrefix(l, "ready ") {
		t.Fatalf("simnic: %q, %q, %v\n%s", c.Ready, l, err, c.Log)
	}
	return "vfio-user:" + here, "vfio-user:" + there, func() (all []string) {
		t.Helper()
		must.OK(t, c.Process.Signal(unix.SIGINT))
		var counts struct {
			Ports []struct{ Violations []string }
		}
		must.OK(t, json.NewDecoder(c.Lines).Decode(&counts))
		c.Wait()
		for _, p := range counts.Ports {
			all = append(all, p.Violations...)
		}
		return all
	}
}

func respondTo(t *testing.T, device string, sets ...string) *process {
	t.Helper()
	return startOn(t, device, append([]string{"respond.handover=127.0.0.1:0", "respond.stamp_messages=true"}, sets...)...)
}

// startOn starts a responder on a device of no namespace.
func startOn(t *testing.T, device string, sets ...string) *process {
	t.Helper()
	args := []string{"-set", "nic.device=" + device}
	for _, s := range sets {
		args = append(args, "-set", s)
	}
	return &process{programs.Start(t, exec.Command(program(t), args...), nil)}
}

// halt stops the process, and returns when all of its threads have stopped.
func (p *process) halt(t *testing.T) {
	t.Helper()
	must.OK(t, p.Process.Signal(unix.SIGSTOP))
	await.Until(t, "the process to stop", func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Process.Pid))
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if _, rest, _ := strings.Cut(string(b), ") "); err == nil && !strings.HasPrefix(rest, "T") {
				return false
			}
		}
		return len(tasks) > 0
	})
}

func (p *process) port(t *testing.T, service string) string {
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
	bench := programs.Path(t, "bench")
	folder := filepath.Join(t.TempDir(), "report")
	p := respondTo(t, here, "stats.report="+folder)
	want := regexp.MustCompile(`^ready driver=efa device=vfio-user:\S+ gid=fe80::\S+ qkey=0x11111111 ud=\d+ srd=\d+ stamp-ud=\d+ stamp-srd=\d+ handover=ud@\S+,srd@\S+,stamp-ud@\S+,stamp-srd@\S+\n$`)
	if !want.MatchString(p.Ready) {
		t.Errorf("ready line %q", p.Ready)
	}
	run := func(args ...string) *report.Report {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "run")
		c := exec.Command(bench, append([]string{"run", "-driver", "efa", "-iface", there, "-target", "127.0.0.1", "-count", "40", "-timeout", "20s",
			"-warmup", "0s", "-runs", "1", "-self-test", "0s", "-out", dir}, args...)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("bench %v: %v\n%s", args, err, out)
		}
		r := must.Get(report.Read(dir))(t)
		return r
	}
	for _, c := range []struct {
		proto string
		size  int
		args  []string
	}{{"ud", 8, nil}, {"srd", 8, nil}, {"srd", 4096, []string{"-size", "4096"}}, {"srd", 80, []string{"-size", "80", "-rate", "100"}},
		{"stamp-ud", 44, nil}, {"stamp-srd", 100, []string{"-size", "100"}}} {
		r := run(append([]string{"-proto", c.proto, "-port", p.port(t, c.proto)}, c.args...)...)
		if r.Counts.Sent != 40 || r.Counts.Received+r.Counts.Late != 40 || r.Counts.Corrupt != 0 || r.Traffic.Protocol != c.proto ||
			r.Traffic.FrameSize != c.size || r.Traffic.Transport != "message" || r.Metric != report.RoundTrip || r.Device.Driver != "efa" || r.Device.Backend != "sim" {
			t.Errorf("%s: %+v, %+v, %s, %+v", c.proto, r.Counts, r.Traffic, r.Metric, r.Device)
		}
	}
	must.OK(t, p.Process.Kill())
	p.Wait()
	p = respondTo(t, here, "stats.report="+folder)
	if r := run("-proto", "srd", "-port", p.port(t, "srd")); r.Counts.Lost != 0 {
		t.Errorf("after a kill: %+v", r.Counts)
	}
	s, code := p.stop(t, unix.SIGTERM)
	if code != 0 || count(t, s, "message") < 40 || count(t, s, "refused") != 0 {
		t.Errorf("exit code %d\n%s\n%s", code, s, p.Log)
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
	for _, v := range end() {
		if !strings.Contains(v, "DMA while bus mastering is off") { // of the killed one
			t.Error("violation: ", v)
		}
	}
}

// Impossible settings are refused with the key, before or right after the device is opened.
func TestMessageSettings(t *testing.T) {
	here, there, _ := adapters(t, "efa")
	_ = there
	for _, c := range []struct {
		sets []string
		code int
		want string
	}{
		{[]string{"nic.driver=efa", "nic.device=" + here, "respond.addresses=10.0.0.2/24"}, 2, "respond.addresses: has to be empty: efa carries messages"},
		{[]string{"nic.device=" + here, "respond.addresses=10.0.0.2/24"}, 2, "respond.addresses: has to be empty: efa carries messages"},
		{[]string{"nic.driver=ena", "nic.device=" + here}, 2, "respond.addresses: is empty"},
		{[]string{"nic.driver=ena", "nic.device=" + here, "respond.addresses=10.0.0.2/24"}, 1, "is not an ENA"},
		{[]string{"nic.device=lo", "respond.addresses=10.0.0.2/24", "respond.handover=127.0.0.1:1"}, 2, "respond.handover: is for devices that carry messages"},
		{[]string{"nic.device=lo", "respond.addresses=10.0.0.2/24", "respond.stamp_messages=true"}, 2, "respond.stamp_messages: is for devices that carry messages"},
		{[]string{"nic.device=" + here, "respond.handover=0.0.0.0:18515"}, 2, "is not the address of one host"},
		{[]string{"nic.device=" + here, "respond.handover=192.0.2.1:18515"}, 1, "respond.handover: hand-over of ud"},
		{[]string{"nic.device=" + here, "nic.qkey=0"}, 2, "is not a Q_Key"},
		{[]string{"nic.driver=efa", "nic.device=eth0"}, 2, "efa drives a PCI function"},
		{[]string{"nic.driver=efa", "nic.device=" + here, "nic.push=llq"}, 1, `push mode "llq": want one of auto, off`},
	} {
		var args []string
		for _, s := range c.sets {
			args = append(args, "-set", s)
		}
		cmd := exec.Command(program(t), args...)
		timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
		out, _ := cmd.CombinedOutput()
		timer.Stop()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s", fmt.Sprint(c.sets), code, c.code, c.want, out)
		}
	}
}
