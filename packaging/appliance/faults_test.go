package appliance

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// The responder is killed 50 times, each time at another moment, and answers again each time. Then the management cable
// is out, and nothing else changes. Then the stick is pulled. Then the kernel panics, and the machine answers again.
func TestKilledUnpluggedPanicked(t *testing.T) {
	k := guests(t)
	d := disk(t, guestImage(t)+"/rebound.img", map[string]string{
		"/rebound.toml": answering("[cpu]\nlock_memory = true\n")})
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: d, usb: true, sockets: m.sockets[:1], reboots: true})
	g.says("rebound: ready driver=", 1)
	r := rand.New(rand.NewPCG(1, 2))
	const kills = 50
	for n := range kills {
		time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond) // at another moment of its life
		pressed := time.Time{}
		g.until("the end of the responder", func() bool {
			// the OOM killer takes the largest process, unless it is still busy with the last one
			if time.Since(pressed) > 5*time.Second {
				g.sysrq("f")
				pressed = time.Now()
			}
			return strings.Count(g.console(), "started again in") > n
		})
		g.says("rebound: ready driver=", n+2)
	}
	if s := g.status(); s.Restarts != kills || s.State != "answering" {
		t.Errorf("%+v", s)
	}
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")

	g.execute("set_link", map[string]any{"name": "nic", "up": false})
	g.says("link is down", 1)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	before := strings.Count(g.console(), "management: http://")
	g.execute("set_link", map[string]any{"name": "nic", "up": true})
	g.says("management: http://", before+1)
	if s := g.status(); s.Restarts != kills {
		t.Errorf("the responder restarted when the management cable was out: %+v", s)
	}

	booted := strings.Count(g.console(), "stick: ")
	g.sysrq("c")
	panicked := time.Now()
	g.says("stick: ", booted+1)
	g.says("rebound: ready driver=", kills+2)
	t.Logf("ready %v after a kernel panic, on emulated CPUs", time.Since(panicked).Round(time.Second))
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")

	g.execute("device_del", map[string]any{"id": "plug"})
	g.says("stick: not there any more", 1)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	g.powerButton()
	fsck(t, d)
}

// A wrong file is named with line and key on the console and the page. The machine neither restarts nor answers until a
// stick with a corrected file is plugged in.
func TestWrongThenCorrected(t *testing.T) {
	k := guests(t)
	img := guestImage(t) + "/rebound.img"
	wrong := disk(t, img, map[string]string{"/rebound.toml": strings.Replace(answering(""), "stamp_ports", "stamp_port",
		1)})
	good := disk(t, img, map[string]string{"/rebound.toml": answering("")})
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: wrong, usb: true, sockets: m.sockets[:1]})
	const problem = "rebound.toml:5: respond.stamp_port: unknown key"
	g.says("rebound: "+problem, 1)
	if s := g.status(); !strings.HasPrefix(s.Problem, problem) || s.State != "waiting for a corrected configuration" {
		t.Errorf("%+v", s)
	}
	g.replace(good)
	g.says("rebound: ready driver=", 1)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	g.powerButton()
	fsck(t, wrong)
	fsck(t, good)
}

// Two cards of one kind: the machine does not choose.
func TestTwoCards(t *testing.T) {
	k := guests(t)
	d := disk(t, guestImage(t)+"/rebound.img", map[string]string{
		"/rebound.toml": strings.Replace(answering(""), "device = \""+card+"\"", "", 1)})
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: d, sockets: m.sockets, noNIC: true})
	if line := g.says("several supported cards", 1); !strings.Contains(line, "0000:01:00.0, 0000:02:00.0") {
		t.Errorf("%q", line)
	}
	g.powerButton()
	fsck(t, d)
}

// Without an IOMMU the machine says so, and answers if the configuration allows it.
func TestNoIOMMU(t *testing.T) {
	k := guests(t)
	img := guestImage(t) + "/rebound.img"
	d := disk(t, img, map[string]string{"/rebound.toml": answering("")})
	allowed := disk(t, img, map[string]string{"/rebound.toml": strings.Replace(answering(""), "[nic]\n",
		"[nic]\nunsafe_no_iommu = true\n", 1)})
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: d, usb: true, sockets: m.sockets[:1], noIOMMU: true})
	g.says("waiting for a corrected configuration", 1)
	if s := g.status(); !strings.Contains(s.Problem, "nic.unsafe_no_iommu") {
		t.Errorf("%+v", s)
	}
	g.replace(allowed)
	g.says("rebound: ready driver=", 1)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	g.powerButton()
	fsck(t, allowed)
}

// A full stick and a read-only one: the results stay in memory, and the pages serve them.
func TestStickFullAndReadOnly(t *testing.T) {
	k := guests(t)
	// The target is QEMU's router: the bench runs, whatever becomes of its probes.
	config := "[appliance]\nmode = \"bench\"\nbench = [\"version\", \"run 10.0.2.2 -transport socket -duration 200ms -warmup 0s -self-test 0s -out first\"]\n"
	for _, c := range []struct {
		name     string
		readOnly bool
	}{{"full", false}, {"read-only", true}} {
		t.Run(c.name, func(t *testing.T) {
			d := disk(t, guestImage(t)+"/rebound.img", map[string]string{"/rebound.toml": config})
			if !c.readOnly {
				free := int64(16 << 20) // more than is free in steps of a MB, and then of a cluster
				for size := free; size >= 512; size /= 2 {
					for n := 0; ; n++ {
						file := filepath.Join(t.TempDir(), "filler")
						must.OK(t, os.WriteFile(file, make([]byte, size), 0o644))
						if exec.Command("mcopy", "-i", d+"@@1M", file,
							fmt.Sprintf("::/f%d.%d", size/512, n)).Run() != nil {
							break
						}
					}
				}
			}
			g := boot(t, k, machine{disk: d, usb: true, readOnly: c.readOnly})
			g.says("not written, and only in memory", 1)
			g.says("done: ", 1)
			if s := g.status(); len(s.Reports) < 2 {
				t.Errorf("%+v", s)
			} else if page, err := g.get("/reports/001.txt"); err != nil || !strings.Contains(page, "revision") {
				t.Errorf("%v: %s", err, page)
			}
			g.powerButton()
			fsck(t, d)
		})
	}
}

// A newer file that does not boot is tried three times, and then the previous one boots.
func TestFallBack(t *testing.T) {
	k := guests(t)
	bad := must.Get(os.ReadFile(image(t, "-append", emulation(t)+" panic=1 rdinit=/missing", "-version", "9.0.0") +
		"/rebound.efi"))(t)
	d := disk(t, guestImage(t)+"/rebound.img", map[string]string{"/rebound.toml": answering(""),
		"/EFI/Linux/rebound-9.0.0+3.efi": string(bad)})
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: d, usb: true, sockets: m.sockets[:1], reboots: true})
	g.says("rebound: ready driver=", 1)
	if n := strings.Count(g.console(), "Kernel panic"); n != 3 {
		t.Errorf("the new file was tried %d times, not 3", n)
	}
	if s := g.status(); strings.Contains(s.Boot, "9.0.0") {
		t.Errorf("%+v", s)
	}
	g.powerButton()
	fsck(t, d)
	if all := strings.Join(ukis(t, d), " "); !strings.Contains(all, "rebound-9.0.0+0-3.efi") {
		t.Errorf("EFI/Linux has %s", all)
	}
}

// Without an address to answer for, the machine lists its cards and asks on the console. It answers with what is given
// there, which it writes to the stick.
func TestQuestions(t *testing.T) {
	k := guests(t)
	d := disk(t, guestImage(t)+"/rebound.img", nil) // as it is built
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{disk: d, usb: true, sockets: m.sockets[:1]})
	for _, c := range []struct{ question, answer string }{
		{"or name of an interface: ", card}, {"(10.0.0.2/24): ", "10.9.0.2/24"}, {"or cancel): ", "yes"}} {
		g.until(c.question, func() bool { return strings.Contains(g.console(), c.question) })
		g.enter(c.answer + "\n")
	}
	g.says("rebound: ready driver=", 1)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	g.powerButton()
	fsck(t, d)
	if text := mtool(t, d, "mtype", "::/rebound.toml"); !strings.Contains(text, "addresses = [\"10.9.0.2/24\"]") ||
		!strings.Contains(text, "device = \""+card+"\"") {
		t.Errorf("rebound.toml on the stick:\n%s", text)
	}
}
