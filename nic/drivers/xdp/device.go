package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// Options are the options of this driver only.
type Options struct {
	Generic bool // attach in generic mode, after the interface's driver, rather than in native mode

	// Pin is the name under which the program remains when the process ends, or is killed, until Unpin. If a pin with
	// that name exists, it is joined: its counts continue, and the program is replaced atomically.
	Pin string
}

// Device is an interface whose requests the kernel answers. It implements nic.Port.
type Device struct {
	info     nic.Info
	iface    *netif.Interface
	watch    *netif.Watch
	claims   netif.Claims
	features xdpkit.Features
	object   *object // while opening
	maps     *maps
	counts   *counts
	reading  sync.Mutex // counts has a single buffer; it protects info.MAC, too, once the device is open
	program  *xdpkit.Program
	link     link.Link
	pin      string
	since    time.Time
	stamped  bool // the program uses the card's timestamps
	// a packet socket for announcements, which holds the multicast memberships unless there is a pin; -1 if none
	groups   int
	match    fastpath.Config
	clock    *clockKeeper
	stop     context.CancelFunc   // ends clock
	stamping *unix.HwTstampConfig // the interface's earlier configuration, nil if it was not changed
	ioctl    int                  // a socket for it
}

// Open attaches the program to the interface o.Device in the calling thread's network namespace; from then on the
// kernel answers the frames selected by o.Match, on every receive queue, until Close or the end of the process, or with
// a pin until Unpin. o.Match.MAC and PartialChecksums are set from the interface. It returns nic.ErrNoDevice,
// nic.ErrDown, nic.ErrRights, nic.ErrBusy (the interface already has an XDP program, or another responder one of the
// addresses) and ErrForeign, each explained.
func Open(o nic.Options, own Options) (*Device, error) {
	d := &Device{groups: -1, ioctl: -1, since: time.Now()}
	if err := d.open(&o, own); err != nil {
		d.Close()
		return nil, fmt.Errorf("xdp: %w", err)
	}
	return d, nil
}

func (d *Device) note(format string, args ...any) {
	d.info.Notes = append(d.info.Notes, fmt.Sprintf(format, args...))
}

func (d *Device) open(o *nic.Options, own Options) (err error) {
	if o.Match == nil {
		return errors.New("nothing to answer: Match is not set")
	}
	if err := CheckPin(own.Pin); err != nil {
		return err
	}
	if d.iface, err = netif.Lookup(o.Device); err != nil {
		return err
	}
	i := d.iface
	var joined *pin
	if own.Pin != "" {
		release, err := lockPins()
		if err != nil {
			return fmt.Errorf("pin %q: %w", own.Pin, err)
		}
		defer release()
		if joined, err = d.findPin(own); err != nil {
			return err
		}
		if joined != nil {
			defer joined.close()
		}
	}
	var notes []string
	d.claims, err = i.Claim(o.Match.Addresses, &notes)
	if err != nil && joined == nil { // joining a pin replaces its responder
		return err
	}
	if joined == nil || joined.gone {
		if err := xdpkit.Free(i); err != nil {
			return err
		}
	}
	mac := i.MAC
	if o.MAC != [6]byte{} {
		mac = o.MAC
	}
	if mac == [6]byte{} {
		return fmt.Errorf("%w: %w", fastpath.ErrConfig, netif.NoEthernet(i.Name))
	}
	d.info = nic.Info{
		Driver: "xdp", Device: o.Device, Model: i.Driver, MAC: net.HardwareAddr(mac[:]).String(), MTU: i.MTU,
		Queues:  i.RxQueues,
		Backend: nic.Socket, PartialChecksums: i.Local(), Notes: notes,
		NoDropCounter: true, // the interface's counters include other traffic
	}
	c := *o.Match
	c.MAC, c.PartialChecksums, c.TicksPerSecond = mac, i.Local(), 1e9
	if _, err := c.Rules(); err != nil {
		return err
	}
	xdpkit.LiftMemlock()
	if d.object, err = newObject(); err != nil {
		return err
	}
	defer func() { d.object = nil }()
	if joined != nil {
		d.maps, joined.maps = joined.maps, nil
	} else if d.maps, err = d.object.newMaps(); err != nil {
		return i.ExplainBPF("counters", err)
	}
	if d.counts, err = newCounts(d.maps.Cpus); err != nil {
		return i.ExplainBPF("counters", err)
	}
	d.features = xdpkit.AskFeatures(i.Index)
	if err := d.keepClock(&c); err != nil {
		return err
	}
	d.match = c
	if err := d.attach(c, own, joined); err != nil {
		return err
	}
	if err := d.letIn(own, joined, mac, &c); err != nil {
		return err
	}
	d.watch, err = i.Watch(netif.Following{DownLimit: o.DownLimit, OwnMAC: mac == i.MAC, Log: o.Log})
	return err
}

// Impaired implements nic.Impaired.
func (d *Device) Impaired() []string { return d.watch.Impaired() }

// MACChanged implements nic.Followed.
func (d *Device) MACChanged() <-chan [6]byte { return d.watch.MACChanged() }

// FollowMAC implements nic.Followed. A pin's description keeps the MAC of the time when the responder joined it.
func (d *Device) FollowMAC(mac [6]byte) error {
	if err := d.program.SetMAC(mac); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	d.reading.Lock()
	d.info.MAC = net.HardwareAddr(mac[:]).String()
	d.reading.Unlock()
	d.iface.Announce(d.groups, mac, &d.match)
	d.watch.Followed(mac)
	return nil
}

// Since returns when the counts started: when the device was opened, or its pin was created.
func (d *Device) Since() time.Time { return d.since }

// Info implements nic.Port.
func (d *Device) Info() nic.Info {
	d.reading.Lock()
	defer d.reading.Unlock()
	return d.info
}

// Link implements nic.Port.
func (d *Device) Link() (nic.Link, error) { return d.iface.Link() }

// ReadStats implements nic.Port. Frames and bytes are those that the program received and answered. Drops by the
// interface's driver before or after the program are only in Extra, because the kernel's counters include all traffic
// of the interface.
func (d *Device) ReadStats(s *nic.Stats) error {
	d.reading.Lock()
	defer d.reading.Unlock()
	v, n := d.counts.verdicts(), d.counts.bytes()
	*s = nic.Stats{RxFrames: v.Answered() + v.Refused(), RxBytes: n[0], TxFrames: v.Answered(), TxBytes: n[1]}
	s.Extra, _ = d.iface.Drops() // an interface that was removed has none
	if d.clock != nil {
		if n := d.clock.failures.Load(); n > 0 {
			if s.Extra == nil {
				s.Extra = map[string]uint64{}
			}
			s.Extra["clock_failures"] = n
		}
	}
	return nil
}

// Verdicts returns the outcomes of all frames since Open, or since a pin was created. It makes no system call.
func (d *Device) Verdicts() fastpath.Stats {
	d.reading.Lock()
	defer d.reading.Unlock()
	return d.counts.verdicts()
}

// Turnaround returns the duration of the program for each reply, from its start to its end. It makes no system call.
func (d *Device) Turnaround() Histogram {
	d.reading.Lock()
	defer d.reading.Unlock()
	return d.counts.turnaround()
}

// Delivery returns the time of each answered frame from the card's timestamp to the program's start, if the card's
// timestamps are available; otherwise it is empty. It makes no system call.
func (d *Device) Delivery() Histogram {
	d.reading.Lock()
	defer d.reading.Unlock()
	return d.counts.delivery()
}

// OK reports whether the interface exists and is up, and the program is attached; Err returns the reason if not.
func (d *Device) OK() bool { return d.Err() == nil }

// Err is nil while OK.
func (d *Device) Err() error {
	if err := d.watch.Err(); err != nil {
		return fmt.Errorf("xdp: %w", err)
	}
	if info, err := d.link.Info(); err == nil && info.XDP() != nil && info.XDP().Ifindex == 0 {
		if _, err := d.iface.Link(); err != nil {
			return fmt.Errorf("xdp: %w", err)
		}
		return fmt.Errorf("xdp: interface %s: the program was taken off by somebody (rebound-responder unpin, bpftool link detach)", d.iface.Name)
	}
	return nil
}

// TakeStamping returns the configuration that the card's timestamps had before Open changed them, nil if it did not.
// The caller restores them instead of Close, which a confined process cannot do (SIOCSHWTSTAMP needs CAP_NET_ADMIN).
func (d *Device) TakeStamping() *unix.HwTstampConfig {
	old := d.stamping
	d.stamping = nil
	return old
}

// Close implements nic.Port. The program is detached first, unless it is pinned.
func (d *Device) Close() error {
	var err error
	if d.watch != nil {
		d.watch.Close()
	}
	if d.link != nil {
		err = d.link.Close()
	}
	if d.stop != nil {
		d.stop()
		<-d.clock.done
	}
	if d.clock != nil && d.clock.phc != nil {
		d.clock.phc.close()
	}
	if d.stamping != nil {
		err = errors.Join(err, unix.IoctlSetHwTstamp(d.ioctl, d.iface.Name, d.stamping))
	}
	if d.ioctl >= 0 {
		unix.Close(d.ioctl)
	}
	if d.program != nil {
		err = errors.Join(err, d.program.Close())
	}
	if d.maps != nil {
		d.maps.close()
	}
	if d.groups >= 0 {
		unix.Close(d.groups)
	}
	d.claims.Close()
	if d.iface != nil {
		d.iface.Close()
	}
	return err
}
