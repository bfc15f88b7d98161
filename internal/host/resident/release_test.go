package resident

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// After Release fewer of the program's pages are mapped, and it works as before.
func TestRelease(t *testing.T) {
	mapped := func() int {
		b := must.Get(os.ReadFile("/proc/self/status"))(t)
		n := must.Get(strconv.Atoi(string(regexp.MustCompile(`RssFile:\s+(\d+) kB`).FindSubmatch(b)[1])))(t)
		return n
	}
	before := mapped()
	Release()
	if after := mapped(); after >= before {
		t.Errorf("%d kB of files were mapped, and %d are", before, after)
	}
}
