package cards

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestOlder(t *testing.T) {
	for release, want := range map[string]bool{"5.8.0-63-generic": true, "4.19.0": true, "5.9.0": false,
		"5.10.0-28-amd64": false, "6.1.0": false, "unknown": false} {
		check.Equal(t, Older(release, "5.9"), want, release+" is older than 5.9: %v")
	}
}

func TestListKernels(t *testing.T) {
	list := func(release string) string {
		var b strings.Builder
		must.OK(t, ListKernels(&b, release))
		return b.String()
	}
	check.Contains(t, list("5.4.0-42-generic"), "THIS IS 5.4.0-42-generic", "mlx5 ",
		"5.9, for calls by ioctl: this one is too old",
		"6.1, for the GIDs of unknown senders: this one is too old")
	if got := list("7.3.0"); strings.Contains(got, "too old") || strings.Contains(got, "`") {
		t.Errorf("on a new kernel:\n%s", got)
	}
}

// Every driver has a row.
func TestKernelsOfEachDriver(t *testing.T) {
	table := KernelTable()
	for i := range drivers {
		check.Contains(t, table, "`"+drivers[i].name+"`")
	}
}
