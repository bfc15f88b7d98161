package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const limited = `package m

func Limited(n int) int {
	if n > 10 {
		return 10
	}
	return n
}
`

func TestMutations(t *testing.T) {
	all := must.Get(mutations("m", "m.go", []byte(limited)))(t)
	var got []string
	for _, m := range all {
		for i, line := range strings.Split(string(m.apply([]byte(limited))), "\n") {
			if line != strings.Split(limited, "\n")[i] {
				got = append(got, strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(got)
	want := []string{"if !(n > 10) {", "if n > 11 {", "if n >= 10 {", "return 11"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A weak test kills some of a package's mutations, and a mutation that makes the test hang counts as killed.
func TestTry(t *testing.T) {
	needs.Long(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.com/m\ngo 1.24\n",
		"m.go":      limited,
		"m_test.go": "package m\nimport \"testing\"\nfunc Test(t *testing.T) {\n\tif Limited(20) != 10 { t.Fail() }\n\tfor Limited(1) == 10 {}\n}\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	t.Chdir(dir)
	files := must.Get(sources("./..."))(t)
	all := must.Get(pick(files, 1))(t)
	all = append(all, mutation{pkg: "example.com/m", file: all[0].file, what: "broken", with: "}"})
	for _, m := range all {
		want := map[string]result{
			"if n > 10 is negated": killed,
			"10 becomes 11":        map[int]result{4: survived, 5: killed}[m.line],
			"n > 10: > becomes >=": survived,
			"broken":               invalid,
		}[m.what]
		if got, err := try(t.TempDir(), m, true, 5*time.Second); got != want || err != nil {
			t.Errorf("%v: %s, %v; want %s", m, got, err, want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "m.go")); err != nil || string(b) != limited {
		t.Errorf("m.go was changed: %v\n%s", err, b)
	}
}
