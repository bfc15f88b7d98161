package report_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/schema"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

const schemaFile = "../../docs/report.schema.json"

// The published schema is generated from the Go types.
func TestSchemaIsOfTheTypes(t *testing.T) {
	schema.Check(t, schemaFile, "report.json of Rebound, schema 3", &report.Report{},
		"github.com/rebound-nic/rebound/latency/report",
		".", "..", "../host", "../attribution")
}

// Every report conforms to the schema: the published ones, one with everything that a bench measures, and an empty one.
// A report that does not conform is rejected.
func TestSchema(t *testing.T) {
	valid := schema.Strict(t, schemaFile)
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
		for was, is := range map[string]string{`"schema": 3`: `"schema": "3"`, `"tool"`: `"tol"`,
			`"counts": {`: `"counts": {"sentt": 1,`} {
			if bad := strings.Replace(b.String(), was, is, 1); bad == b.String() || valid([]byte(bad)) == nil {
				t.Errorf("%s passes", is)
			}
		}
	}
}
