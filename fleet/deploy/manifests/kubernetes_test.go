package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// release is the newest API release whose schemas kubectl-validate includes.
const release = "1.30"

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

// schemas is the folder with Kubernetes' OpenAPI documents, one for each version of a group of its API. Only these
// files of kubectl-validate are used: its code imports Kubernetes' API server, which compiles for minutes.
func schemas(t *testing.T) string {
	t.Helper()
	// unlike `go list -m`, this downloads a module that no package of this build needs
	text, err := exec.Command("go", "mod", "download", "-json", "sigs.k8s.io/kubectl-validate").Output()
	var module struct{ Dir, Error string }
	if e := json.Unmarshal(text, &module); e != nil || module.Error != "" {
		t.Fatalf("go mod download: %v, %s", errors.Join(err, e), module.Error)
	}
	return filepath.Join(module.Dir, "pkg", "openapiclient", "builtins", release)
}

// An object has the fields of a Kubernetes object that the tests read.
type object struct {
	APIVersion, Kind string
	Metadata         struct{ Name, Namespace string }
}

// validate checks a document in YAML by the schema of its kind.
func validate(folder string, doc []byte) (o object, err error) {
	text, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, err
	}
	group := filepath.Join("apis", o.APIVersion)
	if !strings.Contains(o.APIVersion, "/") { // the first group has no name
		group = filepath.Join("api", o.APIVersion)
	}
	api, err := os.ReadFile(filepath.Join(folder, group+".json"))
	if err != nil {
		return o, err
	}
	schema, err := schemaOf(api, o.Kind)
	if err != nil {
		return o, fmt.Errorf("%s %s: %w", o.APIVersion, o.Kind, err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return o, err
	}
	return o, errors.Join(schema.Validate(v), duplicates("", v))
}

// schemaOf compiles the schema of a kind in an OpenAPI document. Unlike in the document, unknown fields are errors.
func schemaOf(api []byte, kind string) (*jsonschema.Schema, error) {
	all, err := jsonschema.UnmarshalJSON(bytes.NewReader(api))
	if err != nil {
		return nil, err
	}
	c, found := jsonschema.NewCompiler(), ""
	types := all.(map[string]any)["components"].(map[string]any)["schemas"].(map[string]any)
	for name, t := range types {
		t := t.(map[string]any)
		if _, fields := t["properties"]; fields {
			t["additionalProperties"] = false
		}
		// a list's kind is KINDList, and the names of the fields' types end in others
		if t["x-kubernetes-group-version-kind"] != nil && strings.HasSuffix(name, "."+kind) {
			found = name
		}
	}
	if found == "" {
		return nil, errors.New("unknown kind")
	}
	if err := c.AddResource("api.json", all); err != nil {
		return nil, err
	}
	return c.Compile("api.json#/components/schemas/" + found)
}

// duplicates returns an error for each list that has two objects with the same name, which schemas cannot express.
func duplicates(path string, v any) (err error) {
	switch v := v.(type) {
	case map[string]any:
		for key, field := range v {
			err = errors.Join(err, duplicates(path+"."+key, field))
		}
	case []any:
		seen := map[any]bool{}
		for i, item := range v {
			if o, ok := item.(map[string]any); ok && o["name"] != nil && o["mountPath"] == nil {
				if seen[o["name"]] {
					err = errors.Join(err, fmt.Errorf("%s: %v appears twice", path, o["name"]))
				}
				seen[o["name"]] = true
			}
			err = errors.Join(err, duplicates(fmt.Sprintf("%s[%d]", path, i), item))
		}
	}
	return err
}

// The manifests are valid according to Kubernetes' published schemas: no field is unknown, missing, duplicate or of the
// wrong type.
func TestKubernetes(t *testing.T) {
	folder, rejected := schemas(t), map[string]bool{}
	for path, want := range map[string][]string{
		"../kubernetes/rebound.yaml": {"ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "DaemonSet", "ServiceAccount"},
		"../kubernetes/sriov":        {"ConfigMap", "ConfigMap", "Deployment", "Namespace"},
	} {
		var kinds []string
		for _, doc := range render(t, path) {
			o, err := validate(folder, doc)
			if err != nil {
				t.Errorf("%s: %v\n%s", path, err, doc)
				continue
			}
			kinds = append(kinds, o.Kind)
			if ns := o.Metadata.Namespace; o.Kind != "Namespace" && !strings.HasPrefix(o.Kind, "Cluster") &&
				ns != "rebound" {
				t.Errorf("%s: %s %s is in namespace %q", path, o.Kind, o.Metadata.Name, ns)
			}
			// The same with a mistake is rejected.
			for _, c := range []struct{ right, wrong, report string }{
				{"securityContext:", "securityContent:", "securityContent"},
				{"hostNetwork: true", "hostNetwork: 7", "hostNetwork"},
				{"mountPath:", "subPath:", "mountPath"},
				{"64Mi\n        name: targets", "64Mi\n        name: discovery", "discovery appears twice"},
			} {
				broken := strings.Replace(string(doc), c.right, c.wrong, 1)
				if broken == string(doc) {
					continue
				}
				rejected[c.report] = true
				if _, err := validate(folder, []byte(broken)); err == nil || !strings.Contains(err.Error(), c.report) {
					t.Errorf("%s: %s instead of %s passes: %v", path, c.wrong, c.right, err)
				}
			}
		}
		slices.Sort(kinds)
		if !slices.Equal(kinds, want) {
			t.Errorf("%s: %q, want %q", path, kinds, want)
		}
	}
	if len(rejected) != 4 {
		t.Errorf("of the mistakes, only %v could be made", rejected)
	}
}
