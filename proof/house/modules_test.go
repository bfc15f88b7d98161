package house_test

import (
	"go/parser"
	"go/token"
	"io/fs"
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
	files := must.Get(exec.Command("git", "ls-files", "*/go.mod").Output())(t)
	modules := strings.Fields(string(files))
	for _, file := range modules {
		dir := filepath.Dir(file)
		var imports []string
		must.OK(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if e.IsDir() && path != dir && slices.Contains(modules, filepath.Join(path, "go.mod")) {
				return fs.SkipDir
			}
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, i := range f.Imports {
				p := strings.Trim(i.Path.Value, `"`)
				folder, ok := strings.CutPrefix(p, root)
				if ok && !slices.ContainsFunc(modules, func(m string) bool {
					return strings.HasPrefix(folder+"/", filepath.Dir(m)+"/")
				}) {
					imports = append(imports, p)
				}
			}
			return nil
		}))
		if len(imports) == 0 {
			continue
		}
		sums := string(must.Get(os.ReadFile(filepath.Join(dir, "go.sum")))(t))
		needed := must.Get(exec.Command("go", append([]string{"list", "-deps", "-f",
			"{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}"}, imports...)...).Output())(t)
		for _, path := range slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(needed))))) {
			if !slices.ContainsFunc(strings.Split(sums, "\n"), func(line string) bool {
				return strings.HasPrefix(line, path+" ") && !strings.Contains(line, "/go.mod ")
			}) {
				t.Errorf("%s has no checksum of %s: run go mod tidy in %s", filepath.Join(dir, "go.sum"), path, dir)
			}
		}
	}
}
