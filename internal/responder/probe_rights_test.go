package responder

import (
	"errors"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
)

// An ordinary user reads what gives the rights to probe a function, and may probe one whose IOMMU group is theirs.
func TestProbeRights(t *testing.T) {
	const denied = "0000:03:00.0: not allowed: run as root (sudo)"
	for _, c := range []struct {
		driver, group string
		access        error
		want          string
	}{
		{"vfio-pci", "17", nil, ""},
		{"vfio-pci", "17", errors.New("no"), denied + ", or give this user access to /dev/vfio/17"},
		{"vfio-pci", "", nil, denied},
		{"", "", nil, denied},
		{"ixgbe", "17", nil, denied + ", after rebound-responder bind 0000:03:00.0: it belongs to kernel driver ixgbe"},
	} {
		err := openable(&pci.Found{Address: "0000:03:00.0", Driver: c.driver, Group: c.group}, func(string) error { return c.access })
		if c.want == "" {
			check.OK(t, err)
			continue
		}
		if check.Fails(t, c.driver, err, nic.ErrRights); err != nil {
			check.Equal(t, err.Error(), c.want, "%s")
		}
	}
}
