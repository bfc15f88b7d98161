package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	reflected "github.com/invopop/jsonschema"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

const schemaFile = "../../docs/report.schema.json"

var update = flag.Bool("update", false, "write docs/report.schema.json")

// The published schema is generated from the Go types, with their comments as descriptions. Every field is required,
// except for those that may be omitted; an empty list may be null.
func TestSchemaIsOfTheTypes(t *testing.T) {
	r := &reflected.Reflector{ExpandedStruct: true, AllowAdditionalProperties: true}
	for _, dir := range []string{".", "..", "../host"} {
		must.OK(t, r.AddGoComments("github.com/rebound-nic/rebound/latency/report", dir, reflected.WithFullComment()))
	}
	s := r.Reflect(&report.Report{})
	s.ID = ""
	s.Title = "report.json of Rebound, schema 3"
	text := must.Get(json.Marshal(s))(t)
	var tree any
	must.OK(t, json.Unmarshal(text, &tree))
	walk(tree, func(o map[string]any) {
		if o["type"] == "array" {
			o["type"] = []string{"array", "null"} // a nil slice of Go
		}
	})
	want := must.Get(json.MarshalIndent(tree, "", "  "))(t)
	want = append(want, '\n')
	if *update {
		must.OK(t, os.WriteFile(schemaFile, want, 0o644))
	}
	if got, err := os.ReadFile(schemaFile); err != nil || !bytes.Equal(got, want) {
		t.Errorf("docs/report.schema.json is not that of the types (%v): go test ./latency/report -run Schema -update", err)
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

// strict compiles the published schema so that it also rejects unknown fields. The published schema itself permits
// them, for later versions.
func strict(t *testing.T) *jsonschema.Schema {
	t.Helper()
	b := must.Get(os.ReadFile(schemaFile))(t)
	tree := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(b)))(t)
	walk(tree, func(o map[string]any) {
		if o["properties"] != nil {
			o["additionalProperties"] = false
		}
	})
	c := jsonschema.NewCompiler()
	must.OK(t, c.AddResource("report.json", tree))
	return must.Get(c.Compile("report.json"))(t)
}

// Every report conforms to the schema: the published ones, one with everything that a bench measures, and an empty one.
// A report that does not conform is rejected.
func TestSchema(t *testing.T) {
	s := strict(t)
	valid := func(b []byte) error {
		v := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(b)))(t)
		return s.Validate(v)
	}
	var files []string
	for _, depth := range []string{"*", "*/*", "*/*/*"} {
		files = append(files, must.Get(filepath.Glob("../../results/"+depth+"/report.json"))(t)...)
	}
	if len(files) < 5 {
		t.Fatalf("%d reports in results/", len(files))
	}
	for _, f := range files {
		b := must.Get(os.ReadFile(f))(t)
		b = bytes.ReplaceAll(b, []byte(`"mend": `), []byte(`"fix": `)) // the field's name before schema 3
		if err := valid(b); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	full := synthetic.Link{Seed: 1, Median: 4000, Spread: 0.1, Seconds: 3, Rate: 1000}.Report()
	full.Add(latency.GapSeries, latency.FromValues([]int64{20, 3000}))
	full.Order = &report.Order{LossPeriods: 1, LossLengths: []report.LossLength{{Length: 1, Count: 1}}}
	for _, rep := range []*report.Report{full, report.New("responder", report.Turnaround)} {
		var b bytes.Buffer
		must.OK(t, report.WriteJSON(&b, rep))
		check.OK(t, valid(b.Bytes()))
		for was, is := range map[string]string{`"schema": 3`: `"schema": "3"`, `"tool"`: `"tol"`, `"counts": {`: `"counts": {"sentt": 1,`} {
			if bad := strings.Replace(b.String(), was, is, 1); bad == b.String() || valid([]byte(bad)) == nil {
				t.Errorf("%s passes", is)
			}
		}
	}
}
