package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sandbox runs commands as root in namespaces of their own: no network but a loopback, none of this machine's
// processes, none of its devices but those of bubblewrap's /dev and /dev/net/tun, and all files read-only. The build
// cache and the working tree can be written, into memory that goes with the command. Of root's capabilities those are
// left that network interfaces, BPF and mounts take. Against a program that means harm that would not be enough.
type sandbox struct{ dir, cache, tree string }

// Limits: of all files that a command writes, and of the memory of each of its processes.
const (
	mostFiles  = "4g"
	mostMemory = 4 << 30
)

// capabilities are what is left of root's.
var capabilities = strings.Fields(`cap_bpf cap_chown cap_dac_override cap_dac_read_search cap_fowner cap_fsetid cap_ipc_lock cap_kill
	cap_net_admin cap_net_bind_service cap_net_raw cap_perfmon cap_setfcap cap_setgid cap_setpcap cap_setuid cap_sys_admin cap_sys_chroot
	cap_sys_nice cap_sys_ptrace cap_sys_resource`)

// layers mounts copies of two folders that are written to memory, and executes the rest of its arguments.
const layers = `mount -t tmpfs -o size=` + mostFiles + ` none "$1"
for n in 1 2; do
	mkdir "$1/$n" "$1/up$n" "$1/work$n"
	eval "lower=\${$((n+1))}"
	mount -t overlay -o "lowerdir=$lower,upperdir=$1/up$n,workdir=$1/work$n" none "$1/$n"
done
shift 3
exec "$@"`

// builtFolder has the programs that tests find in the sandbox where they would link them.
func builtFolder(dir string) string { return filepath.Join(dir, "tree", "out", "programs") }

// newSandbox finds the programs. dir is an empty folder.
func newSandbox(dir string) (*sandbox, error) {
	for _, p := range []string{"bwrap", "unshare", "prlimit"} {
		if _, err := exec.LookPath(p); err != nil {
			return nil, fmt.Errorf("as root the tests run inside of bubblewrap: %w (apt install bubblewrap; an ordinary user needs none, and runs the tests of make check)", err)
		}
	}
	out, err := exec.Command("go", "env", "GOCACHE").Output()
	tree, terr := os.Getwd()
	box := &sandbox{dir: dir, cache: strings.TrimSpace(string(out)), tree: tree}
	return box, errors.Join(err, terr, os.Mkdir(dir+"/layers", 0o755),
		os.MkdirAll(reachedFolder(dir), 0o755), os.MkdirAll(builtFolder(dir), 0o755))
}

// wrap returns the arguments that run a command in the sandbox, in a folder of the tree; the command itself if the
// sandbox is nil.
func (s *sandbox) wrap(dir string, command []string) []string {
	if s == nil {
		return command
	}
	at, reached := s.dir+"/layers", reachedFolder(s.dir)
	args := []string{"unshare", "--mount", "--propagation", "private", "sh", "-ec", layers, "sh", at, s.cache,
		s.dir + "/tree:" + s.tree,
		"prlimit", fmt.Sprintf("--data=%d", mostMemory), "bwrap", "--unshare-net", "--unshare-pid", "--unshare-ipc",
		"--unshare-uts", "--unshare-cgroup",
		"--die-with-parent", "--new-session", "--ro-bind", "/", "/", "--dev", "/dev", "--dev-bind-try", "/dev/net/tun",
		"/dev/net/tun", "--proc", "/proc",
		"--tmpfs", "/tmp", "--tmpfs", "/run", "--ro-bind", s.dir, s.dir,
		"--bind", reached, reached, "--bind", at + "/1", s.cache, "--bind",
		at + "/2", s.tree, "--chdir", dir, "--cap-drop", "all"}
	for _, c := range capabilities {
		args = append(args, "--cap-add", c)
	}
	return append(append(args, "--"), command...)
}
