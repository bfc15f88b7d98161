package cluster

import (
	"errors"
	"flag"
	"fmt"
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

const (
	chart   = "../deploy/helm/rebound"
	release = "rebound"
)

var away = flag.Duration("away", 20*time.Second, "how long TestCluster's API server is away")

// The chart in a cluster through what happens to clusters. Each step starts with what the earlier ones left.
func TestCluster(t *testing.T) {
	begin := time.Now()
	c := newCluster(t)
	n1, n2 := c.join(1, "a", ""), c.join(2, "b", "")
	c.ready("node1", "node2")
	t.Logf("cluster: two nodes after %.0f s", time.Since(begin).Seconds())

	step := func(name string, f func(t *testing.T)) {
		if t.Failed() {
			return
		}
		t.Run(name, func(t *testing.T) {
			defer func(old *testing.T) { c.t = old }(c.t)
			c.t = t
			f(t)
		})
	}
	step("install", func(t *testing.T) {
		begin := time.Now()
		c.helm("install", release, chart, "-n", release, "--create-namespace", "--set", "image.tag=old,prober.rate=10",
			"--wait")
		c.matrix(n1, n2)
		t.Logf("from helm install to the first matrix: %.1f s", time.Since(begin).Seconds())
	})
	step("helm test", func(t *testing.T) {
		c.helm("test", release, "-n", release, "--logs")
	})
	step("plain manifest", func(t *testing.T) {
		const file = "../deploy/kubernetes/rebound.yaml"
		out := c.helm("template", release, chart, "-n", release, "-f", filepath.Dir(file)+"/values.yaml")
		if _, rest, _ := strings.Cut(string(value(os.ReadFile(file))(t)), "\n"); rest != out {
			t.Errorf("%s is not what the chart makes: its first line says how to make it", file)
		}
		c.kubectl("apply", "--dry-run=server", "-f", file)
	})
	step("values", func(t *testing.T) { c.values() })
	step("rights", func(t *testing.T) { c.rights(n1) })
	step("Pod Security restricted", func(t *testing.T) {
		c.kubectl("create", "namespace", "restricted")
		c.kubectl("label", "namespace", "restricted", "pod-security.kubernetes.io/enforce=restricted")
		c.helm("install", "pods", chart, "-n", "restricted", "--set",
			"image.tag=old,responder.enabled=false,prober.hostNetwork=false", "--wait")
		c.helm("uninstall", "pods", "-n", "restricted", "--wait")
	})
	step("killed", func(t *testing.T) { c.killed(n1) })
	var n3 *node
	step("join", func(t *testing.T) {
		watched := c.watch("join", []*node{n1, n2})
		n3 = c.join(3, "a", "")
		c.ready("node3")
		c.matrix(n1, n2, n3)
		watched.quiet()
	})
	step("cordon and drain", func(t *testing.T) {
		watched := c.watch("drain", []*node{n1, n2, n3})
		c.kubectl("cordon", "node3")
		c.kubectl("drain", "node3", "--ignore-daemonsets", "--delete-emptydir-data", "--force")
		c.probed(50, n1, n2, n3)
		watched.quiet()
		c.kubectl("uncordon", "node3")
	})
	step("API server away", func(t *testing.T) {
		watched := c.watch("API server", []*node{n1, n2, n3})
		c.api.stop(t, syscall.SIGKILL)
		c.probed(10*away.Seconds(), n1, n2, n3) // at ten a second
		c.startAPI()
		c.ready("node1", "node2", "node3")
		watched.quiet()
	})
	step("partition", func(t *testing.T) { c.partition(n1, n2, n3) })
	step("upgrade and rollback", func(t *testing.T) { c.upgrades(n1, n2, n3) })
	step("budget", func(t *testing.T) { c.budget() })
	step("leave", func(t *testing.T) {
		watched := c.watch("leave", []*node{n1, n2})
		c.kubectl("delete", "node", "node3")
		c.matrix(n1, n2)
		n3.kill()
		c.probed(50, n1, n2)
		watched.quiet()
	})
	step("remove", func(t *testing.T) {
		c.helm("uninstall", release, "-n", release, "--wait")
		for _, n := range []*node{n1, n2} {
			n.must("sh", "-euc", "rm -r /sys/fs/bpf/rebound*") // the pin
			c.wait(n.name+": nothing attached", func() error {
				if out := n.must("ip", "link", "show", "eth0"); strings.Contains(out, "xdp") {
					return errors.New(out)
				}
				return nil
			})
		}
	})
}

// values checks that discovery follows other values of the chart, and that the API server accepts what the chart makes
// of them.
func (c *cluster) values() {
	const controlPlane = "!node-role.kubernetes.io/control-plane"
	for _, v := range []struct{ set, has, hasNot string }{
		{"networkPolicy.enabled=true,networkPolicy.apiPorts={7443}", "port: 7443", controlPlane},
		{"tolerations=null,nodeSelector.pool=a", "kubernetes.io/os=linux,pool=a," + controlPlane, "port: 7443"},
		{"tolerations[0].key=x,tolerations[0].operator=Exists", controlPlane, "NoSchedule"},
		{"tolerations[0].operator=Exists", "rebound-discover", controlPlane},
		{"nodeLabels.rack=example.org/rack-name", "__meta_kubernetes_node_label_example_org_rack_name", "kubernetes_io_rack"},
		{"discovery.enabled=false", "fleet.json", "kind: ServiceAccount"},
		{"nodes[0].name=n,nodes[0].address=10.0.0.1", "10.0.0.1", "rebound-discover"},
		{"prober.push=http://otel:4318/v1/metrics,prober.env[0].name=OTEL_SERVICE_NAME,prober.env[0].value=probers", "- name: OTEL_SERVICE_NAME\n              value: probers", "unused"},
		{"prober.push=http://otel:4318/v1/metrics", "- -push-url\n            - \"http://otel:4318/v1/metrics\"", "unused"},
		{"prober.enabled=false", "responder", "ClusterRole"},
		{"responder.driver=mlx5,responder.resources.limits.rdma/hca_shared_devices_a=1", `["NET_RAW","IPC_LOCK","SETUID","SETGID","SETPCAP"]`, "BPF"},
		{`responder.driver=efa,responder.resources.limits.vpc\.amazonaws\.com/efa=1`, "vpc.amazonaws.com/efa: 1", "NET_RAW"},
	} {
		out := c.helm("template", release, chart, "-n", release, "--set", "test.nodes=0,"+v.set)
		if !strings.Contains(out, v.has) || strings.Contains(out, v.hasNot) {
			c.t.Errorf("%s: want %q and not %q in\n%s", v.set, v.has, v.hasNot, out)
		}
		file := space + "/values.yaml"
		c.write(file, out)
		c.kubectl("apply", "--dry-run=server", "-f", file)
	}
	if err := c.try("helm", "template", release, chart, "--kube-version", "1.28.0"); err == nil ||
		!strings.Contains(err.Error(), "discovery.enabled needs Kubernetes 1.29") {
		c.t.Errorf("with Kubernetes 1.28: %v", err)
	}
}

// ready waits until nodes are.
func (c *cluster) ready(names ...string) {
	c.t.Helper()
	c.wait("ready: "+strings.Join(names, ", "), func() error {
		for _, n := range names {
			if s, err := c.condition(n); err != nil || s != "True" {
				return fmt.Errorf("%s is ready: %q, %v", n, s, err)
			}
		}
		return nil
	})
}

func (c *cluster) condition(node string) (string, error) {
	return c.output("kubectl", "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
}

// rolled waits until all pods of both DaemonSets are of the newest version, and ready.
func (c *cluster) rolled() {
	c.t.Helper()
	for _, d := range []string{"responder", "prober"} {
		c.kubectl("rollout", "status", "-n", release, "daemonset/"+release+"-"+d, "--timeout=300s")
	}
}

// upgrade applies the chart with further settings, and waits.
func (c *cluster) upgrade(set ...string) {
	c.t.Helper()
	args := []string{"upgrade", release, chart, "-n", release, "--reuse-values", "--wait"}
	if len(set) > 0 {
		args = append(args, "--set", strings.Join(set, ","))
	}
	c.helm(args...)
	c.rolled()
}

// pod returns the name of a component's pod on a node.
func (c *cluster) pod(n *node, component string) string {
	c.t.Helper()
	return strings.TrimSpace(c.kubectl("get", "pods", "-n", release, "-l", "app.kubernetes.io/component="+component,
		"--field-selector", "spec.nodeName="+n.name,
		"-o", "jsonpath={.items[0].metadata.name}"))
}

// process returns the process of a program in a node, 0 if there is none, as the machine sees it.
func (n *node) process(program string) int {
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, p := range all {
		exe, _ := os.Readlink(p)
		pid, _ := strconv.Atoi(strings.Split(p, "/")[2])
		if exe == program && sameSpace(pid, n.init.Process.Pid, "net") {
			return pid
		}
	}
	return 0
}

func sameSpace(a, b int, kind string) bool {
	x, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", a, kind))
	y, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", b, kind))
	return err == nil && err2 == nil && x == y
}

// status returns a field of a process's status.
func status(pid int, field string) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// rights checks what the processes may do.
func (c *cluster) rights(n *node) {
	const none = "0000000000000000"
	prober, responder, discover := n.process("/usr/bin/rebound-watch"), n.process("/usr/bin/rebound-responder"),
		n.process("/usr/bin/rebound-discover")
	if prober == 0 || responder == 0 || discover == 0 {
		c.t.Fatalf("prober %d, responder %d, discover %d", prober, responder, discover)
	}
	for _, set := range []string{"CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"} {
		for what, pid := range map[string]int{"prober": prober, "discover": discover} {
			if v := status(pid, set); v != none {
				c.t.Errorf("%s has %s %s", what, set, v)
			}
		}
	}
	for what, pid := range map[string]int{"prober": prober, "responder": responder, "discover": discover} {
		if uid := status(pid, "Uid"); !strings.HasPrefix(uid, "65534\t65534\t65534") {
			c.t.Errorf("the %s has uid %s", what, uid)
		}
		for field, want := range map[string]string{"NoNewPrivs": "1", "Seccomp": "2"} {
			if v := status(pid, field); v != want {
				c.t.Errorf("the %s: %s %s", what, field, v)
			}
		}
		mounts := value(os.ReadFile(fmt.Sprintf("/proc/%d/mounts", pid)))(c.t)
		if first, _, _ := strings.Cut(string(mounts), "\n"); !strings.Contains(first, " / overlay ro,") {
			c.t.Errorf("the %s's root is %s", what, first)
		}
		if has := strings.Contains(string(mounts), "serviceaccount"); has != (pid == discover) {
			c.t.Errorf("the %s has a service account token: %v", what, has)
		}
	}
	rights := func(account string) []string {
		out := c.kubectl("auth", "can-i", "--list", "--no-headers", "--as=system:serviceaccount:"+release+":"+account)
		return strings.Split(strings.TrimSpace(out), "\n")
	}
	every := rights("default")
	more := slices.DeleteFunc(rights(release+"-prober"), func(line string) bool { return slices.Contains(every, line) })
	if len(more) != 1 || strings.Join(strings.Fields(more[0]), " ") != "nodes [] [] [get list watch]" {
		c.t.Errorf("the service account may, beyond what every one may: %q", more)
	}
	c.t.Logf("resident: prober %s, responder %s, discover %s", status(prober, "VmRSS"), status(responder, "VmRSS"),
		status(discover, "VmRSS"))
	c.t.Logf("responder when ready: CapEff %s, CapBnd %s", status(responder, "CapEff"), status(responder, "CapBnd"))
}

// killed ends the responder, then the kubelet and the responder, by SIGKILL: nothing stays on the interface, and they
// come back.
func (c *cluster) killed(n *node) {
	attached := func() bool { return strings.Contains(n.must("ip", "link", "show", "eth0"), "xdp") }
	if !attached() {
		c.t.Fatal("no program is attached")
	}
	end := func() {
		pid := n.process("/usr/bin/rebound-responder")
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			c.t.Fatalf("process %d: %v", pid, err)
		}
		c.wait("the responder is gone", func() error {
			if n.process("/usr/bin/rebound-responder") == pid {
				return errors.New("it is there")
			}
			return nil
		})
	}
	back := func() {
		c.wait("the responder answers again", func() error {
			if p, err := n.page(9469); err != nil || len(p) == 0 {
				return fmt.Errorf("%d series, %v", len(p), err)
			}
			return nil
		})
		c.matrix(c.nodes["node1"], c.nodes["node2"])
	}
	end()
	back()

	n.kubelet.stop(c.t, syscall.SIGKILL)
	c.probed(20, c.nodes["node1"], c.nodes["node2"]) // pods go on without it
	end()
	c.wait("nothing attached without responder and kubelet", func() error {
		if attached() {
			return errors.New("a program is")
		}
		return nil
	})
	n.startKubelet()
	c.ready(n.name)
	back()
}

// partition cuts the third node off at its port of the switch. (In the node's namespace iptables would not do it: XDP
// answers before it.)
func (c *cluster) partition(n1, n2, n3 *node) {
	watched := c.watch("partition", []*node{n1, n2})
	port := fmt.Sprintf("veth%d", n3.number)
	link := func(args ...string) {
		c.t.Helper()
		if out, err := exec.Command("ip", append([]string{"link", "set", port},
			args...)...).CombinedOutput(); err != nil {
			c.t.Fatalf("%v: %s", err, out)
		}
	}
	link("nomaster")
	for _, n := range []*node{n1, n2} {
		c.wait(n.name+" sees that node3 is down", func() error {
			p, err := n.page(9470)
			if err != nil {
				return err
			}
			if up, ok := p.to("rebound_target_up", n3); !ok || up != 0 {
				return fmt.Errorf("up %v (%v)", up, ok)
			}
			return nil
		})
	}
	c.wait("Kubernetes sees that node3 is not ready", func() error {
		if s, err := c.condition("node3"); err != nil || s == "True" {
			return fmt.Errorf("%s, %v", s, err)
		}
		return nil
	})
	for _, n := range []*node{n1, n2} {
		lines := watched.downs(n)
		if len(lines) != 1 || !strings.Contains(lines[0], "node3") && !strings.Contains(lines[0], n3.address) {
			c.t.Errorf("%s reports %q, want node3 alone", n.name, lines)
		}
	}
	link("master", "br0")
	c.ready("node3")
	c.matrix(n1, n2, n3)
}

// upgrades replaces the image and goes back. With responder.pin no target is down meanwhile.
func (c *cluster) upgrades(nodes ...*node) {
	image := func(want string) {
		c.t.Helper()
		out := c.kubectl("get", "pods", "-n", release, "-l",
			"app.kubernetes.io/name=rebound,app.kubernetes.io/component in (responder,prober)",
			"-o", "jsonpath={range .items[*]}{.spec.containers[0].image}{\"\\n\"}{end}")
		for line := range strings.Lines(out) {
			if strings.TrimSpace(line) != "rebound:"+want {
				c.t.Errorf("image %s, want tag %s", strings.TrimSpace(line), want)
			}
		}
	}
	c.upgrade("image.tag=new")
	image("new")
	c.matrix(nodes...)
	c.helm("rollback", release, "-n", release, "--wait")
	c.rolled()
	image("old")
	c.matrix(nodes...)

	c.upgrade("responder.pin=rebound")
	c.matrix(nodes...)
	watched := c.watch("upgrade with a pin", nodes)
	c.upgrade("responder.settings.guard\\.rate=100000")
	c.matrix(nodes...)
	watched.quiet()
}

// budget checks that an eviction below the budget is refused.
func (c *cluster) budget() {
	c.upgrade("responder.minAvailable=3")
	pod := c.pod(c.nodes["node1"], "responder")
	file := space + "/eviction.json"
	c.write(file, fmt.Sprintf(
		`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q, "namespace": %q}}`, pod, release))
	c.wait("the budget refuses an eviction", func() error {
		err := c.try("kubectl", "create", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/eviction", release, pod),
			"-f", file)
		if err == nil {
			c.t.Fatal("the eviction passed")
		}
		if !strings.Contains(err.Error(), "disruption budget") {
			return err
		}
		return nil
	})
	c.upgrade("responder.minAvailable=0")
}
