package responder

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// On a pair of ConnectX-3 models the bench is answered, ICMP and UDP, with inline replies and others. After a responder
// is killed, the next one works.
func TestAnswersOnMlx4(t *testing.T) {
	needs.Long(t)
	here, there, end := adapters(t, "mlx4")
	bench := programs.Path(t, "bench")
	start := func(sets ...string) *process {
		t.Helper()
		p := startOn(t, here, append([]string{"respond.addresses=10.0.0.2/24", "respond.udp_ports=[7]"}, sets...)...)
		if !strings.HasPrefix(p.Ready, "ready driver=mlx4 device=vfio-user:") {
			t.Fatalf("not ready: %q\n%s", p.Ready, p.Log)
		}
		return p
	}
	run := func(args ...string) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "run")
		c := exec.Command(bench, append([]string{"run", "-driver", "mlx4", "-iface", there, "-source", "10.0.0.3", "-target", "10.0.0.2", "-closed", "-count", "60",
			"-timeout", "20s", "-warmup", "0s", "-runs", "1", "-self-test", "0s", "-out", dir}, args...)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("bench %v: %v\n%s", args, err, out)
		}
		r := must.Get(report.Read(dir))(t)
		if r.Counts.Received+r.Counts.Late != 60 || r.Counts.Corrupt != 0 || r.Device.Driver != "mlx4" || r.Device.Backend != "sim" {
			t.Errorf("%v: %+v, %+v", args, r.Counts, r.Device)
		}
	}
	p := start()
	run()
	run("-proto", "udp", "-port", "7", "-size", "224")
	run("-proto", "udp", "-port", "7", "-size", "1514")
	must.OK(t, p.Process.Kill())
	p.Wait()
	p = start("nic.push=off")
	run()
	if s, code := p.stop(t, unix.SIGTERM); code != 0 {
		t.Errorf("exit code %d\n%s\n%s", code, s, p.Log)
	}
	for _, v := range end() {
		if !strings.Contains(v, "DMA while bus mastering is off") { // of the killed one
			t.Error("violation: ", v)
		}
	}
	c := exec.Command(program(t), "-set", "nic.device="+here, "-set", "respond.addresses=10.0.0.2/24", "-set", "nic.port=3")
	if out, _ := c.CombinedOutput(); c.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "nic.port: 3 is not 1 to 2") {
		t.Errorf("nic.port=3: exit code %d\n%s", c.ProcessState.ExitCode(), out)
	}
}
