package vet

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// base is a module without findings. Its external test needs the package's variant with tests, in which hidden is
// exported.
var base = map[string]string{
	"go.mod":       "module example.com/m\ngo 1.26\n",
	"a/a.go":       "package a\n\nimport \"fmt\"\n\nfunc Logf(format string, args ...any) { fmt.Printf(format, args...) }\n\nfunc sum(b []byte)\n",
	"a/a_amd64.s":  "TEXT ·sum(SB), 4, $0-24\n\tRET\n",
	"a/a_arm64.s":  "TEXT ·sum(SB), 4, $0-24\n\tRET\n",
	"a/in_test.go": "package a\n\nvar Sum = sum\n",
	"a/ex_test.go": "package a_test\n\nimport (\n\t\"testing\"\n\n\t\"example.com/m/a\"\n\t\"example.com/m/b\"\n)\n\nfunc Test(t *testing.T) { a.Sum(nil); t.Log(b.B) }\n",
	"b/b.go":       "package b\n\nimport \"example.com/m/a\"\n\nvar B = 1\n\nfunc F() { a.Logf(\"%d\", B) }\n",
}

// The project's own code. packaging is built for other architectures by its own tests.
func TestProject(t *testing.T) {
	needs.Tree(t)
	none(t, must.Get(Check("../..", needs.Each(2, []string{"amd64", "arm64"})...))(t))
}

func TestPackaging(t *testing.T) {
	needs.Long(t)
	none(t, must.Get(Check("../../packaging", "amd64"))(t))
}

func none(t *testing.T, found []string) {
	for _, f := range found {
		t.Error(f)
	}
}

func TestCheck(t *testing.T) {
	needs.Long(t)
	for _, c := range []struct {
		name, file, text string
		archs, want      string // want is the finding, "" for none
	}{
		{name: "nothing wrong", archs: "amd64"},
		{name: "nothing wrong for both", archs: "amd64 arm64"},
		{"type error", "b/c.go", "package b\n\nvar c int = \"\"\n", "amd64", "b/c.go:3:13: cannot use \"\" (untyped string constant) as int value in variable declaration"},
		{"type error on arm64 alone", "b/c_arm64.go", "package b\n\nvar c int = \"\"\n", "amd64 arm64", "b/c_arm64.go:3:13: cannot use"},
		{"it is not seen on amd64", "b/c_arm64.go", "package b\n\nvar c int = \"\"\n", "amd64", ""},
		{"type error in a test", "b/b_test.go", "package b\n\nvar c int = \"\"\n", "amd64 arm64", "b/b_test.go:3:13: cannot use"},
		{"unused variable", "b/c.go", "package b\n\nfunc c() { x := 1 }\n", "amd64", "b/c.go:3:12: declared and not used: x"},
		{"format of a wrapper", "b/c.go", "package b\n\nimport \"example.com/m/a\"\n\nfunc c() { a.Logf(\"%d\", \"\") }\n", "amd64", "b/c.go:5:20: example.com/m/a.Logf format %d has arg \"\" of wrong type string"},
		{"format in a package with tests", "a/c.go", "package a\n\nfunc c() { Logf(\"%d\", \"\") }\n", "amd64 arm64", "a/c.go:3:18: example.com/m/a.Logf format %d has arg \"\" of wrong type string"},
		{"format in a file for arm64", "b/c_arm64.go", "package b\n\nimport \"example.com/m/a\"\n\nfunc c() { a.Logf(\"%d\", \"\") }\n", "amd64 arm64", "b/c_arm64.go:5:20: example.com/m/a.Logf format"},
		{"assembly for arm64", "a/a_arm64.s", "TEXT ·sum(SB), 4, $0-32\n\tRET\n", "amd64 arm64", "a/a_arm64.s:1:1: [arm64] sum: wrong argument size 32; expected $...-24"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			files := maps.Clone(base)
			if c.file != "" {
				files[c.file] = c.text
			}
			for name, text := range files {
				file := filepath.Join(dir, name)
				must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
				must.OK(t, os.WriteFile(file, []byte(text), 0o644))
			}
			found := must.Get(Check(dir, strings.Fields(c.archs)...))(t)
			var want []string
			if c.want != "" {
				want = []string{filepath.Join(dir, c.want)}
			}
			if !slices.EqualFunc(found, want, strings.HasPrefix) {
				t.Errorf("found %q, want %q", found, want)
			}
		})
	}
}

func TestCheckOfModuleThatDoesNotParse(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": base["go.mod"], "a.go": "package m\n\nfunc {\n"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	if found, err := Check(dir, "amd64"); err == nil || !strings.Contains(err.Error(), "a.go:3:6") {
		t.Errorf("found %q, %v", found, err)
	}
}
