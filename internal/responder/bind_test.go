package responder

import (
	"errors"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
)

func TestAddressArgument(t *testing.T) {
	functionOf := func(name string) string {
		if name == "eth0" {
			return "0000:03:00.0"
		}
		return ""
	}
	for _, c := range []struct {
		args  []string
		force bool
		want  string
		err   string
	}{
		{args: []string{"03:00.0"}, want: "0000:03:00.0"},
		{args: []string{"-force", "03:00.0"}, want: "0000:03:00.0", force: true},
		{args: []string{"03:00.0", "-force"}, want: "0000:03:00.0", force: true},
		{args: []string{"eth0"}, err: "eth0 is an interface: name its PCI function, 0000:03:00.0"},
		{args: []string{"03:00.0", "-farce"}, err: "unknown flag -farce (did you mean -force?)"},
	} {
		var to pci.Target
		got, err := address(bindFlags(&to), c.args, functionOf)
		var wrong usageError
		switch {
		case c.err == "" && err != nil, c.err != "" && (!errors.As(err, &wrong) || err.Error() != c.err):
			t.Errorf("%q: %v, want %s", c.args, err, c.err)
		default:
			check.Equal(t, got, c.want, "address %q")
			check.Equal(t, to.Force, c.force, "-force %v")
		}
	}
}
