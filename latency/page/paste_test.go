package page

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/schema"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

const comparisonFile = "../../docs/compare.schema.json"

// The published schema is generated from the Go types.
func TestComparisonSchema(t *testing.T) {
	schema.Check(t, comparisonFile, "rebound-bench compare -json, schema 1", &JSONComparison{},
		"github.com/rebound-nic/rebound/latency/page", ".")
}

func TestPaste(t *testing.T) {
	a, b := synthetic.Link{Seed: 1, Median: 4000, Seconds: 20, Rate: 500, Runs: 10}.Report(),
		synthetic.Link{Seed: 2, Median: 9000, Seconds: 20, Rate: 500, Runs: 10}.Report()
	a.Label, b.Label = "a|<b>", "after_*x*"
	c := compare.Reports(a, b)
	var out, markdown bytes.Buffer
	must.OK(t, PrintJSON(&out, c))
	must.OK(t, PrintMarkdown(&markdown, c))
	valid := schema.Strict(t, comparisonFile)
	check.OK(t, valid(out.Bytes()))
	for was, is := range map[string]string{`"schema": 1`: `"schema": "1"`, `"slower"`: `"worse"`,
		`"shift_ns"`: `"shift"`} {
		if bad := strings.Replace(out.String(), was, is, 1); bad == out.String() || valid([]byte(bad)) == nil {
			t.Errorf("%s passes", is)
		}
	}
	var got JSONComparison
	must.OK(t, json.Unmarshal(out.Bytes(), &got))
	row := c.Pairs[0].Rows[1]
	must.Equal(t, len(got.Pairs), 1, "%d pairs")
	check.Equal(t, got.Pairs[0].Rows[1].Verdict, "slower", "verdict %q")
	check.Equal(t, *got.Pairs[0].Rows[1].Shift, row.Shift, "shift %v")
	check.Equal(t, got.Answer, Answer(c), "answer %q")
	check.Equal(t, got.Pairs[0].B.Name, b.Label, "name %q")
	check.Contains(t, markdown.String(), `**after\_\*x\* is `, `| round trip | a\|\<b\> | after\_\*x\* |`, "| p50 | ",
		" slower |", "| lost | 0 of ", "\nTested over ")
	for _, line := range strings.Split(markdown.String(), "\n") {
		if strings.HasPrefix(line, "|") && strings.Count(strings.ReplaceAll(line, `\|`, ""), "|") != 8 {
			t.Errorf("a row with another number of cells: %s", line)
		}
	}
	b.Traffic.Protocol = "udp"
	out.Reset()
	must.OK(t, PrintJSON(&out, compare.Reports(a, b)))
	check.OK(t, valid(out.Bytes()))
	check.Contains(t, out.String(), `"answer": ""`, `"verdict": "cannot tell"`)
}
