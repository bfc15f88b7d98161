// Package schema generates the JSON schemas in docs/ from Go types, and compiles them for tests.
package schema

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	reflected "github.com/invopop/jsonschema"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rebound-nic/rebound/proof/must"
)

var update = flag.Bool("update", false, "write the schema")

// Check fails the test if file is not the schema of v's type. Descriptions are the comments of types in the folders of
// pkg, which is v's. Every field is required, except for those that may be omitted; an empty list may be null.
func Check(t *testing.T, file, title string, v any, pkg string, folders ...string) {
	t.Helper()
	r := &reflected.Reflector{ExpandedStruct: true, AllowAdditionalProperties: true}
	for _, dir := range folders {
		must.OK(t, r.AddGoComments(pkg, dir, reflected.WithFullComment()))
	}
	s := r.Reflect(v)
	s.ID, s.Title = "", title
	text := must.Get(json.Marshal(s))(t)
	var tree any
	must.OK(t, json.Unmarshal(text, &tree))
	walk(tree, func(o map[string]any) {
		if o["type"] == "array" {
			o["type"] = []string{"array", "null"} // a nil slice of Go
		}
		if text, ok := o["description"].(string); ok { // where a comment's lines end means nothing
			o["description"] = strings.Join(strings.Fields(text), " ")
		}
	})
	want := append(must.Get(json.MarshalIndent(tree, "", "  "))(t), '\n')
	if *update {
		must.OK(t, os.WriteFile(file, want, 0o644))
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not that of the types (%v): go test -run Schema -update", file, err)
	}
}

func walk(tree any, f func(map[string]any)) {
	switch v := tree.(type) {
	case map[string]any:
		f(v)
		for _, x := range v {
			walk(x, f)
		}
	case []any:
		for _, x := range v {
			walk(x, f)
		}
	}
}

// Strict returns a function that validates a document by file's schema, and rejects unknown fields as well. The schema
// itself permits them, for later versions.
func Strict(t *testing.T, file string) func(document []byte) error {
	t.Helper()
	tree := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(must.Get(os.ReadFile(file))(t))))(t)
	walk(tree, func(o map[string]any) {
		if o["properties"] != nil {
			o["additionalProperties"] = false
		}
	})
	c := jsonschema.NewCompiler()
	must.OK(t, c.AddResource("strict.json", tree))
	s := must.Get(c.Compile("strict.json"))(t)
	return func(document []byte) error {
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}
