package catalogue_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// A new card consists of its driver's folder, its model's folder, and a row in each half of the catalogue: in a copy of
// the tree with just these, everything builds, the driver passes the conformance suite, the import rules hold, and
// every command supports the card.
func TestNewCard(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it builds all programs in a copy of the tree")
	}
	root := must.Get(filepath.Abs("../.."))(t)
	tree := t.TempDir()
	copyTree(t, root, tree)

	// The folders are the template's, under other names and with another PCI ID.
	rename := func(text string) string {
		text = strings.ReplaceAll(text, "rebound/proof/nictest/toy", "rebound/nic/drivers/novel")
		text = regexp.MustCompile(`\btoysim\b`).ReplaceAllString(text, "novelsim")
		text = regexp.MustCompile(`\btoy(_test)?\b`).ReplaceAllString(text, "novel${1}")
		return strings.NewReplacer("0x7ec4", "0x7ec5", "7ec4", "7ec5").Replace(text)
	}
	for from, to := range map[string]string{"proof/nictest/toy": "nic/drivers/novel", "sim/toysim": "sim/novelsim"} {
		files, err := filepath.Glob(filepath.Join(tree, from, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", from, err)
		}
		must.OK(t, os.Mkdir(filepath.Join(tree, to), 0o755))
		for _, f := range files {
			b := must.Get(os.ReadFile(f))(t)
			must.OK(t, os.WriteFile(filepath.Join(tree, to, strings.ReplaceAll(filepath.Base(f), "toy", "novel")),
				[]byte(rename(string(b))), 0o644))
		}
	}
	edit(t, filepath.Join(tree, "internal/cards/drivers.go"), map[string]string{
		"\t\"github.com/rebound-nic/rebound/nic/drivers/mlx5\"\n": "\t\"github.com/rebound-nic/rebound/nic/drivers/novel\"\n",
		"var drivers = []driver{\n": `	{
		name: "novel", doc: "a card that is new.",
		function: func(fn pci.Function, c *Config) (nic.Device, error) { return opened(novel.Open(fn, c.Options)) },
		vendor: 0x1b36, supports: novel.Supports,
	},
`})
	edit(t, filepath.Join(tree, "proof/catalogue/catalogue.go"), map[string]string{
		"\t\"github.com/rebound-nic/rebound/sim\"\n": "\t\"github.com/rebound-nic/rebound/sim/novelsim\"\n",
		"var All = []Card{":                          `{Name: "novel", Driver: "novel", Profiles: []Profile{{Name: "novel", New: func(mac [6]byte) sim.Model { return novelsim.New(mac) }}}}, `,
	})

	want := []string{"internal/cards/drivers.go", "nic/drivers/novel", "proof/catalogue/catalogue.go", "sim/novelsim"}
	if got := changed(t, root, tree); !slices.Equal(got, want) {
		t.Errorf("a new card changes %q, want %q", got, want)
	}

	run := func(name string, args ...string) string {
		t.Helper()
		c := exec.Command(name, args...)
		c.Dir = tree
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", c, err, out)
		}
		return string(out)
	}
	run("go", "build", "-trimpath", "-o", "bin/", "./cmd/...")
	run("go", "test", "-trimpath", "-count=1", "-timeout", "0", "-run", "Conformance|HotLoop|Watch",
		"./nic/drivers/novel")
	run("go", "test", "-trimpath", "-count=1", "-timeout", "0", "-run", "Profiles|HalvesAgree", "./proof/catalogue")
	run("go", "test", "-trimpath", "-count=1", "-timeout", "0", "-run", "Imports|ProductLinks", "./proof/house")
	for command, shows := range map[string]string{
		"responder config":                      "# novel ",
		"responder __complete -set nic.driver=": "novel",
		"bench run -help-all":                   "novel",
		"simnic -h":                             "novel",
		"prove campaign -list":                  "novel: function reset",
	} {
		args := strings.Fields(command)
		out, _ := exec.Command(filepath.Join(tree, "bin", args[0]), args[1:]...).CombinedOutput()
		if !strings.Contains(string(out), shows) {
			t.Errorf("%s does not show %q:\n%s", command, shows, out)
		}
	}
}

// skipped are the folders that no package needs.
var skipped = []string{".git", ".cache", "out", "bin", "results"}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	for name, path := range files(t, from) {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(to, name), must.Get(os.ReadFile(path))(t), 0o644))
	}
}

func files(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.OK(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skipped, name):
			return fs.SkipDir
		case d.Type().IsRegular():
			all[name] = path
		}
		return nil
	}))
	return all
}

// changed returns the files of tree that differ from those of root, and the folders of those that root does not have.
func changed(t *testing.T, root, tree string) (names []string) {
	t.Helper()
	before := files(t, root)
	set := map[string]bool{}
	for name, path := range files(t, tree) {
		after := must.Get(os.ReadFile(path))(t)
		if was, ok := before[name]; !ok {
			set[filepath.Dir(name)] = true
		} else if b, err := os.ReadFile(was); err != nil || string(b) != string(after) {
			set[name] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func edit(t *testing.T, file string, inserts map[string]string) {
	t.Helper()
	text := string(must.Get(os.ReadFile(file))(t))
	for anchor, insert := range inserts {
		if strings.Count(text, anchor) != 1 {
			t.Fatalf("%s has %q %d times, want once", file, anchor, strings.Count(text, anchor))
		}
		text = strings.Replace(text, anchor, anchor+insert, 1)
	}
	must.OK(t, os.WriteFile(file, []byte(text), 0o644))
}
