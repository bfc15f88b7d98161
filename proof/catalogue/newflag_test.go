package catalogue_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// A new flag of the bench is one row and the field that it sets: in a copy of the tree with just these, help, manual
// page, completion, the messages of the flag and those of -ab have it.
func TestNewFlag(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds the bench in a copy of the tree")
	}
	root := must.Get(filepath.Abs("../.."))(t)
	tree := t.TempDir()
	copyTree(t, root, tree)
	edit(t, filepath.Join(tree, "internal/bench/measure/settings.go"), map[string]string{
		"type Settings struct {\n": "\tToy uint8\n",
		"\t\tsetting.Range(\"probe.dscp\", &s.DSCP, 0, 63, 0, \"\", \"DSCP of the probes\"),\n": "\t\tsetting.Range(\"probe.toy\", &s.Toy, 0, 7, 0, \"\", \"toys in each probe\"),\n",
	})
	want := []string{"internal/bench/measure/settings.go"}
	if got := changed(t, root, tree); !slices.Equal(got, want) {
		t.Errorf("a new flag changes %q, want %q", got, want)
	}
	build := exec.Command("go", "build", "-trimpath", "-o", "bin/", "./cmd/bench")
	build.Dir = tree
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", build, err, out)
	}
	for command, shows := range map[string]string{
		"run -help-all":        "toys in each probe",
		"manual":               "toys in each probe",
		"__complete run -to":   "-toy",
		"run 127.0.0.1 -toy 9": "9 is not 0 to 7",
		"run 127.0.0.1 -ab name=a,toy=9 -ab name=b": "9 is not 0 to 7",
	} {
		out, _ := exec.Command(filepath.Join(tree, "bin/bench"), strings.Fields(command)...).CombinedOutput()
		if !strings.Contains(string(out), shows) {
			t.Errorf("bench %s does not show %q:\n%s", command, shows, out)
		}
	}
}
