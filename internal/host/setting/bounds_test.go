package setting

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
)

// Input that would exhaust the parser's stack or memory is rejected before parsing, with file, line and limit.
func TestBounds(t *testing.T) {
	for name, c := range map[string]struct{ doc, want string }{
		"brackets":                {"\na = " + strings.Repeat("[", 900_000), "F:2: nested more than 16 levels deep"},
		"braces":                  {"a = " + strings.Repeat("{a=", 300_000), "F:1: nested more than 16 levels deep"},
		"mixed":                   {"a = " + strings.Repeat("[{a=", 100), "F:1: nested more than 16 levels deep"},
		"over lines":              {"a = " + strings.Repeat("[\n", 100), "F:17: nested more than 16 levels deep"},
		"dotted key":              {"\n\n" + strings.Repeat("a.", 500_000) + "a = 1", "F:3: a key of more than 16 parts"},
		"dotted header":           {"[" + strings.Repeat("a . ", 500) + "a]", "F:1: a key of more than 16 parts"},
		"quoted parts":            {strings.Repeat(`"a".`, 500) + "a = 1", "F:1: a key of more than 16 parts"},
		"inner key":               {"a = {b = {" + strings.Repeat("a.", 500) + "a = 1}}", "F:1: a key of more than 16 parts"},
		"size":                    {strings.Repeat("#\n", 524_289), "F:524289: longer than 1024 KiB"},
		"after a string":          {`a = "\"" # "` + "\nb = " + strings.Repeat("[", 100), "F:2: nested more than 16 levels deep"},
		"after a multiline":       {"a = \"\"\"\n\\\"\"\"\"\"\nb = " + strings.Repeat("[", 100), "F:3: nested more than 16 levels deep"},
		"after a literal":         {`a = 'C:\'` + "\nb = " + strings.Repeat("[", 100), "F:2: nested more than 16 levels deep"},
		"after an open string":    {"a = \"x\n" + strings.Repeat("[", 100), "F:2: nested more than 16 levels deep"},
		"string full of brackets": {"[a]\nname = '" + strings.Repeat("[.", 500) + "'", ""},
		"comment":                 {"# " + strings.Repeat("[.", 500) + "\n[a]\nname = ''", ""},
	} {
		err := parse(c.doc)
		if err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	var v chosen
	for _, value := range []string{strings.Repeat("[", 100_000), strings.Repeat("a.", 50_000) + "a"} {
		if err := table(&v).Set("b.ports=" + value); err == nil || !strings.HasPrefix(err.Error(), "-set: b.ports: ") ||
			len(err.Error()) > 100 {
			t.Errorf("-set: %.200v", err)
		}
	}
}

func TestReadIsBounded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.toml")
	check.OK(t, os.WriteFile(file, []byte("#"), 0o600))
	if err := os.Truncate(file, 1<<40); err != nil {
		t.Skip("no sparse files here:", err)
	}
	var v chosen
	want := file + ":1: longer than 1024 KiB"
	if err := table(&v).Read(file); err == nil || err.Error() != want {
		t.Errorf("got %.200v, want %s", err, want)
	}
}

// FuzzBounds: a document of the maximum size takes little time and memory, even if it is rejected.
func FuzzBounds(f *testing.F) {
	for _, s := range []string{"[", "a.", "a={", "[a]\n", "[[a]]\n", "\"\"\"", "'''\n", "a=1\n", "b.ports=[1,\n",
		"{a=[", `"a".`, "#\n", "1,", "-1,\n"} {
		f.Add([]byte(s), []byte(""), 1000)
		f.Add([]byte(s), []byte("b.ports=["), 1000)
	}
	f.Fuzz(func(t *testing.T, piece, prefix []byte, n int) {
		n = max(0, min(n, maxFile/max(1, len(piece))))
		doc := string(prefix) + string(bytes.Repeat(piece, n))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		if err := parse(doc); err != nil && !strings.HasPrefix(err.Error(), "F:") {
			t.Errorf("no place in %.200v", err)
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<30 {
			t.Errorf("%d MB allocated in %v for %d bytes: %.50q", used>>20, time.Since(start), len(doc), doc)
		}
	})
}
