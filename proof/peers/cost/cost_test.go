package cost

import (
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

func TestRun(t *testing.T) {
	needs.Root(t, "loading an XDP program")
	rows := must.Get(Run(Options{Rounds: 2, Runs: 1000, Stop: new(atomic.Bool)}))(t)
	if want := len(requests()) + 5*len(guarded); len(rows) != want {
		t.Errorf("%d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if len(r.NS) != 2 || len(r.Around) != 2 || r.Bytes < 42 {
			t.Errorf("%+v", r)
		}
	}
	text := Markdown(rows)
	check.Contains(t, text, "| stamp6 |", "| udp, tagged |", "| stamp, 1500 bytes | 1500 |",
		"| ping6 | no limit of rates |", "| ping | none (open) |")
}

func TestMarkdown(t *testing.T) {
	got := Markdown([]*Row{
		{Request: "ping", Bytes: 64, Guards: "all guards", NS: []float64{50, 60, 70}, Around: []float64{30, 30, 31}},
		{Request: "ping", Bytes: 64, Guards: "none (open)", NS: []float64{30, 50, 10}, Around: []float64{30, 30, 30}},
	})
	check.Contains(t, got, "| ping | 64 | 60 (50 to 70) | 30 |\n",
		"| ping | none (open) | 30 (10 to 50) | 20 (10 to 60) |\n",
		"| ping | all guards | 60 (50 to 70) | – |\n")
}
