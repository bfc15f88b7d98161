package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const thousand = 1000

// kwokNode is a Node whose kubelet kwok simulates.
func kwokNode(i int) map[string]any {
	name := fmt.Sprintf("kwok-%04d", i)
	return map[string]any{"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": name, "annotations": map[string]string{"kwok.x-k8s.io/node": "fake"},
			"labels": map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux",
				"topology.kubernetes.io/zone": string(rune('a' + i%5)),
				"topology.kubernetes.io/rack": fmt.Sprint("r", i/5%20)}},
		"status": map[string]any{"addresses": []any{map[string]string{"type": "InternalIP", "address": fmt.Sprintf("10.80.%d.%d", i/250, 1+i%250)}, map[string]string{"type": "Hostname", "address": name}},
			"allocatable": map[string]string{"cpu": "32", "memory": "256Gi", "pods": "110"},
			"capacity":    map[string]string{"cpu": "32", "memory": "256Gi", "pods": "110"}}}
}

func (c *cluster) create(objects ...any) {
	c.t.Helper()
	text := value(json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects}))(c.t)
	file := space + "/objects.json"
	c.write(file, string(text))
	c.kubectl("create", "-f", file)
}

// rebound-discover lists a thousand nodes of a real API server, with the chart's configuration and service account, and
// follows joins and leaves. kwok plays the kubelets, and the chart's pods run on all of them as far as Kubernetes can
// tell. The watches' own code then chooses the peers of each node from the files that discovery wrote.
func TestThousand(t *testing.T) {
	if skipped != "" {
		t.Skip(skipped)
	}
	bin := value(programs())(t)
	if _, err := os.Stat(filepath.Join(bin, "kwok")); err != nil {
		t.Skipf("%v (make cluster builds it)", err)
	}
	dir := t.TempDir()
	discover, chooser := filepath.Join(dir, "rebound-discover"), filepath.Join(dir, "watch.test")
	for _, args := range [][]string{{"-C", "../discovery", "build", "-o", discover, "."},
		{"-C", "../..", "test", "-c", "-o", chooser, "./fleet/watch"}} {
		build := exec.Command("go", args...)
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	c := newCluster(t, "--node-monitor-grace-period", "5m", "--kube-api-qps", "500", "--kube-api-burst", "1000")
	c.limit = 20 * time.Minute
	c.start("kwok", filepath.Join(bin, "kwok"), "--kubeconfig", admin, "--config", filepath.Join(bin, "kwok.yaml"),
		"--manage-all-nodes=false", "--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake")
	var nodes []any
	for i := range thousand {
		nodes = append(nodes, kwokNode(i))
	}
	c.create(nodes...)
	c.helm("install", release, chart, "-n", release, "--create-namespace", "--set", "image.tag=old")
	c.wait("the pods of all nodes are ready", func() error {
		out, err := c.output("kubectl", "get", "daemonset", "-n", release, "-o",
			`jsonpath={range .items[*]}{.metadata.name} {.status.numberReady}{"\n"}{end}`)
		if err == nil && strings.Count(out, fmt.Sprint(" ", thousand, "\n")) != 2 {
			err = errors.New(out)
		}
		return err
	})

	c.write(space+"/discover.yaml", string(access(strings.TrimSpace(
		c.kubectl("create", "token", release+"-prober", "-n", release)))))
	config := c.kubectl("get", "configmap", "-n", release, release+"-prober-discovery", "-o",
		`jsonpath={.data.nodes\.yml}`)
	if config, _, _ = strings.Cut(strings.Replace(config, "- role: node\n",
		"- kubeconfig_file: "+space+"/discover.yaml\n    role: node\n", 1), "\x00"); !strings.Contains(config,
		"kubeconfig_file") {
		t.Fatalf("the chart's configuration of discovery is not as expected:\n%s", config)
	}
	c.write(space+"/nodes.yml", config)
	list := filepath.Join(dir, "fleet.json")
	d := c.start("discover", discover, "-config", space+"/nodes.yml", "-out", list)
	var files []string
	listed := func(n int, has, hasNot string) {
		t.Helper()
		c.wait(fmt.Sprintf("%d nodes are listed", n), func() error {
			text, err := os.ReadFile(list)
			if err != nil {
				return err
			}
			if got := strings.Count(string(text), `"targets"`); got != n || !strings.Contains(string(text), has) ||
				hasNot != "" && strings.Contains(string(text), hasNot) {
				return fmt.Errorf("%d", got)
			}
			file := filepath.Join(dir, fmt.Sprintf("fleet%d.json", len(files)))
			files = append(files, file)
			return os.WriteFile(file, text, 0o644)
		})
	}
	listed(thousand, "kwok-0999", "")
	usage := func(when string) {
		t.Helper()
		f := strings.Fields(string(value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.pid())))(t)))
		user, _ := strconv.Atoi(f[13])
		system, _ := strconv.Atoi(f[14])
		t.Logf("rebound-discover %s: resident %s, at most %s, CPU time %.2f s", when, status(d.pid(), "VmRSS"),
			status(d.pid(), "VmHWM"), float64(user+system)/100)
	}
	usage("after the first list")
	begin := time.Now()
	c.create(kwokNode(thousand))
	listed(thousand+1, "kwok-1000", "")
	c.kubectl("delete", "node", "kwok-0017")
	listed(thousand, "kwok-1000", "kwok-0017")
	usage(fmt.Sprintf("%.0f s later", time.Since(begin).Seconds()))
	text, err := os.ReadFile(d.log)
	if err != nil || strings.Contains(string(text), "level=WARN") || strings.Contains(string(text), "level=ERROR") {
		t.Errorf("rebound-discover: %v\n%s", err, tail(d.log, 20))
	}
	d.stop(t, syscall.SIGTERM)
	out, err := exec.Command(chooser, "-test.v", "-test.run", "^TestFleetFiles$", "-fleet",
		strings.Join(files, ",")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "2 hosts joined or left") &&
		strings.Count(string(out), "1 hosts joined or left") != 2 {
		t.Errorf("the peers: %v", err)
	}
	t.Logf("%s", out)
}
