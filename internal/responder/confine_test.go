package responder

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/confine"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

func threads(t *testing.T, pid int, name string) (values []string) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("no threads of process %d: %v", pid, err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, name+":"); ok {
				values = append(values, strings.TrimSpace(v))
			}
		}
	}
	return values
}

// confined fails unless every thread has a system call filter, no rights beyond these capabilities, and an unprivileged user.
func (p *process) confined(t *testing.T, capabilities uint64) {
	t.Helper()
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		for _, v := range threads(t, p.Process.Pid, set) {
			var mask uint64
			fmt.Sscanf(v, "%x", &mask)
			mask &^= 1 << unix.CAP_IPC_LOCK // kept if the limit on locked memory cannot be lifted
			if set == "CapAmb" {
				mask |= capabilities
			}
			if mask != capabilities {
				t.Errorf("a thread has %s %s, want %016x", set, v, capabilities)
			}
		}
	}
	u := must.Get(confine.FindUser(""))(t)
	for name, want := range map[string]string{
		"Seccomp": "2", "NoNewPrivs": "1", "Groups": "", "Uid": strings.Join(slices.Repeat([]string{fmt.Sprint(u.UID)}, 4), "\t"),
		"Gid": strings.Join(slices.Repeat([]string{fmt.Sprint(u.GID)}, 4), "\t"),
	} {
		for _, v := range threads(t, p.Process.Pid, name) {
			if v != want {
				t.Errorf("a thread has %s %q, want %q", name, v, want)
			}
		}
	}
}

// With every driver that runs here the responder drops its rights in every thread, and continues: it answers, serves
// metrics, prints summaries, collects garbage, saves its report, and exits cleanly.
func TestConfined(t *testing.T) {
	w := newWire(t)
	for _, c := range []struct {
		driver       string
		capabilities uint64
	}{{"afpacket", 0}, {"afxdp", 0}, {"xdp", 1 << unix.CAP_BPF}} {
		t.Run(c.driver, func(t *testing.T) {
			parent := filepath.Join(t.TempDir(), "root's")
			must.OK(t, os.Mkdir(parent, 0o700))
			folder := filepath.Join(parent, "report")
			p := w.start(t, nil, "nic.driver="+c.driver, "nic.generic_xdp=true", "trust.confine=require", "stats.report="+folder, "stats.listen=127.0.0.1:0",
				"log.level=debug")
			p.confined(t, c.capabilities)
			w.run(t, "ping", "-q", "-c", "20", "-i", "0.01", ours4)
			must.OK(t, p.Process.Signal(syscall.SIGUSR1))
			if n := count(t, p.summary(t), "icmpv4"); n == 0 {
				t.Error("the summary has no ping")
			}
			summary, code := p.stop(t, syscall.SIGTERM)
			if code != 0 || strings.Contains(p.Log.String(), "not permitted") || strings.Contains(p.Log.String(), "permission denied") {
				t.Errorf("exit code %d\n%s\n%s", code, summary, p.Log)
			}
			if !strings.Contains(p.Log.String(), "msg=confined") {
				t.Errorf("the log does not say what holds:\n%s", p.Log)
			}
			if _, err := report.Read(folder); err != nil {
				t.Errorf("the report: %v\n%s", err, p.Log)
			}
			if id := w.xdp(t); id != 0 {
				t.Errorf("program %d is left on the interface", id)
			}
		})
	}
}

func TestUnconfined(t *testing.T) {
	w := newWire(t)
	p := w.start(t, nil, "nic.driver=afpacket", "trust.confine=off")
	for _, v := range threads(t, p.Process.Pid, "Seccomp") {
		if v != threads(t, os.Getpid(), "Seccomp")[0] {
			t.Errorf("a thread has Seccomp %s, and the test has not", v)
		}
	}
	if _, code := p.stop(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d\n%s", code, p.Log)
	}
}

// The same with each of our device drivers over vfio-user, including a restart of the card.
func TestConfinedCards(t *testing.T) {
	needRoot(t)
	needs.Programs(t, "ping")
	simnic := programs.Path(t, "simnic")
	for _, model := range []string{"ixgbe", "mlx5", "ena", "mlx4"} {
		t.Run(model, func(t *testing.T) {
			here := newSpace(t)
			socket := filepath.Join(t.TempDir(), "nic")
			sim := programs.Start(t, exec.Command(simnic, "-model", model, "-socket", socket, "-wire", "tap:sim0", "-strict=false"), here.try(t))
			on := &wire{there: here}
			on.run(t, "ip", "addr", "add", "10.9.0.1/24", "dev", "sim0")
			on.run(t, "ip", "link", "set", "sim0", "up")
			ping := func() (err error) {
				for range 100 { // the link comes up after the restart
					here.do(t, func() { err = exec.Command("ping", "-q", "-c", "1", "-W", "1", "10.9.0.2").Run() })
					if err == nil {
						return nil
					}
				}
				return err
			}

			p := startOn(t, "vfio-user:"+socket, "respond.addresses=10.9.0.2/24", "trust.confine=require")
			if err := ping(); err != nil {
				t.Fatalf("no answer: %v\n%s", err, p.Log)
			}
			p.confined(t, 0)
			if err := sim.Process.Signal(syscall.SIGUSR2); err != nil { // resets the card under its driver
				t.Fatal(err)
			}
			if !p.logs("the device was restarted") {
				t.Fatalf("the card was not restarted\n%s", p.Log)
			}
			if err := ping(); err != nil {
				t.Errorf("no answer after the restart: %v\n%s", err, p.Log)
			}
			if _, code := p.stop(t, syscall.SIGTERM); code != 0 {
				t.Errorf("exit code %d\n%s", code, p.Log)
			}
		})
	}
}
