package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kubectl-validate/pkg/openapiclient"
	"sigs.k8s.io/kubectl-validate/pkg/validator"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// schemas is the newest API release that kubectl-validate includes.
const schemas = "1.30"

// render returns the documents of a folder with a kustomization, or of a file.
func render(t *testing.T, path string) (docs [][]byte) {
	t.Helper()
	files, folder := filesys.MakeFsOnDisk(), path
	if filepath.Ext(path) == ".yaml" {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files, folder = filesys.MakeFsInMemory(), "."
		for name, text := range map[string][]byte{"all.yaml": text,
			"kustomization.yaml": []byte("resources: [all.yaml]\n")} {
			if err := files.WriteFile(name, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, folder)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
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
	for path, want := range map[string][]string{
		"../kubernetes/rebound.yaml": {"ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "DaemonSet", "ServiceAccount"},
		"../kubernetes/sriov":        {"ConfigMap", "ConfigMap", "Deployment", "Namespace"},
	} {
		var kinds []string
		for _, doc := range render(t, path) {
			object, err := validate(v, doc)
			if err != nil {
				t.Errorf("%s: %v\n%s", path, err, doc)
				continue
			}
			kinds = append(kinds, object.GetKind())
			if ns := object.GetNamespace(); object.GetKind() != "Namespace" &&
				!strings.HasPrefix(object.GetKind(), "Cluster") && ns != "rebound" {
				t.Errorf("%s: %s %s is in namespace %q", path, object.GetKind(), object.GetName(), ns)
			}
			// The same with one field misspelt is refused: the validator looks.
			if broken := strings.Replace(string(doc), "securityContext:", "securityContent:",
				1); broken != string(doc) {
				if _, err := validate(v, []byte(broken)); err == nil ||
					!strings.Contains(err.Error(), "securityContent") {
					t.Errorf("%s: an unknown field passes: %v", path, err)
				}
			}
		}
		slices.Sort(kinds)
		if !slices.Equal(kinds, want) {
			t.Errorf("%s: %q, want %q", path, kinds, want)
		}
	}
}
