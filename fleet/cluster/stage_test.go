package cluster

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stage names what a process of this program is: the test as it was started; the first process of the machine, which
// sets its namespaces up; the test in it; or the first process of a node.
const (
	stage        = "REBOUND_CLUSTER_STAGE"
	stageMachine = "machine"
	stageTest    = "test"
	stageNode    = "node"
)

// Names of environment variables by which the stages share what the first one made.
const (
	envGroup  = "REBOUND_CLUSTER_GROUP"  // name of the cgroup
	envImages = "REBOUND_CLUSTER_IMAGES" // folder with the images
)

const images = space + "/images"

// skipped is why no cluster can run here.
var skipped string

func TestMain(m *testing.M) {
	switch os.Getenv(stage) {
	case stageMachine:
		must(setUp(machineScript))
		os.Exit(reap(respawn(stageTest)))
	case stageNode:
		must(setUp(nodeScript))
		fmt.Println("ready")
		reap(nil)
	case stageTest:
		os.Exit(m.Run())
	}
	flag.Parse()
	var err error
	if skipped, err = unavailable(); err == nil && skipped == "" {
		var code int
		if code, err = outside(); err == nil {
			os.Exit(code)
		}
	}
	must(err)
	os.Exit(m.Run())
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// programs is the folder of the cluster's programs, next to the go.mod that they were built from.
func programs() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return "", err
	}
	version := ""
	for line := range strings.Lines(string(mod)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "k8s.io/kubernetes" {
			version = f[1]
		}
	}
	return filepath.Join(filepath.Dir(here), ".cache", "cluster", version), nil
}

// unavailable returns why the tests have to be skipped.
func unavailable() (string, error) {
	if os.Getuid() != 0 {
		return "needs root for namespaces and containers", nil
	}
	for _, p := range []string{"ip", "iptables", "nsenter", "mount", "runc", "git", "go"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Sprintf("needs %s, which is not installed", p), nil
		}
	}
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		return fmt.Sprintf("needs the CNI plugins in %s (apt-get install containernetworking-plugins)", plugins), nil
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		if b, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err != nil ||
			!bytes.Contains(b, []byte("memory")) {
			return "needs cgroups: /sys/fs/cgroup has no memory controller", nil
		}
	}
	dir, err := programs()
	if err != nil {
		return "", err
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return "", err
	}
	if built, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil || !bytes.Equal(built, mod) {
		return fmt.Sprintf("the programs of Kubernetes are not built in %s (make cluster builds them, which takes ten minutes or more)", dir), nil
	}
	return "", nil
}

// outside makes the images, runs the tests in the machine, and removes its cgroups.
func outside() (int, error) {
	made := os.Getenv(envImages) // of an earlier run, to save the time
	if made == "" {
		var err error
		if made, err = os.MkdirTemp("", "rebound-cluster-"); err != nil {
			return 0, err
		}
		defer os.RemoveAll(made)
		if err := makeImages(made); err != nil {
			return 0, err
		}
	}
	group := fmt.Sprintf("rebound-cluster-%d", os.Getpid())
	if err := errors.Join(sweep(), makeGroups(group)); err != nil {
		return 0, err
	}
	os.Setenv(envGroup, group)
	os.Setenv(envImages, made)
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	c := command(stageMachine)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS |
			syscall.CLONE_NEWIPC}
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return c.ProcessState.ExitCode(), removeGroups(group)
}

// command is this program with its arguments in a stage.
func command(of string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), stage+"="+of)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	return c
}

func respawn(of string) *os.Process {
	c := command(of)
	must(c.Start())
	return c.Process
}

// reap collects processes that ended until p does, and returns its exit status.
func reap(p *os.Process) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.ECHILD:
			time.Sleep(50 * time.Millisecond) // a node has no child at first
		case err == nil && p != nil && pid == p.Pid:
			if status.Exited() {
				return status.ExitStatus()
			}
			fmt.Fprintln(os.Stderr, "cluster: the test ended by", status.Signal())
			return 1
		}
	}
}

// fresh mounts /sys, /proc and /run of new namespaces, with the cgroups of the old ones. Settings of the whole machine
// are read-only: the kubelet would change them.
const fresh = `
mkdir -p $tmp/cgroup
mount --rbind /sys/fs/cgroup $tmp/cgroup
mount -t sysfs sysfs /sys
mount --rbind $tmp/cgroup /sys/fs/cgroup
umount -l $tmp/cgroup
mount -t bpf bpf /sys/fs/bpf
mount -t proc proc /proc
for d in kernel vm; do mount --bind /proc/sys/$d /proc/sys/$d; mount -o remount,bind,ro /proc/sys/$d; done
mount -t tmpfs tmpfs /run
ip link set lo up
`

const machineScript = `
mount --make-rprivate /
mount -t tmpfs tmpfs ` + space + `
tmp=` + space + `
mkdir ` + images + `
mount --bind "$` + envImages + `" ` + images + `
` + fresh + `
hostname control
ip link add br0 type bridge
ip addr add ` + controlAddress + `/24 dev br0
ip link set br0 up
# In place of kube-proxy: the service of the API server, where pods reach it.
iptables -t nat -A PREROUTING -d ` + serviceAddress + ` -p tcp --dport 443 -j DNAT --to-destination ` + controlAddress + `:6443
echo 1 >/proc/sys/net/ipv4/ip_forward
`

const nodeScript = `
mount --make-rprivate /
tmp=$(mktemp -d -p ` + space + `)
` + fresh + `
for d in /var/lib /var/log /tmp; do mount -t tmpfs tmpfs $d; done
mkdir -p /etc/cni
mount -t tmpfs tmpfs /etc/cni
echo 1 >/proc/sys/net/ipv4/ip_forward
# The kubelet sets these, and ends if it cannot. They are the machine's, so it finds files with its values in their place.
for s in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	f=$(mktemp -p /var/lib)
	echo ${s#*=} >$f
	mount --bind $f /proc/sys/${s%=*}
done
`

func setUp(script string) error {
	if out, err := exec.Command("sh", "-euc", script).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// groups calls do with the folder of a cgroup in each hierarchy.
func groups(group string, do func(dir, parent string) error) error {
	parents := []string{"/sys/fs/cgroup"}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		if parents, err = filepath.Glob("/sys/fs/cgroup/*"); err != nil {
			return err
		}
	}
	var all error
	for _, p := range parents {
		if t, err := os.Readlink(p); err == nil && t != "" {
			continue // cpu -> cpu,cpuacct
		}
		all = errors.Join(all, do(filepath.Join(p, group), p))
	}
	return all
}

func makeGroups(group string) error {
	return groups(group, func(dir, parent string) error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		// empty in a new cgroup, and then nothing can run there
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
			if b, err := os.ReadFile(filepath.Join(parent, name)); err == nil {
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// removeGroups removes a cgroup with all below it. Its last processes may be dying.
func removeGroups(group string) error {
	return groups(group, func(dir, _ string) error {
		var err error
		for range 100 {
			var below []string
			filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					below = append(below, path)
				}
				return nil
			})
			err = nil
			for i := len(below) - 1; i >= 0; i-- {
				if e := syscall.Rmdir(below[i]); e != nil && e != syscall.ENOENT {
					err = fmt.Errorf("remove cgroup %s: %w", below[i], e)
				}
			}
			if err == nil {
				return nil
			}
			time.Sleep(100 * time.Millisecond)
		}
		return err
	})
}

// sweep removes the cgroups of killed runs.
func sweep() error {
	return groups("", func(dir, _ string) error {
		left, err := filepath.Glob(filepath.Join(dir, "rebound-cluster-*"))
		for _, l := range left {
			pid, bad := strconv.Atoi(strings.TrimPrefix(filepath.Base(l), "rebound-cluster-"))
			if bad == nil && syscall.Kill(pid, 0) == syscall.ESRCH {
				err = errors.Join(err, removeGroups(filepath.Base(l)))
			}
		}
		return err
	})
}
