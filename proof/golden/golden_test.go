package golden

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// failures records what a test is failed with.
type failures struct {
	testing.TB
	text string
}

func (f *failures) Helper()                      {}
func (f *failures) Errorf(s string, args ...any) { f.text += fmt.Sprintf(s, args...) }

func TestEqualShowsTheFirstDifference(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "file")
	t.Setenv("REBOUND_GOLDEN", "write")
	Equal(t, path, "a\nb\nc")
	t.Setenv("REBOUND_GOLDEN", "")
	for got, want := range map[string]string{"a\nb\nc": "", "a\nx\ny": "line 2 is\n\tx\nwhere", "a": "line 2 is\n\t(the end)",
		"a\nb\nc\n": "line 4 is\n\t\nwhere"} {
		f := &failures{TB: t}
		if Equal(f, path, got); !strings.HasPrefix(f.text, want) || (f.text == "") != (want == "") {
			t.Errorf("%q: %q, want %q", got, f.text, want)
		}
	}
}
