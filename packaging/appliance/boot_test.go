package appliance

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// card is the address of the first device model: see boot.
const card = "0000:01:00.0"

func answering(more string) string {
	return fmt.Sprintf("[nic]\ndevice = %q\n[respond]\naddresses = [\"10.9.0.2/24\"]\nstamp_ports = [862]\n%s", card,
		more)
}

// answeringOn is answering for a model. That of virtio takes physical addresses, as most virtual machines do: it does
// not offer VIRTIO_F_ACCESS_PLATFORM, so its guest has no IOMMU.
func answeringOn(model string) string {
	if model == "virtio" {
		return strings.Replace(answering(""), "[nic]\n", "[nic]\nunsafe_no_iommu = true\n", 1)
	}
	return answering("")
}

// etherCards are the models of cards that carry frames.
var etherCards = []string{"ixgbe", "mlx5", "mlx4", "ena", "virtio"}

// The disk boots by UEFI and answers on the card. Its file is counted and marked as good, little of the memory is in
// use, nothing but the responder runs on the polling core, and the power button leaves the file system clean.
func TestBootDisk(t *testing.T) {
	k := guests(t)
	for _, model := range etherCards {
		t.Run(model, func(t *testing.T) {
			dir := guestImage(t)
			d := disk(t, dir+"/rebound.img", map[string]string{"/rebound.toml": answeringOn(model)})
			renameUKI(t, d, "+3")
			m := serve(t, k, model, 2)
			g := boot(t, k, machine{disk: d, usb: true, sockets: m.sockets[:1], noIOMMU: model == "virtio",
				more: []string{"-vga", "std"}})
			answers(t, k, g, model, m.sockets[1])
			g.says("marked as good", 1)
			i := g.interference(10 * time.Second)
			t.Logf("on the polling core: %v", i)
			if i.other > time.Second { // of ten
				t.Errorf("others had the polling core for %v", i.other)
			}
			s := g.status()
			if s.State != "answering" || s.Problem != "" || s.Restarts != 0 {
				t.Errorf("%+v", s)
			}
			if s.Memory > 200 {
				t.Errorf("%.0f MB of memory are in use, more than 200", s.Memory)
			}
			if n := g.metric("rebound_appliance_problem"); n != 0 {
				t.Errorf("rebound_appliance_problem %v", n)
			}
			t.Logf("ready %.1f s after the start of the kernel, %.0f MB in use", s.ReadyAfter, s.Memory)
			if file := os.Getenv("REBOUND_SCREEN"); file != "" { // for docs/appliance.png, under load
				done := make(chan struct{})
				go func() {
					defer close(done)
					measure(t, k, model, m.sockets[1], "-count", "1500")
				}()
				time.Sleep(5 * time.Second)
				g.execute("screendump", map[string]any{"filename": file, "format": "png"})
				<-done
			}
			g.powerButton()
			fsck(t, d)
			if names := ukis(t, d); len(names) != 1 || strings.Contains(names[0], "+") {
				t.Errorf("EFI/Linux has %v: it still counts boots", names)
			}
		})
	}
}

// answers waits for the ready line, and measures 1,000 pings and 200 STAMP packets, of which none is lost.
func answers(t *testing.T, k kit, g *guest, model, socket string) {
	t.Helper()
	line := g.says("rebound: ready driver=", 1)
	if !strings.HasPrefix(line, "rebound: ready driver="+model+" device="+card+" ") ||
		!strings.HasSuffix(line, " addresses=10.9.0.2/24") {
		t.Errorf("%q", line)
	}
	for line := range strings.Lines(g.console()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Log(strings.TrimSpace(line))
		}
	}
	measure(t, k, model, socket, "-count", "1000")
	measure(t, k, model, socket, "-count", "200", "-proto", "stamp")
}

// disturbance is what happened on the polling core.
type disturbance struct {
	in                   time.Duration
	other                time.Duration // CPU time of other threads
	interrupts, switches float64       // switches are time slices of any thread
}

func (d disturbance) String() string {
	return fmt.Sprintf("in %v: CPU time of others %v, %.0f interrupts, %.0f time slices",
		d.in.Round(100*time.Millisecond), d.other.Round(time.Microsecond), d.interrupts, d.switches)
}

func (g *guest) interference(in time.Duration) disturbance {
	g.t.Helper()
	read := func() (v [3]float64) {
		page := must.Get(g.get("/metrics"))(g.t)
		for i, name := range []string{"other_seconds", "interrupts", "switches"} {
			v[i] = value(g.t, page, "rebound_appliance_core_"+name+"_total")
		}
		return v
	}
	began, a := time.Now(), read()
	time.Sleep(in)
	b := read()
	return disturbance{time.Since(began), time.Duration((b[0] - a[0]) * 1e9), b[1] - a[1], b[2] - a[2]}
}
