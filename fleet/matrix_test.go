package fleet

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/proof/check"
)

// What each argument of matrix may be, and what Prometheus answers.
func TestMatrixCommand(t *testing.T) {
	const none = `{"status":"success","data":{"resultType":"vector","result":[]}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("query") == "" {
			http.Error(w, "no query", http.StatusBadRequest)
			return
		}
		w.Write([]byte(none))
	}))
	defer server.Close()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, process.Usage, "-prom"},
		{[]string{"-prom", "x"}, process.Usage, "-prom: "},
		{[]string{"-prom", server.URL, "x"}, process.Usage, "x"},
		{[]string{"-prom", server.URL, "-at", "noon"}, process.Usage, "-at: "},
		{[]string{"-prom", server.URL, "-range", "long"}, process.Usage, `-range "long": want a time like 1h or 7d`},
		{[]string{"-prom", server.URL, "-range", "0s"}, process.Usage, `-range "0s": want a time`},
		{[]string{"-prom", server.URL, "-before", "-1h"}, process.Usage, `-before "-1h": want a time`},
		{[]string{"-prom", server.URL, "-label", "x"}, process.Usage, "want NAME=VALUE"},
		{[]string{"-prom", server.URL, "-label", "=x"}, process.Usage, "want NAME=VALUE"},
		{[]string{"-prom", server.URL, "-label", "9=x"}, process.Usage, "not the name of a label"},
		{[]string{"-prom", server.URL, "-from", "9"}, process.Usage, "-from, -to, -label: "},
		{[]string{"-prom", server.URL, "-to", "9"}, process.Usage, "-from, -to, -label: "},
		{[]string{"-prom", server.URL, "-windows", "0"}, process.Usage, "-windows 0 of -range 1h: want 1 to 1000"},
		{[]string{"-prom", server.URL, "-windows", "1001"}, process.Usage, "-windows 1001"},
		{[]string{"-prom", server.URL, "-windows", "10", "-range", "9s"}, process.Usage, "a second or longer each"},
		{[]string{"-prom", server.URL, "-windows", "1", "-range", "1s"}, process.Failed, "no rebound_probes_total{} in the 1 second before"},
		{[]string{"-prom", server.URL, "-windows", "1000"}, process.Failed, "in the 1 hour before"},
	} {
		out := filepath.Join(t.TempDir(), "matrix.html")
		var stdout, stderr bytes.Buffer
		code := Run(append([]string{"matrix", "-out", out}, c.args...), &stdout, &stderr)
		check.Equal(t, code, c.code, c.says+": exit %d")
		check.Contains(t, stderr.String(), c.says)
		if b, err := os.ReadFile(out); err == nil {
			t.Errorf("%s: it wrote a page of %d bytes", c.says, len(b))
		}
	}
}
