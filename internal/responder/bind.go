package responder

import (
	"errors"
	"flag"
	"io"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

func bindCommand(args []string, _, _ io.Writer) error {
	var to pci.Target
	addr, err := address(bindFlags(&to), args)
	if err != nil {
		return err
	}
	if !to.Force {
		if to.Needed, err = netif.Needed(); err != nil {
			return err
		}
	}
	return pci.Bind(addr, to)
}

func bindFlags(to *pci.Target) *flag.FlagSet {
	f := flag.NewFlagSet("bind", flag.ContinueOnError)
	f.BoolVar(&to.Force, "force", false, "even if the default route or the ssh session uses it")
	f.BoolVar(&to.NoDriver, "no-driver", false, "leave it without a kernel driver, for a machine without vfio-pci (nic.unsafe_no_iommu)")
	return f
}

func unbindCommand(args []string, _, _ io.Writer) error {
	addr, err := address(flag.NewFlagSet("unbind", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	return pci.Unbind(addr)
}

// address reads flags and the one PCI address after them.
func address(f *flag.FlagSet, args []string) (string, error) {
	f.SetOutput(io.Discard)
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return "", err
	} else if err != nil {
		return "", usageError(err.Error())
	}
	if f.NArg() != 1 {
		return "", usageError(f.Name() + " needs one PCI address")
	}
	addr, err := pci.ParseAddress(f.Arg(0))
	if err != nil {
		return "", usageError(err.Error())
	}
	return addr, nil
}
