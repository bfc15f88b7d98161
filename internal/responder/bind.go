package responder

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os/user"
	"strconv"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

func bindCommand(args []string, _, _ io.Writer) error {
	var to pci.Target
	addr, err := address(bindFlags(&to), args, pci.FunctionOf)
	if err != nil {
		return err
	}
	if !to.Force {
		if to.Needed, err = netif.Needed(); err != nil {
			return err
		}
	}
	if f, err := pci.Find(addr); err == nil && !cards.WritesConfig(cards.DriverFor(f.ID)) {
		to.Group = 0
	}
	return pci.Bind(addr, to)
}

func bindFlags(to *pci.Target) *flag.FlagSet {
	f := flag.NewFlagSet("bind", flag.ContinueOnError)
	f.BoolVar(&to.Force, "force", false, "even if the default route or the ssh session uses it")
	f.Func("group", "let this `group` of users write configuration space until unbind, if the driver for the card needs that (ConnectX-3)", func(name string) error {
		g, err := user.LookupGroup(name)
		if err == nil {
			to.Group, err = strconv.Atoi(g.Gid)
		}
		return err
	})
	f.BoolVar(&to.NoDriver, "no-driver", false,
		"leave it without a kernel driver, for a machine without vfio-pci (nic.unsafe_no_iommu)")
	return f
}

func unbindCommand(args []string, _, _ io.Writer) error {
	addr, err := address(flag.NewFlagSet("unbind", flag.ContinueOnError), args, pci.FunctionOf)
	if err != nil {
		return err
	}
	return pci.Unbind(addr)
}

// address reads flags and one PCI address, in any order. functionOf returns the PCI address of an interface, "" if it
// has none.
func address(f *flag.FlagSet, args []string, functionOf func(iface string) string) (string, error) {
	rest, err := parseMixed(f, args)
	if err != nil {
		return "", err
	}
	if len(rest) != 1 {
		return "", usageError(f.Name() + " needs one PCI address")
	}
	addr, err := pci.ParseAddress(rest[0])
	if err == nil {
		return addr, nil
	}
	if addr = functionOf(rest[0]); addr != "" {
		return "", usageError(fmt.Sprintf("%s is an interface: name its PCI function, %s", rest[0], addr))
	}
	return "", usageError(err.Error())
}

// parseMixed reads flags before and after the other arguments, which it returns.
func parseMixed(f *flag.FlagSet, args []string) (rest []string, err error) {
	f.SetOutput(io.Discard)
	for {
		if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
			return nil, err
		} else if err != nil {
			return nil, usageError(setting.Unknown(err, f).Error())
		}
		if f.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, f.Arg(0)), f.Args()[1:]
	}
}
