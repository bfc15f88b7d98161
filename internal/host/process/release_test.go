package process

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// kilobytes reads a field of the process's status.
func kilobytes(t *testing.T, field string) int {
	t.Helper()
	status := must.Get(os.ReadFile("/proc/self/status"))(t)
	return must.Get(strconv.Atoi(string(regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)[1])))(t)
}

// After Release fewer of the program's pages are mapped, and it works as before.
func TestRelease(t *testing.T) {
	before := kilobytes(t, "RssFile")
	ReleaseMemory()
	if after := kilobytes(t, "RssFile"); after >= before {
		t.Errorf("%d kB of files were mapped, and %d are", before, after)
	}
}
