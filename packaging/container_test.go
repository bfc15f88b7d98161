package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// imageRoot fills a folder with what Containerfile copies, and returns the entry point.
func imageRoot(t *testing.T, o options, root string) (entry []string) {
	t.Helper()
	stage := filepath.Join(o.out, "stage-"+o.arch)
	text := value(os.ReadFile(filepath.Join(stage, "Containerfile")))(t)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#" || line == "FROM scratch\n":
		case f[0] == "COPY" && len(f) == 3:
			to := filepath.Join(root, f[2])
			must(t, os.MkdirAll(filepath.Dir(to), 0o755))
			must(t, sh("cp -p "+filepath.Join(stage, f[1])+" "+to))
		case f[0] == "ENTRYPOINT":
			entry = strings.Fields(strings.NewReplacer("[", "", "]", "", ",", "", `"`,
				"").Replace(strings.TrimPrefix(line, "ENTRYPOINT")))
		default:
			t.Fatalf("Containerfile: the test does not know %q", line)
		}
	}
	return entry
}

// The files that Containerfile copies are all that the responder needs: in a root with these files and the file systems
// that a container runtime mounts, it answers. No image builder is used, so the test runs without one.
func TestContainer(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for a root folder and a network namespace")
	}
	o := packaged(t)
	root := t.TempDir()
	entry := imageRoot(t, o, root)
	space := fmt.Sprintf("rebound-ctr-%d", os.Getpid())
	wire(t, space)
	must(t, os.MkdirAll(filepath.Join(root, "proc"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "sys"), 0o755))
	cmd := exec.Command("nsenter", "--net=/run/netns/"+space, "unshare", "-m", "sh", "-ec", fmt.Sprintf(
		"mount -t proc proc %[1]s/proc; mount -t sysfs sysfs %[1]s/sys; exec chroot %[1]s %[2]s -set nic.device=eth1 -set respond.addresses=10.9.0.2/24",
		root, strings.Join(entry, " ")))
	var log strings.Builder
	cmd.Stderr = &log
	lines := bufio.NewReader(value(cmd.StdoutPipe())(t))
	must(t, cmd.Start())
	if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready driver=xdp device=eth1") {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("%q, %v\n%s", line, err, log.String())
	}
	// fails with fewer than five replies
	err := sh("ip netns exec " + space + "-far ping -q -c 5 -i 0.1 -w 60 10.9.0.2 >/dev/null")
	cmd.Process.Signal(syscall.SIGTERM)
	lines.WriteTo(new(strings.Builder))
	if ended := cmd.Wait(); err != nil || ended != nil {
		t.Errorf("ping: %v; exit: %v\n%s", err, ended, log.String())
	}
}
