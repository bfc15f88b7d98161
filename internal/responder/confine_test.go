package responder

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/confine"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// confined fails unless every thread has a system call filter, no rights beyond these capabilities, and an unprivileged
// user.
func (p *child) confined(t *testing.T, capabilities uint64) {
	t.Helper()
	u := must.Get(confine.FindUser(""))(t)
	wants := map[string]string{"Seccomp": "2", "NoNewPrivs": "1", "Groups": "",
		"Uid": strings.Join(slices.Repeat([]string{fmt.Sprint(u.UID)}, 4), "\t"),
		"Gid": strings.Join(slices.Repeat([]string{fmt.Sprint(u.GID)}, 4), "\t")}
	for _, thread := range threads(t, p.Process.Pid) {
		for _, name := range []string{"CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			// kept if the limit on locked memory cannot be lifted
			mask := must.Get(strconv.ParseUint(thread[name], 16, 64))(t) &^ (1 << unix.CAP_IPC_LOCK)
			if name == "CapAmb" {
				mask |= capabilities
			}
			check.Equal(t, mask, capabilities, "a thread has "+name+" %016x")
		}
		for name, want := range wants {
			check.Equal(t, thread[name], want, "a thread has "+name+" %q")
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
			p := w.start(t, nil, "nic.driver="+c.driver, "nic.generic_xdp=true", "trust.confine=require",
				"stats.report="+folder, "stats.listen=127.0.0.1:0",
				"log.level=debug")
			p.confined(t, c.capabilities)
			w.run(t, "ping", "-q", "-c", "20", "-i", "0.01", ours4)
			must.OK(t, p.Process.Signal(syscall.SIGUSR1))
			if n := count(t, p.summary(t), "icmpv4"); n == 0 {
				t.Error("the summary has no ping")
			}
			p.stop(t, syscall.SIGTERM)
			log := p.Log.String()
			check.Contains(t, log, "msg=confined", `stage="process and settings"`)
			if strings.Contains(log, "not permitted") || strings.Contains(log, "permission denied") {
				t.Errorf("something is refused:\n%s", log)
			}
			if _, err := report.Read(folder); err != nil {
				t.Errorf("the report: %v\n%s", err, p.Log)
			}
			check.Equal(t, w.xdp(t), 0, "XDP program %d is left")
		})
	}
}

// Beside the kernel's driver an ordinary user keeps /dev, because /dev/infiniband may be another folder after a reset
// of the device. Uid 0, which could open every disk, does not.
func TestDeviceFolder(t *testing.T) {
	needRoot(t)
	for user, want := range map[string]string{"root": "/dev/infiniband", "auto": "/dev"} {
		s := &settings{}
		s.trust.user = user
		check.Equal(t, s.deviceFolder(), want, "with trust.user "+user+" %q")
	}
}

// Root stays root where the settings say so or need it. Any other user stays.
func TestUser(t *testing.T) {
	for set, want := range map[string]string{
		"trust.user=root":  `uid 0 stays: trust.user = "root"`,
		"cpu.isolate=true": "uid 0 stays: cpu.isolate restores root-owned files in /sys and /proc at exit",
	} {
		s := newSettings([]int{0})
		must.OK(t, s.table.Set(set))
		must.OK(t, s.table.Apply())
		u, hold := s.user()
		if uid := os.Geteuid(); uid != 0 {
			want = fmt.Sprintf("uid %d, as it was started", uid)
		}
		if u != nil || hold.Err != nil || hold.What != want {
			t.Errorf("%s: %v, %v, want %s", set, u, hold, want)
		}
	}
}

func TestUnconfined(t *testing.T) {
	w := newWire(t)
	p := w.start(t, nil, "nic.driver=afpacket", "trust.confine=off")
	for _, thread := range threads(t, p.Process.Pid) {
		check.Equal(t, thread["Seccomp"], threads(t, os.Getpid())[os.Getpid()]["Seccomp"], "a thread has Seccomp %s")
	}
	p.stop(t, syscall.SIGTERM)
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
			sim := programs.Start(t, exec.Command(simnic, "-model", model, "-socket", socket, "-wire", "tap:sim0",
				"-strict=false"), here.try(t))
			on := &wire{there: here}
			on.run(t, "ip", "addr", "add", "10.9.0.1/24", "dev", "sim0")
			on.run(t, "ip", "link", "set", "sim0", "up")
			ping := func(p *child) { // until the link is up, as after the restart
				t.Helper()
				await.Until(t, "an answer", func() bool {
					_, _, code := here.outcome(t, exec.Command("ping", "-q", "-c", "1", "-W", "1", "10.9.0.2"))
					return code == 0
				}, p.Log.String)
			}
			p := startOn(t, "vfio-user:"+socket, "respond.addresses=10.9.0.2/24", "trust.confine=require")
			ping(p)
			p.confined(t, 0)
			must.OK(t, sim.Process.Signal(syscall.SIGUSR2)) // resets the card under its driver
			if !p.logs("the device was restarted") {
				t.Fatalf("the card was not restarted\n%s", p.Log)
			}
			ping(p)
			p.stop(t, syscall.SIGTERM)
		})
	}
}
