// Package golden compares a test's output with a file.
package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Equal fails the test if got is not the content of a file, and shows the first line that differs. With
// REBOUND_GOLDEN=write in the environment it writes the file instead: look at the difference with git before you commit
// it.
func Equal(t testing.TB, path, got string) {
	t.Helper()
	if os.Getenv("REBOUND_GOLDEN") == "write" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	is, want := strings.Split(got, "\n"), strings.Split(string(b), "\n")
	for i := range max(len(is), len(want)) {
		if i >= len(is) || i >= len(want) || is[i] != want[i] {
			t.Errorf("line %d is\n\t%s\nwhere %s has\n\t%s\n(REBOUND_GOLDEN=write writes the file)", i+1, at(is, i), path,
				at(want, i))
			return
		}
	}
}

func at(lines []string, i int) string {
	if i >= len(lines) {
		return "(the end)"
	}
	return lines[i]
}
