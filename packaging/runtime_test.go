package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// runtimeRules are the system calls that containerd allows by default: for every container, and in addition for each
// capability. testdata/containerd/main.go generates the file.
type runtimeRules struct {
	Base map[string]any
	With map[string][]any
}

// profile is the seccomp profile of a container with these capabilities.
func (r *runtimeRules) profile(capabilities []string) map[string]any {
	p := map[string]any{}
	for k, v := range r.Base {
		p[k] = v
	}
	for _, c := range capabilities {
		p["syscalls"] = append(slices.Clone(p["syscalls"].([]any)), r.With[c]...)
	}
	return p
}

// pod runs the image as containerd would have runc run a container of a pod: with its seccomp profile, a read-only
// root, no new privileges, these capabilities and no others. Its network is a namespace with the interface eth1.
type pod struct {
	rules  runtimeRules
	root   string
	entry  []string
	space  string
	bundle string
}

func newPod(t *testing.T) *pod {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for containers and network namespaces")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("testdata/containerd/profile.json is amd64's")
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("needs runc, which is not installed (scripts/install-deps)")
	}
	p := &pod{bundle: t.TempDir(), space: fmt.Sprintf("rebound-pod-%d", os.Getpid())}
	must(t, json.Unmarshal(value(os.ReadFile("testdata/containerd/profile.json"))(t), &p.rules))
	p.root = filepath.Join(p.bundle, "rootfs")
	p.entry = imageRoot(t, packaged(t), p.root)
	for _, d := range []string{"proc", "sys", "dev"} {
		must(t, os.Mkdir(filepath.Join(p.root, d), 0o755))
	}
	wire(t, p.space)
	return p
}

// run starts the image with arguments, pings it if it prints a ready line, and stops it. It returns that line and the
// log.
func (p *pod) run(t *testing.T, capabilities []string, arguments ...string) (ready, log string) {
	t.Helper()
	file := filepath.Join(p.bundle, "config.json")
	must(t, sh("rm -f "+file+"; runc spec -b "+p.bundle))
	var c map[string]any
	must(t, json.Unmarshal(value(os.ReadFile(file))(t), &c))
	var named []string
	for _, c := range capabilities {
		named = append(named, "CAP_"+c)
	}
	process := c["process"].(map[string]any)
	delete(process, "rlimits") // the service's
	process["terminal"], process["noNewPrivileges"], process["args"] = false, true,
		append(slices.Clone(p.entry), arguments...)
	process["capabilities"] = map[string][]string{"bounding": named, "effective": named, "permitted": named}
	c["root"] = map[string]any{"path": "rootfs", "readonly": true}
	linux := c["linux"].(map[string]any)
	for _, n := range linux["namespaces"].([]any) {
		if n := n.(map[string]any); n["type"] == "network" {
			n["path"] = "/run/netns/" + p.space
		}
	}
	linux["seccomp"] = p.rules.profile(named)
	must(t, os.WriteFile(file, value(json.Marshal(c))(t), 0o644))
	cmd := exec.Command("runc", "run", "-b", p.bundle, p.space)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	lines := bufio.NewReader(value(cmd.StdoutPipe())(t))
	must(t, cmd.Start())
	defer exec.Command("runc", "delete", "-f", p.space).Run()
	ready, _ = lines.ReadString('\n')
	if ready != "" {
		for _, script := range []string{"ip netns exec " + p.space + "-far ping -q -c 5 -i 0.1 -w 60 10.9.0.2",
			"runc kill " + p.space + " TERM"} {
			if err := sh(script); err != nil {
				t.Error(err)
			}
		}
	}
	lines.WriteTo(new(bytes.Buffer))
	if err := cmd.Wait(); (err == nil) != (ready != "") {
		t.Errorf("ready %q, and it ended with %v\n%s", ready, err, stderr.String())
	}
	return ready, stderr.String()
}

// The responder's pod starts under containerd's profile with the chart's capabilities and arguments, answers, and
// leaves uid 0.
func TestKubernetesPod(t *testing.T) {
	p := newPod(t)
	for _, doc := range manifests(t, "../fleet/deploy/kubernetes/rebound.yaml") {
		var d struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Name            string
							Args            []string
							SecurityContext struct{ Capabilities struct{ Drop, Add []string } }
						}
					}
				}
			}
		}
		must(t, yaml.Unmarshal(doc, &d))
		if d.Kind != "DaemonSet" || d.Spec.Template.Spec.Containers[0].Name != "responder" {
			continue
		}
		c := d.Spec.Template.Spec.Containers[0]
		if !slices.Equal(c.SecurityContext.Capabilities.Drop, []string{"ALL"}) {
			t.Errorf("drop %q", c.SecurityContext.Capabilities.Drop)
		}
		// eth1 has no address of the kernel here.
		arguments := []string{"-v", "-set", "nic.device=eth1"}
		for _, a := range c.Args {
			if strings.HasPrefix(a, "stats.listen=") {
				a = "stats.listen="
			}
			arguments = append(arguments, strings.ReplaceAll(a, "$(NODE_ADDRESS)", "10.9.0.2"))
		}
		ready, log := p.run(t, c.SecurityContext.Capabilities.Add, arguments...)
		if !strings.HasPrefix(ready, "ready driver=xdp device=eth1 ") {
			t.Errorf("%q: %q\n%s", arguments, ready, log)
		} else if !strings.Contains(log, "msg=confined ") || !strings.Contains(log, "uid 65534") {
			t.Errorf("%q: it is not confined, or uid 0 stays:\n%s", arguments, log)
		}
		return
	}
	t.Error("../fleet/deploy/kubernetes/rebound.yaml has no responder")
}

// docs/fleet/kubernetes.md lists the capabilities that each driver needs: with these it runs, and without any one of
// them it reports which is missing.
func TestKubernetesCapabilities(t *testing.T) {
	p := newPod(t)
	b := value(os.ReadFile("../docs/fleet/kubernetes.md"))(t)
	found := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		f := strings.Split(line, "|")
		if len(f) < 4 || !strings.HasPrefix(strings.TrimSpace(f[1]), "`") {
			continue
		}
		needed := strings.Split(strings.TrimSpace(f[2]), ", ")
		for _, driver := range strings.Split(strings.TrimSpace(f[1]), ", ") {
			driver = strings.Trim(driver, "`")
			if driver != "xdp" && driver != "afxdp" && driver != "afpacket" {
				continue
			}
			found[driver] = true
			arguments := []string{"-set", "nic.device=eth1", "-set", "respond.addresses=10.9.0.2/24", "-set",
				"nic.driver=" + driver}
			if ready, log := p.run(t, needed, arguments...); !strings.HasPrefix(ready, "ready driver="+driver) {
				t.Errorf("%s with %q: %q\n%s", driver, needed, ready, log)
			}
			for i, less := range needed {
				if ready, log := p.run(t, slices.Delete(slices.Clone(needed), i, i+1), arguments...); ready != "" ||
					!strings.Contains(log, "CAP_"+less) {
					t.Errorf("%s without %s: %q\n%s", driver, less, ready, log)
				}
			}
		}
	}
	if len(found) != 3 {
		t.Errorf("docs/fleet/kubernetes.md has rows for %v", found)
	}
}
