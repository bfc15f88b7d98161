package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kubectl-validate/pkg/openapiclient"
	"sigs.k8s.io/kubectl-validate/pkg/validator"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// schemas is the newest API release that kubectl-validate includes.
const schemas = "1.30"

func render(t *testing.T, folder string) (docs [][]byte) {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	for _, r := range all.Resources() {
		y, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, y)
	}
	return docs
}

// manifests returns the documents of a file.
func manifests(t *testing.T, file string) (docs [][]byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range bytes.Split(b, []byte("\n---\n")) {
		if doc = bytes.TrimPrefix(doc, []byte("---\n")); bytes.Contains(doc, []byte("\nkind: ")) {
			docs = append(docs, doc)
		}
	}
	return docs
}

func validate(v *validator.Validator, doc []byte) (*unstructured.Unstructured, error) {
	_, object, err := v.Parse(doc)
	if err != nil {
		return nil, err
	}
	return object, v.Validate(object)
}

// The manifests are valid according to Kubernetes' published schemas: no field is unknown, missing or of the wrong
// type.
func TestKubernetes(t *testing.T) {
	v, err := validator.New(openapiclient.NewHardcodedBuiltins(schemas))
	if err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string][]string{
		"kubernetes/rebound.yaml": {"ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "DaemonSet", "ServiceAccount"},
		"kubernetes/sriov":        {"ConfigMap", "ConfigMap", "Deployment", "Namespace"},
	} {
		read := render
		if filepath.Ext(folder) == ".yaml" {
			read = manifests
		}
		var kinds []string
		for _, doc := range read(t, folder) {
			object, err := validate(v, doc)
			if err != nil {
				t.Errorf("%s: %v\n%s", folder, err, doc)
				continue
			}
			kinds = append(kinds, object.GetKind())
			if ns := object.GetNamespace(); object.GetKind() != "Namespace" && !strings.HasPrefix(object.GetKind(), "Cluster") && ns != "rebound" {
				t.Errorf("%s: %s %s is in namespace %q", folder, object.GetKind(), object.GetName(), ns)
			}
			// The same with one field misspelt is refused: the validator looks.
			if broken := strings.Replace(string(doc), "securityContext:", "securityContent:", 1); broken != string(doc) {
				if _, err := validate(v, []byte(broken)); err == nil || !strings.Contains(err.Error(), "securityContent") {
					t.Errorf("%s: an unknown field passes: %v", folder, err)
				}
			}
		}
		slices.Sort(kinds)
		if !slices.Equal(kinds, want) {
			t.Errorf("%s: %q, want %q", folder, kinds, want)
		}
	}
}

// The responder accepts the pods' settings, and reads the device plugin's format.
func TestKubernetesSettings(t *testing.T) {
	o := packaged(t)
	responder := filepath.Join(o.out, "stage-"+o.arch, "rebound-responder")
	for file, sets := range map[string][]string{
		"kubernetes/sriov/config.toml": {"-set", "nic.device=0000:03:00.2"},
	} {
		cmd := exec.Command(responder, append([]string{"check", "-config", file}, sets...)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code > 1 || !strings.Contains(string(out), "polling core") { // 1 is advice
			t.Errorf("%s: exit code %d\n%s", file, code, out)
		}
	}
	b, err := os.ReadFile("kubernetes/sriov/plugin-config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct{ Data map[string]string }
	if err := yaml.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
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
	deployment, err := os.ReadFile("kubernetes/sriov/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	name := r.ResourcePrefix + "/" + r.ResourceName
	variable := "PCIDEVICE_" + strings.ToUpper(strings.NewReplacer("/", "_", ".", "_").Replace(name))
	for _, want := range []string{name + `: "1"`, "$(" + variable + ")"} {
		if !strings.Contains(string(deployment), want) {
			t.Errorf("the deployment has no %s, which is how the plugin names what it hands out", want)
		}
	}
}
