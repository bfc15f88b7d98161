package responder

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// probing holds the options of `responder probe`.
type probing struct {
	configured
	stage, peer, from, folder string
	wait                      time.Duration
	mask                      bool
}

func (p *probing) flags() *flag.FlagSet {
	f := p.configured.flags()
	f.StringVar(&p.stage, "stage", string(evidence.StageRead),
		"`NAME` of how far to go: read (only the device's capabilities), up (bring it up and take it "+
			"down), loop (send one frame)")
	f.StringVar(&p.peer, "peer", "",
		"loop: IPv4 `ADDRESS` of a host on the wire to ask for its MAC address; without it the frame is sent to the device itself")
	f.StringVar(&p.from, "from", "", "loop: this host's IPv4 `ADDRESS`, with -peer")
	f.StringVar(&p.folder, "o", ".", "`FOLDER` to write the file to")
	f.DurationVar(&p.wait, "wait", 5*time.Second, "`TIME` to wait for the link, and for the frame")
	f.BoolVar(&p.mask, "mask", true, "replace the device's MAC address and GID everywhere in the file")
	return f
}

func probeCommand(args []string, stdout, stderr io.Writer) error {
	var p probing
	rest, err := parseMixed(p.flags(), args)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usageError("probe needs one device: a PCI address, an interface or vfio-user:PATH")
	}
	o, err := p.options(rest[0])
	if err != nil {
		return err
	}
	if err := probeable(&o.Card); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "probe %s, stage %s. This will change:\n", o.Card.Device, o.Stage)
	if cards.IsPCIDevice(o.Card.Device) {
		for _, e := range o.Stage.Effects() {
			fmt.Fprintf(stdout, "- %s\n", e)
		}
		if !strings.HasPrefix(o.Card.Device, "vfio-user:") {
			fmt.Fprintf(stdout, "To give the function back to the kernel's driver afterwards: rebound-responder unbind %s\n", o.Card.Device)
		}
	} else {
		fmt.Fprintln(stdout, "- a socket is opened on the interface; afxdp and xdp attach an XDP program, which is removed at the end")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	file, err := evidence.Run(ctx, o)
	if err != nil {
		return err
	}
	path, err := file.Save(p.folder)
	fmt.Fprint(stdout, file.Summary())
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "written: %s\n", path)
	if file.Error != "" {
		return fmt.Errorf("stage %s was not reached; results so far are in %s", o.Stage, path)
	}
	if len(file.Changed) > 0 {
		return fmt.Errorf("the device was not restored completely: see %s", path)
	}
	return nil
}

// probeable returns an error for a device that cannot be opened, as far as that is known without changing anything.
func probeable(c *cards.Config) error {
	if !cards.IsPCIDevice(c.Device) {
		if err := permitted(c); err != nil {
			return err
		}
		i, err := netif.Lookup(c.Device)
		if err == nil {
			i.Close()
		}
		return err
	}
	addr, err := pci.ParseAddress(c.Device)
	if err != nil {
		// by its name: a probe reads registers, which the kernel's driver has
		if f, err := verbs.Find(c.Device); err == nil {
			return fmt.Errorf("%s belongs to kernel driver %s (rebound-responder bind %s, and probe that address): %w",
				c.Device, f.Function.Driver, f.Function.Address, bus.ErrBusy)
		}
		return nil // a model, which a socket reaches
	}
	f, err := pci.Find(addr)
	if err != nil {
		return err
	}
	if err := cards.NotSupported(f.ID); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	if c.Driver == "auto" && cards.DriverFor(f.ID) == "" {
		return fmt.Errorf("%s: %w: no driver for %v", addr, nic.ErrNoDevice, f.ID)
	}
	return openable(&f, os.Geteuid() == 0, c.UnsafeNoIOMMU, func(path string) error {
		return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS)
	})
}

// openable returns an error if this user may not open a function, which takes root, or access to the file of its IOMMU
// group on vfio-pci, or if another driver has it.
func openable(f *pci.Found, root, unsafeNoIOMMU bool, access func(path string) error) error {
	group := "/dev/vfio/" + f.Group
	onVFIO := f.Driver == "vfio-pci" && f.Group != ""
	if root || onVFIO && access(group) == nil {
		return pci.Openable(f, unsafeNoIOMMU)
	}
	what := "run as root (sudo)"
	switch {
	case onVFIO:
		what += ", or give this user access to " + group
	case f.Driver != "" && f.Driver != "vfio-pci":
		what += fmt.Sprintf(", after rebound-responder bind %s: it belongs to kernel driver %s", f.Address, f.Driver)
	}
	return fmt.Errorf("%s: %w: %s", f.Address, nic.ErrRights, what)
}

func (p *probing) options(device string) (o evidence.Options, err error) {
	o = evidence.Options{Stage: evidence.Stage(p.stage), Wait: p.wait, Mask: p.mask}
	switch o.Stage {
	case evidence.StageRead, evidence.StageUp, evidence.StageLoop:
	default:
		return o, usageError(fmt.Sprintf("-stage %q: want read, up or loop", p.stage))
	}
	if p.peer != "" || p.from != "" {
		var first, second error
		o.Peer, first = netip.ParseAddr(p.peer)
		o.From, second = netip.ParseAddr(p.from)
		if first != nil || second != nil || !o.Peer.Is4() || !o.From.Is4() || o.Stage != evidence.StageLoop {
			return o, usageError("-peer and -from need one IPv4 address each, and -stage loop")
		}
	}
	online, err := onlineCPUs()
	if err != nil {
		return o, err
	}
	s, err := readConfig(p.file, p.sets, online)
	if err != nil {
		return o, err
	}
	if err := s.table.Set(fmt.Sprintf("nic.device=%q", device)); err != nil {
		return o, usageError(err.Error())
	}
	if err := s.table.Apply(); err != nil {
		return o, err
	}
	o.Card = s.nic
	if o.Card.InKernel() {
		return o, usageError("driver xdp answers in the kernel: probe the interface with -set nic.driver=afxdp or afpacket")
	}
	return o, nil
}
