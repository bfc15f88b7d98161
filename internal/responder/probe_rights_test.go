package responder

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// A user reads what gives the rights to probe a function, or which driver has it. A user may probe one whose IOMMU
// group is theirs.
func TestProbeRights(t *testing.T) {
	const denied = "0000:03:00.0: not allowed: run as root (sudo)"
	const kernels = "pci: 0000:03:00.0 belongs to kernel driver ixgbe (rebound-responder bind 0000:03:00.0): device is in use"
	no := errors.New("no")
	for _, c := range []struct {
		driver, group string
		root          bool
		access, is    error
		want          string
	}{
		{"vfio-pci", "17", false, nil, nil, ""},
		{"vfio-pci", "17", true, no, nil, ""},
		{"vfio-pci", "17", false, no, nic.ErrRights, denied + ", or give this user access to /dev/vfio/17"},
		{"vfio-pci", "", false, nil, nic.ErrRights, denied},
		{"", "", false, nil, nic.ErrRights, denied},
		{"ixgbe", "17", false, nil, nic.ErrRights, denied + ", after rebound-responder bind 0000:03:00.0: it belongs to kernel driver ixgbe"},
		{"ixgbe", "17", true, nil, bus.ErrBusy, kernels},
	} {
		err := openable(&pci.Found{Address: "0000:03:00.0", Driver: c.driver, Group: c.group}, c.root, false,
			func(string) error { return c.access })
		if c.want == "" {
			check.OK(t, err)
			continue
		}
		if check.Fails(t, c.driver, err, c.is); err != nil {
			check.Equal(t, err.Error(), c.want, "%s")
		}
	}
}

// Of a function that a kernel driver has, one line says so, before any list of what a probe will change.
func TestProbeOfTheKernels(t *testing.T) {
	needs.Root(t, "the right to open a function")
	for _, f := range must.Get(pci.List())(t) {
		if f.Driver == "" || f.Driver == "vfio-pci" || cards.DriverFor(f.ID) == "" {
			continue
		}
		var out, log strings.Builder
		c := exec.Command(program(t), "probe", f.Address)
		c.Stdout, c.Stderr, c.Dir = &out, &log, t.TempDir()
		check.Fails(t, f.Address, c.Run(), nil)
		check.Equal(t, out.String(), "", "stdout %q")
		check.Contains(t, log.String(), f.Address+" belongs to kernel driver "+f.Driver+" (rebound-responder bind "+
			f.Address+")")
		check.Equal(t, strings.Count(log.String(), "\n"), 1, "%d lines on stderr")
		return
	}
	t.Skip("needs a network function of this machine that a kernel driver has and a driver of ours fits")
}
