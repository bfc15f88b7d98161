package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/kit/netif"
	"rebound/polling"
)

// Options are what this driver alone takes.
type Options struct {
	Generic bool // attach to the kernel's own hook, behind the interface's driver, and not to the driver's
}

// Device is an interface whose requests the kernel answers. It implements nic.Port.
type Device struct {
	info    nic.Info
	iface   *netif.Interface
	watch   *netif.Watch
	program *programObjects
	counts  *counts
	link    link.Link
	groups  int // a packet socket that holds multicast memberships, -1 if none
	keeping context.CancelFunc
	kept    chan struct{} // closed when the clock is no longer kept
}

// Open attaches the program to the interface o.Device in the calling thread's network namespace; from then on the kernel
// answers what o.Match says, on every receive queue, until Close or the end of the process. o.Match.MAC and PartialChecksums
// are the interface's own to say. It returns nic.ErrNoDevice, nic.ErrDown, nic.ErrRights and nic.ErrBusy (the interface has an
// XDP program already), each explained.
func Open(o nic.Options, own Options) (*Device, error) {
	d := &Device{groups: -1}
	if err := d.open(&o, own); err != nil {
		d.Close()
		return nil, fmt.Errorf("xdp: %w", err)
	}
	return d, nil
}

func (d *Device) open(o *nic.Options, own Options) (err error) {
	if o.Match == nil {
		return errors.New("nothing to answer: Match is not set")
	}
	if d.iface, err = netif.Lookup(o.Device); err != nil {
		return err
	}
	i := d.iface
	if err := i.FreeOfXDP(); err != nil {
		return err
	}
	mac := i.MAC
	if o.MAC != [6]byte{} {
		mac = o.MAC
	}
	d.info = nic.Info{
		Driver: "xdp", Device: o.Device, Model: i.Driver, MAC: net.HardwareAddr(mac[:]).String(), MTU: i.MTU, Queues: i.RxQueues,
		Backend: nic.Socket, PartialChecksums: i.Local(),
	}
	c := *o.Match
	c.MAC, c.PartialChecksums = mac, i.Local()
	if d.program, err = load(c); err != nil {
		return i.ExplainBPF("program", err)
	}
	if d.counts, err = newCounts(d.program.Cpus); err != nil {
		return i.ExplainBPF("counters", err)
	}
	if len(c.STAMPPorts) > 0 {
		if err := d.setClock(c.Clock.Load()); err != nil {
			return err
		}
		var ctx context.Context
		ctx, d.keeping = context.WithCancel(context.Background())
		d.kept = make(chan struct{})
		go d.keepClock(ctx, &c)
	}
	if err := d.attach(own.Generic); err != nil {
		return err
	}
	if i.Driver == "veth" && d.info.Push == "xdp-drv" {
		d.info.Notes = append(d.info.Notes, "a veth pair drops the replies unless its other end has an XDP program too")
	}
	if i.StripsVLAN() && i.Driver != "veth" { // veth leaves tags that are in the frame there
		d.info.Notes = append(d.info.Notes, fmt.Sprintf("rx-vlan-offload is on: tagged frames lose their tag before XDP sees them "+
			"and are answered untagged (ethtool -K %s rxvlan off)", i.Name))
	}
	if d.groups, err = netif.PacketSocket(); err != nil {
		return fmt.Errorf("packet socket for multicast groups: %w", err)
	}
	if err := i.Receive(d.groups, mac, c.Addresses); err != nil {
		return err
	}
	d.watch, err = i.Watch()
	return err
}

// attach attaches the program, in the driver's hook where there is one and the generic one is not asked for.
func (d *Device) attach(generic bool) error {
	hooks := []struct {
		push  string
		flags link.XDPAttachFlags
	}{{"xdp-drv", link.XDPDriverMode}, {"xdp-generic", link.XDPGenericMode}}
	if generic {
		hooks = hooks[1:]
	}
	var err error
	for _, h := range hooks {
		refused := err
		d.link, err = link.AttachXDP(link.XDPOptions{Program: d.program.Respond, Interface: d.iface.Index, Flags: h.flags})
		if err == nil {
			d.info.Push = h.push
			if refused != nil {
				d.info.Notes = append(d.info.Notes, "generic XDP, since the driver's own hook refused: "+strings.Join(strings.Fields(refused.Error()), " "))
			}
			return nil
		}
		d.link = nil
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return d.iface.ExplainBPF("XDP program", err)
}

// Info implements nic.Port.
func (d *Device) Info() nic.Info { return d.info }

// Link implements nic.Port.
func (d *Device) Link() (nic.Link, error) { return d.iface.Link() }

// ReadStats implements nic.Port. Frames and bytes are those that the program saw and answered.
func (d *Device) ReadStats(s *nic.Stats) error {
	v, n := d.counts.verdicts(), d.counts.bytes()
	*s = nic.Stats{RxFrames: v.Answered() + v.Refused(), RxBytes: n[0], TxFrames: v.Answered(), TxBytes: n[1]}
	return nil
}

// Verdicts returns what became of all frames since Open. It makes no system call.
func (d *Device) Verdicts() fastpath.Stats { return d.counts.verdicts() }

// Turnaround returns how many replies took how long, in polling's buckets of nanoseconds, from the program's start to its end,
// and the greatest. It makes no system call.
func (d *Device) Turnaround() (counts [polling.Buckets]uint64, greatest uint64) {
	return d.counts.turnaround()
}

// OK reports whether the interface is there and up; Err says why not.
func (d *Device) OK() bool { return d.watch.OK() }

// Err is nil while OK.
func (d *Device) Err() error {
	if err := d.watch.Err(); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	return nil
}

// keepClock follows c.Clock, once a second.
func (d *Device) keepClock(ctx context.Context, c *fastpath.Config) {
	defer close(d.kept)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			d.setClock(c.Clock.Load())
		}
	}
}

// setClock tells the program the time: c relates the cycle counter to it, and so does one reading of both clocks.
func (d *Device) setClock(c *fastpath.Clock) error {
	var t unix.Timespec
	best := ^uint64(0)
	var v clock
	for range 8 {
		before := polling.TSC()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
			return fmt.Errorf("CLOCK_MONOTONIC: %w", err)
		}
		if width := polling.TSC() - before; width < best {
			best = width
			v = clock{At: uint64(t.Nano()), Ntp: c.At(before + width/2), ErrorEstimate: uint64(c.ErrorEstimate)}
		}
	}
	v.Rate = nanosecond
	if c.Rate == 0 { // a clock that stands
		v.Rate = 0
	}
	var both programClockPair
	if err := d.program.Clocks.Lookup(uint32(0), &both); err != nil {
		return fmt.Errorf("the program's clock: %w", err)
	}
	both.Clock[1-both.Sequence&1] = v
	if err := d.program.Clocks.Put(uint32(0), both); err != nil { // the one that is in force stays as it is
		return fmt.Errorf("the program's clock: %w", err)
	}
	both.Sequence++
	if err := d.program.Clocks.Put(uint32(0), both); err != nil {
		return fmt.Errorf("the program's clock: %w", err)
	}
	return nil
}

// nanosecond is one in NTP's units of 2^-32 s, with 32 bits of fraction: 2^64 / 1e9.
const nanosecond = 18_446_744_073

// Close implements nic.Port. The program is detached first.
func (d *Device) Close() error {
	var err error
	if d.watch != nil {
		d.watch.Close()
	}
	if d.link != nil {
		err = d.link.Close()
	}
	if d.keeping != nil {
		d.keeping()
		<-d.kept
	}
	if d.program != nil {
		err = errors.Join(err, d.program.Close())
	}
	if d.groups >= 0 {
		unix.Close(d.groups)
	}
	if d.iface != nil {
		d.iface.Close()
	}
	return err
}
