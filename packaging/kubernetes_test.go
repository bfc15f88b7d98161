package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// manifests returns the documents of a file.
func manifests(t *testing.T, file string) (docs [][]byte) {
	t.Helper()
	b := value(os.ReadFile(file))(t)
	for _, doc := range bytes.Split(b, []byte("\n---\n")) {
		if doc = bytes.TrimPrefix(doc, []byte("---\n")); bytes.Contains(doc, []byte("\nkind: ")) {
			docs = append(docs, doc)
		}
	}
	return docs
}

// The responder accepts the pods' settings, and reads the device plugin's format.
func TestKubernetesSettings(t *testing.T) {
	o := packaged(t)
	responder := filepath.Join(o.out, "stage-"+o.arch, "rebound-responder")
	cmd := exec.Command(responder, "check", "-config", "../fleet/deploy/kubernetes/sriov/config.toml", "-set",
		"nic.device=0000:03:00.2")
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code > 1 || !strings.Contains(string(out), "polling core") { // 1 is advice
		t.Errorf("exit code %d\n%s", code, out)
	}
	b := value(os.ReadFile("../fleet/deploy/kubernetes/sriov/plugin-config.yaml"))(t)
	var m struct{ Data map[string]string }
	must(t, yaml.Unmarshal(b, &m))
	var c struct {
		ResourceList []struct {
			ResourcePrefix, ResourceName string
			Selectors                    struct{ Vendors, Devices, Drivers []string }
		}
	}
	if err := json.Unmarshal([]byte(m.Data["config.json"]), &c); err != nil || len(c.ResourceList) != 1 {
		t.Fatalf("%v in %s", err, m.Data["config.json"])
	}
	r := c.ResourceList[0]
	deployment := value(os.ReadFile("../fleet/deploy/kubernetes/sriov/deployment.yaml"))(t)
	name := r.ResourcePrefix + "/" + r.ResourceName
	variable := "PCIDEVICE_" + strings.ToUpper(strings.NewReplacer("/", "_", ".", "_").Replace(name))
	for _, want := range []string{name + `: "1"`, "$(" + variable + ")"} {
		if !strings.Contains(string(deployment), want) {
			t.Errorf("the deployment has no %s, which is how the plugin names what it hands out", want)
		}
	}
}
