package resident

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// After Release fewer of the program's pages are mapped, and it works as before.
func TestRelease(t *testing.T) {
	mapped := func() int {
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(string(regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(b)[1]))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := mapped()
	Release()
	if after := mapped(); after >= before {
		t.Errorf("%d kB of files were mapped, and %d are", before, after)
	}
}
