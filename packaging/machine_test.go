package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// machine is its own Debian below a folder, where systemd-nspawn can run programs, or boot it with its systemd.
type machine struct {
	root  string
	space string // network namespace with the other end of the machine's eth1: peer0, 10.9.0.1/24
}

func needMachine(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: a Debian system is installed and booted")
	}
	for _, p := range []string{"mmdebstrap", "systemd-nspawn", "dpkg", "ip", "ping", "nsenter", "tar"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s, which is not installed (scripts/install-deps)", p)
		}
	}
}

// debianRoot returns a tar file of a minimal bootable Debian, of this host's release. It is kept between runs, because
// making it needs a download.
func debianRoot(t *testing.T) string {
	t.Helper()
	suite := "stable"
	if b, err := os.ReadFile("/etc/os-release"); err == nil && bytes.Contains(b, []byte("ID=debian")) {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
				suite = strings.TrimSpace(v)
			}
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(cache, "rebound")
	file := filepath.Join(dir, "debian-"+suite+".tar")
	if _, err := os.Stat(file); err == nil {
		return file
	}
	must(t, os.MkdirAll(dir, 0o755))
	fresh := fmt.Sprintf("%s.%d.tar", file, os.Getpid())
	defer os.Remove(fresh)
	out, err := exec.Command("timeout", "600", "mmdebstrap", "--variant=minbase",
		"--include=systemd,systemd-sysv,dbus,iproute2", suite, fresh).CombinedOutput()
	if err != nil {
		t.Skipf("a Debian %s cannot be had: mmdebstrap: %v\n%s", suite, err, out)
	}
	must(t, os.Rename(fresh, file))
	return file
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	needMachine(t)
	m := &machine{root: t.TempDir(), space: fmt.Sprintf("rebound-pkg-%d", os.Getpid())}
	// Its times are of today: systemd takes a root whose /usr is from the future for broken.
	must(t, sh("tar -C "+m.root+" -xf "+debianRoot(t)))
	return m
}

func (m *machine) nspawn(args ...string) []string {
	return append([]string{"systemd-nspawn", "-q", "-D", m.root, "--register=no", "--private-network"}, args...)
}

// run runs a program in the machine that is not booted.
func (m *machine) run(args ...string) (string, error) {
	a := m.nspawn(append([]string{"--keep-unit", "--console=pipe", "--as-pid2"}, args...)...)
	out, err := exec.Command(a[0], a[1:]...).CombinedOutput()
	// some versions print this at the end
	text, _, _ := strings.Cut(string(out), "Attempted to remove disk file system")
	return text, err
}

func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := m.run(args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (m *machine) write(t *testing.T, name, content string) {
	t.Helper()
	file := filepath.Join(m.root, name)
	must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)))
}

// booted is a machine whose systemd runs.
type booted struct {
	*machine
	leader int // its first process, seen from here
}

// boot boots the machine, and shuts it down at the end of the test. If the boot fails, its console output goes to the
// log.
func (m *machine) boot(t *testing.T) *booted {
	t.Helper()
	must(t, sh("ip netns add "+m.space))
	t.Cleanup(func() { exec.Command("ip", "netns", "del", m.space).Run() })

	args := m.nspawn("--boot", "--capability=all",
		"--system-call-filter=bpf @memlock seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self",
		"--network-veth-extra=peer0:eth1", "--console=passive")
	groups := []string{}
	if _, err := os.Stat("/run/systemd/system"); err != nil { // otherwise the host's systemd creates a scope for it
		args = slices.Insert(args, 1, "--keep-unit")
		groups = ownGroups(t)
	}
	script := `for g in "$@"; do [ "$g" = -- ] && break; echo $$ >"$g/cgroup.procs" || exit 1; shift; done; shift; exec "$@"`
	all := slices.Concat([]string{"--net=/run/netns/" + m.space, "sh", "-c", script, "sh"}, groups, []string{"--"},
		args)
	cmd := exec.Command("nsenter", all...)
	console := value(os.Create(filepath.Join(t.TempDir(), "console")))(t)
	defer console.Close()
	cmd.Stdout, cmd.Stderr = console, console
	must(t, cmd.Start())
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	b := &booted{machine: m}
	t.Cleanup(func() {
		if b.leader > 0 {
			b.sh("systemctl poweroff")
		}
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			if b.leader > 0 { // 0 would mean this process and its whole group
				syscall.Kill(b.leader, syscall.SIGKILL)
			}
			cmd.Process.Kill()
			<-ended
		}
	})
	fail := func(why string) {
		t.Helper()
		text, _ := os.ReadFile(console.Name())
		t.Fatalf("the machine does not come up: %s\n%s", why, text)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		select {
		case <-ended:
			fail("systemd-nspawn ended")
		default:
		}
		if time.Now().After(deadline) {
			fail("no answer of its systemd in two minutes")
		}
		b.leader = initOf(cmd.Process.Pid)
		if b.leader == 0 {
			continue
		}
		if out, _ := b.sh("systemctl is-system-running"); strings.Contains(out, "running") ||
			strings.Contains(out, "degraded") {
			break
		}
	}
	must(t, sh(fmt.Sprintf("ip -n %[1]s addr add 10.9.0.1/24 dev peer0; ip -n %[1]s link set peer0 up", m.space)))
	if out, err := b.sh("ip link set eth1 up"); err != nil {
		t.Fatalf("eth1: %v\n%s", err, out)
	}
	return b
}

func (b *booted) sh(command string) (string, error) {
	out, err := exec.Command("timeout", "60", "nsenter", "-a", "-t", strconv.Itoa(b.leader), "sh", "-c",
		command).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// journal returns everything that a unit has logged. It waits for the journal, which may lag behind the process.
func (b *booted) journal(unit string) string {
	b.sh("journalctl --sync")
	v, _ := b.sh("journalctl --no-pager -o cat -u " + unit)
	return v
}

// ping pings the machine's eth1 until n echo requests are answered, for at most a minute, and returns the number of
// replies, at most n. With -w, ping continues while replies are late, so more than n may arrive; without it, ping
// counts a late reply as lost.
func (b *booted) ping(t *testing.T, address string, n int) (answered int) {
	t.Helper()
	out, _ := exec.Command("ip", "netns", "exec", b.space, "ping", "-q", "-i", "0.1", "-w", "60", "-c", strconv.Itoa(n),
		address).CombinedOutput()
	for field := range strings.SplitSeq(string(out), ",") {
		if v, ok := strings.CutSuffix(strings.TrimSpace(field), " received"); ok {
			answered, _ = strconv.Atoi(v)
			return min(answered, n)
		}
	}
	t.Fatalf("ping: %s", out)
	return 0
}

// initOf returns the child of a process that is the first process of a PID namespace, 0 for none. For a moment
// systemd-nspawn has another child, which creates that one; through it, commands would reach the host's systemd.
func initOf(pid int) int {
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for child := range strings.FieldsSeq(string(children)) {
		status, _ := os.ReadFile("/proc/" + child + "/status")
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "NSpid:" && f[len(f)-1] == "1" {
				n, _ := strconv.Atoi(child)
				return n
			}
		}
	}
	return 0
}

// ownGroups creates a control group for the machine in each hierarchy that systemd uses: version 2, and the named one
// on hosts with both.
func ownGroups(t *testing.T) (groups []string) {
	t.Helper()
	mounts := value(os.ReadFile("/proc/self/mounts"))(t)
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if f[2] != "cgroup2" && !(f[2] == "cgroup" && strings.Contains(f[3], "name=systemd")) {
			continue
		}
		g := filepath.Join(f[1], fmt.Sprintf("rebound-pkg-%d", os.Getpid()))
		// nspawn expects it in both, and creates it in one
		if err := os.MkdirAll(filepath.Join(g, "payload"), 0o755); err != nil {
			t.Skipf("no control group can be made for the machine: %v", err)
		}
		groups = append(groups, g)
		t.Cleanup(func() { removeGroup(g) })
	}
	if len(groups) == 0 {
		t.Skip("no control groups are mounted that a systemd could use")
	}
	return groups
}

func removeGroup(g string) {
	var all []string
	filepath.WalkDir(g, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, d := range slices.Backward(all) {
		os.Remove(d)
	}
}
