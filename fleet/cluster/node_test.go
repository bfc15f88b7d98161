package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// node is a host of the cluster: its namespaces, containerd and a kubelet.
type node struct {
	*cluster
	name       string
	number     int
	zone       string
	address    string
	init       *exec.Cmd
	containerd *daemon
	kubelet    *daemon
}

// join starts a node and its kubelet, with the images. It does not wait until the node is ready.
func (c *cluster) join(number int, zone, settings string) *node {
	c.t.Helper()
	n := &node{cluster: c, name: fmt.Sprintf("node%d", number), number: number, zone: zone,
		address: fmt.Sprintf("10.77.0.%d", 10+number)}
	n.init = exec.Command("/proc/self/exe", "-test.run=^$")
	n.init.Env = append(os.Environ(), stage+"="+stageNode)
	n.init.Stderr = os.Stderr
	n.init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS |
		syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	out := value(n.init.StdoutPipe())(c.t)
	if err := n.init.Start(); err != nil {
		c.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		c.t.Fatalf("%s: %q, %v", n.name, line, err)
	}
	c.nodes[n.name] = n
	pid := n.init.Process.Pid
	// An earlier node of that number left its route, and the kernel may still be removing its interface.
	host := fmt.Sprintf("ip link del veth%[1]d 2>/dev/null || true; ip link add veth%[1]d type veth peer name eth0 netns %[2]d; ip link set veth%[1]d master br0 up; "+
		"ip route replace %[3]s%[1]d.0/24 via %[4]s", number, pid, podPrefix, n.address)
	if out, err := exec.Command("sh", "-euc", host).CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	n.must("sh", "-euc", fmt.Sprintf(
		"hostname %[1]s; ip addr add %[2]s/24 dev eth0; ip link set eth0 up; ip route add default via %[3]s",
		n.name, n.address, controlAddress))
	n.startContainerd()
	for _, image := range []string{"pause.tar", "rebound.tar"} {
		n.ctr("images", "import", filepath.Join(images, image))
	}
	n.ctr("images", "tag", ourImage+":latest", ourImage+":old")
	n.ctr("images", "tag", ourImage+":latest", ourImage+":new")
	n.write(n.file("kubeconfig"), string(access(n.name)))
	n.write(n.file("kubelet.yaml"), fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /%s/%s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
featureGates: {KubeletInUserNamespace: true}
resolvConf: ""
failSwapOn: false
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 4
syncFrequency: 5s
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 1Mi, nodefs.available: 0%%, imagefs.available: 0%%, nodefs.inodesFree: 0%%}
%s`, os.Getenv(envGroup), n.name, settings))
	group := filepath.Join(os.Getenv(envGroup), n.name)
	if err := errors.Join(removeGroups(group), makeGroups(group)); err != nil {
		c.t.Fatal(err)
	}
	n.startKubelet()
	return n
}

func (n *node) file(name string) string { return filepath.Join(space, n.name, name) }

// inside is a command in the node's namespaces.
func (n *node) inside(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", fmt.Sprint(n.init.Process.Pid), "-m", "-n", "-p", "-u", "-i",
		"--"}, args...)...)
}

func (n *node) run(args ...string) (string, error) {
	return outputOf(n.inside(args...))
}

func (n *node) must(args ...string) string {
	n.t.Helper()
	return value(n.run(args...))(n.t)
}

func (n *node) ctr(args ...string) string {
	n.t.Helper()
	return n.must(append([]string{filepath.Join(n.bin, "ctr"), "-n", "k8s.io"}, args...)...)
}

func (n *node) startContainerd() {
	n.t.Helper()
	n.write(n.file("cni/10-pods.conflist"), fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
"ipam": {"type": "host-local", "ranges": [[{"subnet": "%s%d.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`, podPrefix, n.number))
	n.write(n.file("containerd.toml"), fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q]
conf_dir = %q
`, pauseImage, plugins, n.file("cni")))
	n.containerd = n.daemon("containerd", "-c", n.file("containerd.toml"))
	n.wait(n.name+": containerd", func() error { _, err := n.run(filepath.Join(n.bin, "ctr"), "version"); return err })
}

func (n *node) startKubelet() {
	n.t.Helper()
	n.kubelet = n.daemon("kubelet", "--kubeconfig", n.file("kubeconfig"), "--config", n.file("kubelet.yaml"),
		"--hostname-override", n.name,
		"--node-ip", n.address, "--node-labels", "topology.kubernetes.io/zone="+n.zone, "--v", "1")
}

func (n *node) daemon(program string, args ...string) *daemon {
	n.t.Helper()
	cmd := n.inside(append([]string{filepath.Join(n.bin, program)}, args...)...)
	d := n.start(n.name+"-"+program, cmd.Path, cmd.Args[1:]...)
	d.behind = true
	return d
}

// kill takes a node's power: every process of it ends at once.
func (n *node) kill() {
	n.init.Process.Kill()
	n.init.Wait()
	delete(n.nodes, n.name)
}
