package xdp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
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
	reading  sync.Mutex // counts has a single buffer
	program  *ebpf.Program
	link     link.Link
	pin      string
	since    time.Time
	stamped  bool // the program uses the card's timestamps
	groups   int  // a packet socket that holds multicast memberships, -1 if none
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
	d.claims, err = i.Claim(o.Match.Addresses, nil)
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
	d.info = nic.Info{
		Driver: "xdp", Device: o.Device, Model: i.Driver, MAC: net.HardwareAddr(mac[:]).String(), MTU: i.MTU, Queues: i.RxQueues,
		Backend: nic.Socket, PartialChecksums: i.Local(),
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
	if err := d.attach(c, own, joined); err != nil {
		return err
	}
	if err := d.letIn(own, joined, mac, &c); err != nil {
		return err
	}
	d.watch, err = i.Watch()
	return err
}

// findPin returns the pin to join, nil if there is none.
func (d *Device) findPin(own Options) (*pin, error) {
	p, err := openPin(own.Pin)
	if errors.Is(err, ErrNoPin) {
		if _, err := os.Stat(pinPath(own.Pin, "")); err == nil { // started but not completed
			return nil, removePin(own.Pin)
		}
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	wrong := ""
	switch a := p.about; {
	case a.Namespace != namespace():
		wrong = "is of an interface in another network namespace"
	case a.Device != d.iface.Name:
		wrong = fmt.Sprintf("is on interface %s, not %s", a.Device, d.iface.Name)
	case !p.gone && a.Ifindex != d.iface.Index:
		wrong = fmt.Sprintf("is on another interface that had the name %s", a.Device)
	case !p.gone && own.Generic != (a.Hook == xdpkit.Generic) && own.Generic:
		wrong = fmt.Sprintf("is at the driver's hook, and nic.generic_xdp asks for the other")
	}
	if wrong != "" {
		p.close()
		return nil, fmt.Errorf("pin %q %s: `rebound-responder unpin %s` ends it, another name makes another", own.Pin, wrong, own.Pin)
	}
	return p, nil
}

// keepClock gives the program the clocks if it has test packets to answer, and keeps them up to date.
func (d *Device) keepClock(c *fastpath.Config) error {
	if len(c.STAMPPorts) == 0 {
		return nil
	}
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnKtimeGetTaiNs); errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("STAMP in the kernel takes Linux 6.1 or later, whose programs can read the time of day (bpf_ktime_get_tai_ns): %w", err)
	}
	k := &clockKeeper{clocks: d.maps.Clocks, done: make(chan struct{}), adjtimex: unix.Adjtimex}
	k.phc = d.deviceClock()
	if err := k.set(); err != nil {
		return err
	}
	d.clock = k
	var ctx context.Context
	ctx, d.stop = context.WithCancel(context.Background())
	go k.run(ctx)
	return nil
}

// deviceClock opens the interface's own clock and enables timestamps for all frames until Close, if its driver passes
// the timestamps to programs. Otherwise it returns nil.
func (d *Device) deviceClock() *phc {
	if !d.features.Tells(xdpkit.Timestamp) || !d.object.types.Known("bpf_xdp_metadata_rx_timestamp") {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	d.ioctl = fd
	ts, err := unix.IoctlGetEthtoolTsInfo(fd, d.iface.Name)
	if err != nil || ts.Phc_index < 0 || ts.Rx_filters&(1<<unix.HWTSTAMP_FILTER_ALL) == 0 {
		return nil
	}
	p, err := openPHC(int(ts.Phc_index))
	if err != nil {
		d.note("no receive timestamps from the card: its clock /dev/ptp%d cannot be read: %v", ts.Phc_index, err)
		return nil
	}
	old, err := unix.IoctlGetHwTstamp(fd, d.iface.Name)
	if err == nil && old.Rx_filter != unix.HWTSTAMP_FILTER_ALL {
		want := *old
		want.Rx_filter = unix.HWTSTAMP_FILTER_ALL
		if err = unix.IoctlSetHwTstamp(fd, d.iface.Name, &want); err == nil {
			d.stamping = old
		}
	}
	if err != nil {
		d.note("no receive timestamps from the card: SIOCSHWTSTAMP: %v", err)
		p.close()
		return nil
	}
	return p
}

// oneBuffer is the largest MTU that every driver supports with single-buffer frames.
const oneBuffer = 1500

// attempts are the ways to attach, in order of preference.
func (d *Device) attempts(c fastpath.Config, hook string) (a []xdpkit.Attempt, v []variant) {
	add := func(hook string, w variant) {
		v = append(v, w)
		a = append(a, xdpkit.Attempt{Hook: hook, Load: func() (*ebpf.Program, error) { return d.object.load(c, w, d.maps) }})
	}
	frags := func(hook string, w variant) {
		add(hook, w)
		if d.iface.MTU > oneBuffer {
			w.frags = true
			add(hook, w)
		}
	}
	if hook != xdpkit.Generic {
		w := variant{ifindex: d.iface.Index, stamps: d.clock != nil && d.clock.phc != nil,
			tag: d.features.Tells(xdpkit.VLANTag) && d.object.types.Known("bpf_xdp_metadata_rx_vlan_tag")}
		if w.bound() {
			frags(xdpkit.Driver, w)
		}
		frags(xdpkit.Driver, variant{})
	}
	if hook != xdpkit.Driver {
		add(xdpkit.Generic, variant{})
	}
	return a, v
}

// attach attaches the program, in native mode if the driver supports transmission there and generic mode is not
// requested, or replaces the pin's program.
func (d *Device) attach(c fastpath.Config, own Options, joined *pin) error {
	i, hook := d.iface, ""
	if own.Generic {
		hook = xdpkit.Generic
	} else if i.Driver == "veth" {
		switch ok, err := i.PeerReceivesXDP(); {
		case err != nil:
			hook = xdpkit.Generic
			d.note("generic XDP: at the driver's hook a veth pair drops the replies unless its other end has an XDP program too, and %v", err)
		case !ok:
			hook = xdpkit.Generic
			d.note("generic XDP: at the driver's hook a veth pair drops the replies, since its other end has no XDP program")
		}
	}
	var v variant
	if joined != nil && !joined.gone {
		hook = joined.about.Hook
		attempts, variants := d.attempts(c, hook)
		var err error
		for n, t := range attempts {
			if d.program, err = t.Load(); err != nil {
				continue
			}
			if err = joined.link.Update(d.program); err == nil {
				v = variants[n]
				break
			}
			d.program.Close()
			d.program = nil
		}
		if err != nil {
			return i.ExplainBPF("replace the pinned XDP program", err)
		}
		d.info.Push, d.pin = hook, own.Pin
		d.link, joined.link = joined.link, nil
	} else {
		attempts, variants := d.attempts(c, hook)
		at, err := xdpkit.Attach(i, attempts)
		if err != nil {
			if missing := d.features.Missing(i); missing != "" {
				err = fmt.Errorf("%w; %s", err, missing)
			}
			return err
		}
		d.program, d.link, d.info.Push, v = at.Program, at.Link, attempts[at.Attempt].Hook, variants[at.Attempt]
		if d.info.Push == xdpkit.Generic && hook == "" {
			d.note("%s", at.FellBack(i, d.features))
		}
	}
	switch {
	case d.info.Push == xdpkit.Generic && (i.StripsVLAN() || i.Local()): // the kernel sends the reply with the tag that it stripped
		d.note("as with rx-vlan-offload, a VLAN tag outside of the frame is not seen at the generic hook: it counts as none for " +
			"respond.vlans, and the reply has it")
	case !v.tag && i.StripsVLAN() && i.Driver != "veth": // it does not strip tags that are in the frame
		d.note("%s", xdpkit.HiddenTags(i, d.info.Push, false, false))
	}
	d.stamped = v.stamps
	switch {
	case v.stamps:
		d.note("receive timestamps come from the card")
	case len(c.STAMPPorts) > 0:
		d.note("receive timestamps are taken when the program starts: the card's are not available here")
	}
	return nil
}

// letIn makes the interface accept the frames that are answered, and completes the pin.
func (d *Device) letIn(own Options, joined *pin, mac [6]byte, c *fastpath.Config) (err error) {
	i := d.iface
	if own.Pin == "" {
		if d.groups, err = netif.PacketSocket(); errors.Is(err, unix.EPERM) {
			return fmt.Errorf("packet socket for multicast groups: %w: it takes CAP_NET_RAW: %w", nic.ErrRights, err)
		} else if err != nil {
			return fmt.Errorf("packet socket for multicast groups: %w", err)
		}
		return i.Receive(d.groups, mac, c.Addresses)
	}
	now := time.Now().Round(time.Second)
	a := About{
		Pin: own.Pin, Layout: layoutSum(), Device: i.Name, Ifindex: i.Index, Namespace: namespace(), Hook: d.info.Push, MAC: d.info.MAC,
		UDPPorts: c.UDPPorts, STAMP: c.STAMPPorts, Mode: "strict", T2: "program", T3: "program", Since: now, Updated: now, PID: os.Getpid(),
		Groups: stations(i, mac, c.Addresses),
	}
	if c.Mode == fastpath.Open {
		a.Mode = "open"
	}
	if d.stamped {
		a.T2 = "card"
	}
	for _, p := range c.Addresses {
		a.Addresses = append(a.Addresses, p.String())
	}
	for _, g := range a.Groups {
		if err := letIn(i.Name, i.Index, g, true); err != nil {
			return err
		}
	}
	if joined == nil {
		if err := savePin(a, d.maps, d.link); err != nil {
			return errors.Join(err, removePin(own.Pin))
		}
		d.pin = own.Pin
		return nil
	}
	if joined.gone {
		if err := os.Remove(pinPath(own.Pin, xdpkit.PinLink)); err != nil {
			return fmt.Errorf("pin %q: %w", own.Pin, err)
		}
		if err := d.link.Pin(pinPath(own.Pin, xdpkit.PinLink)); err != nil {
			return fmt.Errorf("pin %q: %s: %w", own.Pin, xdpkit.PinLink, err)
		}
		d.pin = own.Pin
	} else {
		for _, g := range joined.about.Groups {
			if !slices.Contains(a.Groups, g) {
				if err := letIn(i.Name, i.Index, g, false); err != nil {
					return err
				}
			}
		}
	}
	a.Since = joined.about.Since
	d.since = a.Since
	d.note("joined pin %q of %v: its counts continue", own.Pin, a.Since)
	return writeAbout(joined.notes, a)
}

// Since returns when the counts started: when the device was opened, or its pin was created.
func (d *Device) Since() time.Time { return d.since }

// Info implements nic.Port.
func (d *Device) Info() nic.Info { return d.info }

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

// TakeStamping returns the configuration that the card's timestamps had before Open changed them, nil if it did not. The caller restores
// them instead of Close, which a confined process cannot do (SIOCSHWTSTAMP needs CAP_NET_ADMIN).
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
