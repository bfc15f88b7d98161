package appliance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// measured is a service of the Debian guest that prints when the responder was ready, and what then disturbs its core,
// without and with cpu.isolate.
const measured = `[Unit]
After=rebound-responder@` + card + `.service
[Service]
Type=oneshot
ExecStart=/bin/sh /measured
[Install]
WantedBy=multi-user.target
`

const measuredScript = `exec >/dev/ttyS0 2>&1
# A service that failed and is started again counts as started for After=.
until systemctl is-active --quiet rebound-responder@` + card + `; do sleep 0.1; done
read up rest </proc/uptime
echo "measured: ready after $up"
journalctl --no-pager -o cat -u rebound-bind@` + card + ` -u rebound-responder@` + card + `
sleep 10
echo "measured: stock $(/init-program interference 1 10)"
d=/etc/systemd/system/rebound-responder@` + card + `.service.d
mkdir -p $d && cp /usr/share/doc/rebound/examples/isolate.conf $d/
sed -i 's/$/ -set cpu.isolate=true/' /etc/rebound/` + card + `.env
systemctl daemon-reload && systemctl restart rebound-responder@` + card + `
systemctl is-active rebound-responder@` + card + `
sleep 5
echo "measured: isolate $(/init-program interference 1 10)"
echo "measured: end"
`

// debianRoot unpacks Debian with its kernel, systemd and our package into a folder.
func debianRoot(t *testing.T) string {
	t.Helper()
	cache := must.Get(filepath.Abs(filepath.Join(root, ".cache", "appliance")))(t)
	kernel := filepath.Base(strings.TrimSuffix(goRun(t, ".", "run", "./image", "-fetch", "systemd-boot-efi"), ".deb"))
	tar := filepath.Join(cache, "debian-"+kernel+".tar") // again when Debian has another systemd
	if _, err := os.Stat(tar); err != nil {
		// In a mount namespace, so that no mount is left if the test is killed.
		command(t, "unshare", "--mount", "mmdebstrap", "--mode=root", "--variant=apt",
			"--include=linux-image-amd64,initramfs-tools,systemd-sysv,udev,kmod,dbus,iproute2,procps",
			"trixie", strings.TrimSuffix(tar, ".tar")+".new.tar", filepath.Join(cache, "sources.list"))
		must.OK(t, os.Rename(strings.TrimSuffix(tar, ".tar")+".new.tar", tar))
	}
	dir := filepath.Join(t.TempDir(), "root")
	must.OK(t, os.Mkdir(dir, 0o755))
	command(t, "tar", "-C", dir, "--exclude=./dev/*", "-xf", tar)
	out := t.TempDir()
	goRun(t, filepath.Join(root, "packaging"), "run", ".", "-out", out)
	debs := must.Get(filepath.Glob(out + "/rebound_*_amd64.deb"))(t)
	if len(debs) != 1 {
		t.Fatalf("packages: %v", debs)
	}
	command(t, "cp", debs[0], dir+"/rebound.deb")
	command(t, "chroot", dir, "dpkg", "-i", "/rebound.deb")
	build := exec.Command("go", "build", "-o", dir+"/init-program", "./init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	for name, body := range map[string]string{
		"etc/rebound/" + card + ".env":        "OPTIONS=-set respond.addresses=10.9.0.2/24 -set cpu.cores=[1]\n",
		"etc/systemd/system/measured.service": measured, "measured": measuredScript,
		"etc/fstab": "/dev/vda / ext4 defaults 0 1\n", "etc/hostname": "debian\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(body), 0o644))
	}
	command(t, "chroot", dir, "systemctl", "mask", "serial-getty@ttyS0") // it would hang up the serial port
	command(t, "chroot", dir, "systemctl", "enable", "rebound-bind@"+card, "rebound-responder@"+card, "measured")
	return dir
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// Kernel start to ready, and what disturbs the polling core in ten seconds, beside a stock Debian with the service in
// the same guest. The figures are logged: on emulated CPUs only their ratio says anything.
func TestBesideDebian(t *testing.T) {
	needs.Root(t, "chroot")
	needs.Programs(t, "mmdebstrap", "mke2fs", "unshare")
	k := guests(t)
	dir := debianRoot(t)
	one := func(pattern string) string {
		all := must.Get(filepath.Glob(filepath.Join(dir, pattern)))(t)
		if len(all) != 1 {
			t.Fatalf("%s: %v", pattern, all)
		}
		return all[0]
	}
	ext4 := filepath.Join(t.TempDir(), "debian.img")
	command(t, "mke2fs", "-q", "-t", "ext4", "-d", dir, ext4, "2G")
	m := serve(t, k, "ixgbe", 2)
	g := boot(t, k, machine{sockets: m.sockets[:1], more: []string{"-kernel", one("boot/vmlinuz-*"), "-initrd",
		one("boot/initrd.img-*"),
		"-append", "root=/dev/vda rw console=ttyS0 intel_iommu=on systemd.show_status=no quiet " + emulation(t),
		"-drive", "if=none,id=root,format=raw,file=" + ext4, "-device", "virtio-blk-pci,drive=root,addr=0x11"}})
	var debian float64
	must.Get(fmt.Sscanf(g.says("measured: ready after", 1), "measured: ready after %f", &debian))(t)
	measure(t, k, "ixgbe", m.sockets[1], "-count", "200")
	g.says("measured: end", 1)
	for line := range strings.Lines(g.console()) {
		if strings.HasPrefix(line, "measured: stock ") || strings.HasPrefix(line, "measured: isolate ") {
			t.Log(strings.TrimSpace(line))
			if !strings.Contains(line, "interference core=1 ") {
				t.Error("not measured")
			}
		}
	}
	g.powerButton()

	d := disk(t, guestImage(t)+"/rebound.img", map[string]string{"/rebound.toml": answering("")})
	ours := serve(t, k, "ixgbe", 2)
	g = boot(t, k, machine{disk: d, usb: true, sockets: ours.sockets[:1]})
	g.says("rebound: ready driver=", 1)
	time.Sleep(10 * time.Second)
	s := g.status()
	t.Logf("appliance: %v", g.interference(10*time.Second))
	t.Logf("kernel start to ready: appliance %.1f s, Debian %.1f s, %.1f times as long", s.ReadyAfter, debian,
		debian/s.ReadyAfter)
	g.powerButton()
}
