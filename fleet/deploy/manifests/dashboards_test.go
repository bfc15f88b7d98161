package manifests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// Each dashboard is valid by Grafana's schema: missing and wrong fields of dashboards, panels, their options and
// queries are errors. The schema does not know which types of panels exist, and ignores unknown fields of fieldConfig.
// Grafana itself is not used: its licence is the AGPL.
func TestDashboards(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	files, err := filepath.Glob("../prometheus/*.json")
	if err != nil || len(files) < 3 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard.Dashboard
		// it returns an empty list of errors as an error
		if err := d.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
			t.Errorf("%s: %v", file, err)
		}
		if err := d.Validate(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if len(d.Panels) < 5 {
			t.Errorf("%s: %d panels", file, len(d.Panels))
		}
	}
}
