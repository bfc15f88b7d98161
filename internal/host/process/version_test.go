package process

import (
	"runtime"
	"strings"
	"testing"
)

func TestVersion(t *testing.T) {
	lines := strings.Split(Version("prog"), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "prog ") || !strings.HasPrefix(lines[1], "revision ") ||
		!strings.HasPrefix(lines[2], runtime.Version()) {
		t.Errorf("%q", lines)
	}
}
