package house_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// A module that uses packages of the root has checksums of every module that these need. Without one it does not build,
// and modules whose builds take minutes are built on request only.
func TestNestedModulesHaveChecksums(t *testing.T) {
	needs.Tree(t)
	const root = "github.com/rebound-nic/rebound/"
	list := func(dir string, args ...string) []string {
		c := exec.Command("go", append([]string{"list"}, args...)...)
		c.Dir, c.Stderr = dir, os.Stderr
		return strings.Fields(string(must.Get(c.Output())(t)))
	}
	files := must.Get(exec.Command("git", "ls-files", "*/go.mod").Output())(t)
	for _, file := range strings.Fields(string(files)) {
		dir := filepath.Dir(file)
		module := list(dir, "-m")[0]
		imports := list(dir, "-e", "-f", `{{join .Imports "\n"}} {{join .TestImports "\n"}} {{join .XTestImports "\n"}}`, "./...")
		imports = slices.DeleteFunc(imports, func(p string) bool {
			return !strings.HasPrefix(p, root) || strings.HasPrefix(p+"/", module+"/")
		})
		if len(imports) == 0 {
			continue
		}
		sums := string(must.Get(os.ReadFile(filepath.Join(dir, "go.sum")))(t))
		needed := list(".", append([]string{"-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}"}, imports...)...)
		for _, path := range slices.Compact(slices.Sorted(slices.Values(needed))) {
			if !slices.ContainsFunc(strings.Split(sums, "\n"), func(line string) bool {
				return strings.HasPrefix(line, path+" ") && !strings.Contains(line, "/go.mod ")
			}) {
				t.Errorf("%s has no checksum of %s: run go mod tidy in %s", filepath.Join(dir, "go.sum"), path, dir)
			}
		}
	}
}
