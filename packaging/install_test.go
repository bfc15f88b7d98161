package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const unit = "rebound-responder@eth1.service"

// The package installs on a plain Debian. Its units are valid and hardened, systemd starts them and restarts a hung
// process, the responder answers, and removing the package removes everything.
func TestInstall(t *testing.T) {
	m := newMachine(t)
	file := deb(t, packaged(t))
	must(t, sh("cp "+file+" "+filepath.Join(m.root, "rebound.deb")))
	m.must(t, "dpkg", "-i", "/rebound.deb")
	if out := m.must(t, "dpkg", "-V", "rebound"); out != "" {
		t.Errorf("dpkg -V: %s", out)
	}
	for _, f := range []string{"/usr/share/man/man8/rebound-responder.8.gz", "/usr/share/man/man1/rebound-watch.1.gz",
		"/usr/share/man/man5/rebound-watch.5.gz", "/usr/share/man/man1/rebound-discover.1.gz",
		"/etc/rebound/watch.toml", "/usr/share/bash-completion/completions/rebound-bench",
		"/usr/share/zsh/vendor-completions/_rebound-bench", "/usr/share/fish/vendor_completions.d/rebound-bench.fish",
		"/etc/rebound/config.toml"} {
		if info, err := os.Stat(filepath.Join(m.root, f)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", f, err)
		}
	}
	for _, c := range [][]string{{"rebound-responder", "version"}, {"rebound-bench", "version"},
		{"rebound-watch", "version"}, {"rebound-simnic", "-h"}, {"rebound-discover", "-version"},
		{"rebound-responder", "nics"}} {
		m.must(t, c...)
	}

	out, err := m.run("systemd-analyze", "verify", "--man=no", unit, "rebound-bind@x.service", "rebound-watch.service")
	if err != nil || strings.Contains(out, "rebound-") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	for _, unit := range []string{unit, "rebound-watch.service"} {
		if out, err := m.run("systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=30",
			unit); err != nil {
			t.Errorf("systemd-analyze security finds %s more exposed than 3.0: %v\n%s", unit, err, out)
		}
	}
	// The unit is also valid with the rights that cpu.isolate needs, and with those of a machine without an IOMMU.
	m.must(t, "mkdir", "-p", "/etc/systemd/system/"+unit+".d")
	for _, drop := range []string{"isolate.conf", "no-iommu.conf"} {
		m.must(t, "cp", "/usr/share/doc/rebound/examples/"+drop, "/etc/systemd/system/"+unit+".d/")
		if out, err := m.run("systemd-analyze", "verify", "--man=no", unit); err != nil || strings.Contains(out, drop) {
			t.Errorf("systemd-analyze verify with %s: %v\n%s", drop, err, out)
		}
		m.must(t, "rm", "/etc/systemd/system/"+unit+".d/"+drop)
	}

	m.write(t, "/etc/systemd/system/"+unit+".d/here.conf", "[Service]\nCPUAffinity=0\nWatchdogSec=10\n")
	b := m.boot(t)
	show := func(property string) string {
		t.Helper()
		return value(b.sh("systemctl show -P " + property + " " + unit))(t)
	}
	journal := func() string { return b.journal(unit) }

	// An instance may be a PCI function.
	if v, err := b.sh("systemctl show -P ExecStart rebound-responder@0000:03:00.0.service rebound-bind@0000:03:00.0.service"); err != nil ||
		!strings.Contains(v, "-set nic.device=0000:03:00.0 ") ||
		!strings.Contains(v, "responder bind -group rebound $BIND 0000:03:00.0 ") {
		t.Errorf("an instance that is a PCI function: %v\n%s", err, v)
	}

	// Without an address it does not start, and reports which key is empty.
	if _, err := b.sh("systemctl start " + unit); err == nil {
		t.Error("it started without an address to answer for")
	}
	if n, state := show("NRestarts"), show("ActiveState"); n != "0" || state != "failed" {
		t.Errorf("without an address: %s restarts, state %s: a wrong configuration is not to be retried", n, state)
	}
	b.sh("systemctl stop " + unit + "; systemctl reset-failed " + unit)
	if j := journal(); !strings.Contains(j, "respond.addresses: is empty: set the addresses") ||
		!strings.Contains(j, "/etc/rebound/eth1.env") ||
		strings.Count(j, "rebound-responder: ") != 1 {
		t.Errorf("the journal does not say in one line which key to set and where:\n%s", j)
	}
	unconfigured := len(journal())

	for _, driver := range []string{"afxdp", "afpacket", "xdp"} {
		m.write(t, "/etc/rebound/eth1.env",
			"OPTIONS=-v -set respond.addresses=10.9.0.2/24 -set nic.generic_xdp=true -set nic.driver="+driver+"\n")
		if out, err := b.sh("systemctl restart " + unit); err != nil {
			t.Fatalf("%s: %v %s\n%s", driver, err, out, journal())
		}
		if s := show("StatusText"); !strings.HasPrefix(s, "ready driver="+driver+" device=eth1 ") {
			t.Errorf("%s: status %q", driver, s)
		}
		if n := b.ping(t, "10.9.0.2", 5); n != 5 {
			t.Errorf("%s: %d of 5 pings were answered\n%s", driver, n, journal())
		}
		status, err := b.sh("cat /proc/" + show("MainPID") + "/status")
		if err != nil || strings.Contains(status, "Uid:\t0\t") || !strings.Contains(status, "NoNewPrivs:\t1") {
			t.Errorf("%s: runs as root or could become so: %v\n%s", driver, err, status)
		}
	}
	if j := journal(); !strings.Contains(j, "msg=confined") || strings.Contains(j, "confined only in part") {
		t.Errorf("the responder could not confine itself under the unit:\n%s", j)
	}
	if !strings.Contains(journal(), "core=0") {
		t.Errorf("CPUAffinity=0 does not choose the core:\n%s", journal())
	}
	if j := journal()[unconfigured:]; strings.Contains(j, "FAILURE") || !strings.Contains(j, "finding=") {
		t.Errorf("good starts log a failure, or no finding about the host:\n%s", j)
	}

	testPin(t, b, journal)
	testNoIOMMU(t, b)
	testWatch(t, b)

	// The watchdog kills a process that hangs, and it is restarted.
	m.write(t, "/etc/rebound/eth1.env", "OPTIONS=-set respond.addresses=10.9.0.2/24 -set nic.generic_xdp=true\n")
	if out, err := b.sh("systemctl restart " + unit); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	first := show("MainPID")
	time.Sleep(11 * time.Second) // longer than WatchdogSec: the process is alive, so it must not be killed
	n, pid := show("NRestarts"), show("MainPID")
	if n != "0" || pid != first { // NRestarts counts a killed process once it is restarted
		t.Errorf("the watchdog ended one that was well: %s restarts, process %s, before %s\n%s", n, pid, first,
			journal())
	}
	if out, err := b.sh("kill -STOP " + first); err != nil {
		t.Fatal(err, out)
	}
	for deadline := time.Now().Add(3 * time.Minute); show("NRestarts") == "0" ||
		show("ActiveState") != "active"; time.Sleep(300 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("one that hangs was not started again in three minutes\n%s", journal())
		}
	}
	if n := b.ping(t, "10.9.0.2", 3); n != 3 || show("MainPID") == first {
		t.Errorf("after the watchdog: %d of 3 pings, process %s, before %s", n, show("MainPID"), first)
	}

	// Purging the package removes the process, the program on the interface, settings, enabled instances and the user.
	if out, err := b.sh("systemctl enable " + unit); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := b.sh("dpkg --purge rebound"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, _ := b.sh("ps ax; ip -d link show eth1; ls /usr/bin/rebound-responder /etc/rebound/config.toml /var/lib/rebound"); strings.Contains(out, "responder -config") || strings.Contains(out, "xdp") {
		t.Errorf("left behind:\n%s", out)
	}
	if out, err := b.sh("getent passwd rebound"); err == nil {
		t.Errorf("the user is left behind: %s", out)
	}
	if out, _ := b.sh("find /etc /usr /var/lib /run -xdev -name '*rebound*' ! -path '/etc/systemd/system/" + unit +
		".d*'"); out != "" {
		t.Errorf("left behind:\n%s", out)
	}
	for _, f := range []string{"/usr/bin/rebound-responder", "/etc/rebound/config.toml", "/var/lib/rebound",
		"/etc/rebound/watch.toml", "/var/lib/rebound-watch", "/usr/lib/systemd/system/rebound-responder@.service"} {
		if _, err := os.Stat(filepath.Join(m.root, f)); !os.IsNotExist(err) {
			t.Errorf("%s is left behind: %v", f, err)
		}
	}
}

// testNoIOMMU has a shell, in place of the responder, do what a driver without an IOMMU does, under the unit alone and
// with no-iommu.conf: read a physical address in pagemap, and write to a function's files in /sys. It uses one that
// every machine has, with the value that is in it.
func testNoIOMMU(t *testing.T, b *booted) {
	t.Helper()
	found, err := b.sh("for d in bus devices; do mount -o remount,rw /sys/$d; done; for d in /sys/bus/pci/devices/*; do [ -w $d/broken_parity_status ] && basename $d && break; done")
	function := strings.TrimSpace(found)
	if err != nil || function == "" {
		t.Logf("no-iommu.conf is not tried: no PCI function is to be seen in here: %v %s", err, found)
		return
	}
	const instance = "rebound-responder@"
	unit := instance + function + ".service"
	drop := "/etc/systemd/system/" + unit + ".d"
	// The first page of the shell's own program: the low bits of its entry, the page's frame, are 0 without
	// CAP_SYS_ADMIN.
	b.write(t, drop+"/here.conf",
		"[Service]\nType=oneshot\nWatchdogSec=0\nRestart=no\nExecStart=\nExecStart=/bin/bash /probe %I\n")
	b.write(t, "/probe", `set -e
at=$((0x$(head -1 /proc/$$/maps | cut -d- -f1)))
entry=$(dd if=/proc/$$/pagemap bs=8 skip=$((at / 4096)) count=1 status=none | od -An -tx8 | tr -d ' ')
[ $((0x${entry:4})) != 0 ] || { echo "pagemap hides physical addresses" >&2; exit 1; }
f=/sys/bus/pci/devices/$1/broken_parity_status
v=$(cat $f)
echo $v >$f
[ ! -w /sys/bus/pci/rescan ] || { echo "all of /sys can be written" >&2; exit 1; }
`)
	if out, err := b.sh("systemctl daemon-reload; systemctl start " + unit); err == nil {
		t.Errorf("the unit without no-iommu.conf has the rights of a driver without an IOMMU: %s", out)
	}
	b.sh("systemctl reset-failed " + unit)
	if out, err := b.sh("cp /usr/share/doc/rebound/examples/no-iommu.conf " + drop +
		" && systemctl daemon-reload && systemctl start " + unit); err != nil {
		t.Errorf("with no-iommu.conf: %v\n%s\n%s", err, out, b.journal(unit))
	}
	b.sh("systemctl stop " + unit + "; rm -r /probe " + drop + " && systemctl daemon-reload")

	// rebound-bind@ passes the instance's BIND.
	b.write(t, "/etc/rebound/0000:ff:1f.7.env", "BIND=-no-driver\n")
	b.write(t, "/etc/systemd/system/rebound-bind@0000:ff:1f.7.service.d/here.conf",
		"[Service]\nExecStart=\nExecStart=/bin/echo bind $BIND %I.\n")
	if out, err := b.sh("systemctl daemon-reload; systemctl start rebound-bind@0000:ff:1f.7.service"); err != nil {
		t.Errorf("rebound-bind@: %v %s", err, out)
	}
	if j := b.journal("rebound-bind@0000:ff:1f.7.service"); !strings.Contains(j, "bind -no-driver 0000:ff:1f.7.") {
		t.Errorf("rebound-bind@ does not pass BIND:\n%s", j)
	}
	b.sh("rm -r /etc/rebound/0000:ff:1f.7.env /etc/systemd/system/rebound-bind@0000:ff:1f.7.service.d; systemctl daemon-reload")
}

// testPin has the program stay in the kernel when the unit stops, and the next start join it.
func testPin(t *testing.T, b *booted, journal func() string) {
	t.Helper()
	drop := "/etc/systemd/system/" + unit + ".d"
	// A container has no BPF file system; a machine's systemd mounts one like this.
	if out, err := b.sh("mount -o remount,rw /sys; mkdir -p /sys/fs/bpf && mount -t bpf -o mode=0700 bpf /sys/fs/bpf"); err != nil {
		t.Logf("nic.pin is not tried: no BPF file system can be mounted in here: %v %s", err, out)
		return
	}
	b.write(t, "/etc/rebound/eth1.env",
		"OPTIONS=-set respond.addresses=10.9.0.2/24 -set nic.generic_xdp=true -set nic.driver=xdp -set nic.pin=eth1 -set trust.confine=require\n")
	if out, err := b.sh("systemctl restart " + unit); err == nil {
		t.Errorf("the unit can write to the BPF file system without pin.conf: %s", out)
	}
	sh := func(command string) string {
		t.Helper()
		out, err := b.sh(command)
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", command, err, out, journal())
		}
		return out
	}
	sh("systemctl stop " + unit + "; systemctl reset-failed " + unit +
		"; cp /usr/share/doc/rebound/examples/pin.conf " + drop + " && systemctl daemon-reload")
	sh("systemctl start " + unit)
	sh("systemctl stop " + unit)
	if n := b.ping(t, "10.9.0.2", 3); n != 3 {
		t.Errorf("%d of 3 pings were answered without a process\n%s", n, journal())
	}
	if s := sh("rebound-responder status"); !strings.Contains(s, "answers without a process") {
		t.Errorf("status of what is pinned: %s", s)
	}
	sh("systemctl start " + unit)
	if s := sh("rebound-responder status"); !strings.Contains(s, " runs") {
		t.Errorf("status of a pin that a process joined: %s", s)
	}
	if n := b.ping(t, "10.9.0.2", 3); n != 3 {
		t.Errorf("%d of 3 pings were answered by a responder that joined\n%s", n, journal())
	}
	sh("systemctl stop " + unit + " && rebound-responder unpin eth1 && rm " + drop +
		"/pin.conf && systemctl daemon-reload")
	if s := sh("rebound-responder status"); s != "nothing is pinned" {
		t.Errorf("after unpin: %s", s)
	}
}
