package afxdp

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/polling"
)

const (
	ethernet = 14 // bytes of an Ethernet header
	tags     = 8  // bytes of two VLAN tags
	// received frames in use: those that arrive within a timeslice of 4 ms at half a million per second
	defaultRing = 2048
	maxRing     = 1 << 15
	maxSend     = 1024 // pending frames of Send
	fewSend     = 32   // those of a responder, which does not call it
)

// Options are the settings of this driver.
type Options struct {
	Queue   int  // the interface's first receive queue to use
	Generic bool // attach the program to the kernel's generic hook, after the driver, instead of the driver's hook
}

// Device is an open interface. It implements nic.Device.
type Device struct {
	info    nic.Info
	iface   *netif.Interface
	watch   *netif.Watch
	claims  netif.Claims
	queues  []*Queue
	sockets *ebpf.Map
	program *xdpkit.Program
	link    link.Link
	groups  int // a packet socket with multicast memberships, for announcements, too; -1 if none

	match *fastpath.Config // of a responder
	mu    sync.Mutex       // protects info.MAC once the device is open
}

// Open attaches a program to the interface o.Device in the calling thread's network namespace, and binds o.Queues
// sockets to its receive queues from own.Queue on. It returns nic.ErrNoDevice, nic.ErrDown, nic.ErrRights, nic.ErrBusy
// (the interface has an XDP program already, the queue a socket, or an address another responder) and nic.ErrFrameSize
// (the MTU is more than a UMEM chunk holds), each explained.
func Open(o nic.Options, own Options) (*Device, error) {
	d := &Device{groups: -1}
	if err := d.open(&o, own); err != nil {
		d.Close()
		return nil, fmt.Errorf("afxdp: %w", err)
	}
	return d, nil
}

func (d *Device) open(o *nic.Options, own Options) (err error) {
	frames, queues := o.RingSize, max(1, o.Queues)
	if frames == 0 {
		frames = defaultRing
	}
	if frames < batch || frames > maxRing || frames&(frames-1) != 0 {
		return fmt.Errorf("ring of %d entries: want a power of two from %d to %d", frames, batch, maxRing)
	}
	if d.iface, err = netif.Lookup(o.Device); err != nil {
		return err
	}
	i := d.iface
	mtu := o.MTU
	if mtu == 0 {
		mtu = i.MTU
	}
	if mtu < 68 || mtu > i.MTU {
		return fmt.Errorf("interface %s: MTU %d: %w: the interface has %d", i.Name, mtu, nic.ErrFrameSize, i.MTU)
	}
	size, err := frameSize(i.MTU+ethernet+tags, bufferGrain(i.Driver)) // the interface decides what arrives
	if err != nil {
		return fmt.Errorf("interface %s: MTU %d: %w", i.Name, i.MTU, err)
	}
	mac := i.MAC
	if o.MAC != [6]byte{} {
		mac = o.MAC
	}
	filter, err := newFilter(o, mac)
	if err != nil {
		return err
	}
	d.info = nic.Info{
		Driver: "afxdp", Device: o.Device, Model: i.Driver, MAC: net.HardwareAddr(mac[:]).String(), MTU: mtu,
		Queues:  queues,
		Backend: nic.Socket, PartialChecksums: i.Local(),
	}
	if o.Match == nil && queues+own.Queue < i.RxQueues {
		d.note("queues %d to %d of %d receive queues are served: what the interface puts on others goes to the kernel "+
			"(ethtool -L %s combined %d)", own.Queue, own.Queue+queues-1, i.RxQueues, i.Name, queues)
	}
	send := min(frames, maxSend)
	if o.Match != nil {
		send = min(frames, fewSend)
	}
	if o.Match != nil {
		if d.claims, err = i.Claim(o.Match.Addresses, &d.info.Notes); err != nil {
			return err
		}
	}
	if err := xdpkit.Free(i); err != nil {
		return err
	}
	for range queues {
		q, err := openQueue(frames, send, size)
		if err != nil {
			return err
		}
		d.queues = append(d.queues, q)
	}
	if err := d.attach(&filter, own.Queue+queues, own.Generic); err != nil {
		return err
	}
	if err := d.bind(own.Queue); err != nil {
		return err
	}
	if o.Match != nil {
		if d.groups, err = netif.PacketSocket(); err != nil {
			return fmt.Errorf("packet socket for multicast groups: %w", err)
		}
		if err := i.Receive(d.groups, mac, o.Match.Addresses); err != nil {
			return err
		}
	}
	following := netif.Following{}
	if o.Match != nil {
		d.match = o.Match
		following = netif.Following{DownLimit: o.DownLimit, MTU: i.MTU, OwnMAC: mac == i.MAC, Log: o.Log}
	}
	if d.watch, err = i.Watch(following); err != nil {
		return err
	}
	if n := i.RxQueues - queues - own.Queue; o.Match != nil && n > 0 {
		d.watch.Impair("queues",
			fmt.Sprintf("%d of %d receive queues are not served: requests that the interface puts on them are lost",
				i.RxQueues-queues, i.RxQueues),
			fmt.Sprintf("ethtool -L %s combined %d, or more cpu.cores, or driver xdp", i.Name, queues))
	}
	return nil
}

func (d *Device) note(format string, args ...any) {
	d.info.Notes = append(d.info.Notes, fmt.Sprintf(format, args...))
}

// bind binds the sockets and puts them into the map.
func (d *Device) bind(first int) error {
	mode := "zero-copy"
	for n, q := range d.queues {
		zeroCopy, err := q.bind(d.iface, first+n, d.info.Push == xdpkit.Driver)
		if err != nil {
			return err
		}
		if !zeroCopy {
			mode = "copy"
		} else if d.iface.BusyPolls() {
			if q.busyPoll, err = d.pollBusily(q); err != nil {
				return err
			}
		}
		if err := d.sockets.Put(uint32(first+n), uint32(q.fd)); err != nil {
			return fmt.Errorf("interface %s: put the socket of queue %d into the map: %w", d.iface.Name, first+n, err)
		}
	}
	if d.info.Push == xdpkit.Driver {
		d.info.Push += " " + mode
	}
	return nil
}

// pollBusily makes the kernel's receive path run in recvfrom. An unprivileged process may not.
func (d *Device) pollBusily(q *Queue) (bool, error) {
	for _, s := range []struct {
		name       string
		opt, value int
	}{
		{"SO_PREFER_BUSY_POLL", unix.SO_PREFER_BUSY_POLL, 1},
		{"SO_BUSY_POLL", unix.SO_BUSY_POLL, 20}, // microseconds; AF_XDP makes one round for any value
		{"SO_BUSY_POLL_BUDGET", unix.SO_BUSY_POLL_BUDGET, 64},
	} {
		err := unix.SetsockoptInt(int(q.fd), unix.SOL_SOCKET, s.opt, s.value)
		if errors.Is(err, unix.EPERM) {
			d.note("no busy polling: %s takes CAP_NET_ADMIN", s.name)
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("interface %s: %s: %w", d.iface.Name, s.name, err)
		}
	}
	d.note("busy polling (napi_defer_hard_irqs and gro_flush_timeout are set)")
	return true, nil
}

// Impaired implements nic.Impaired.
func (d *Device) Impaired() []string { return d.watch.Impaired() }

// MACChanged implements nic.Followed.
func (d *Device) MACChanged() <-chan [6]byte { return d.watch.MACChanged() }

// FollowMAC implements nic.Followed.
func (d *Device) FollowMAC(mac [6]byte) error {
	if err := d.program.SetMAC(mac); err != nil {
		return fmt.Errorf("afxdp: %w", err)
	}
	d.mu.Lock()
	d.info.MAC = net.HardwareAddr(mac[:]).String()
	d.mu.Unlock()
	d.iface.Announce(d.groups, mac, d.match)
	d.watch.Followed(mac)
	return nil
}

// Info implements nic.Device.
func (d *Device) Info() nic.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// Link implements nic.Device.
func (d *Device) Link() (nic.Link, error) { return d.iface.Link() }

// ReadStats implements nic.Device. Extra contains the sums of XDP_STATISTICS by field name, and kicks_again, the number
// of times the kernel did not send all replies at the first kick.
func (d *Device) ReadStats(s *nic.Stats) error {
	*s = nic.Stats{}
	sum, err := d.sum()
	if err != nil {
		return fmt.Errorf("afxdp: %w", err)
	}
	var again uint64
	for _, q := range d.queues {
		s.RxFrames += q.rxFrames.Load()
		s.RxBytes += q.rxBytes.Load()
		s.TxFrames += q.txFrames.Load()
		s.TxBytes += q.txBytes.Load()
		s.TxErrors += q.txErrors.Load()
		s.TxDropped += q.txFull.Load()
		again += q.kicksAgain.Load()
	}
	s.RxDropped = sum.Rx_dropped + sum.Rx_ring_full // an empty fill ring is among the first
	s.RxErrors = sum.Rx_invalid_descs
	s.TxErrors += sum.Tx_invalid_descs
	s.Extra = map[string]uint64{
		"rx_dropped": sum.Rx_dropped, "rx_ring_full": sum.Rx_ring_full,
		"rx_fill_ring_empty_descs": sum.Rx_fill_ring_empty_descs,
		"rx_invalid_descs":         sum.Rx_invalid_descs, "tx_invalid_descs": sum.Tx_invalid_descs,
		"tx_ring_empty_descs": sum.Tx_ring_empty_descs, "kicks_again": again,
	}
	return nil
}

// counts are the six fields of struct xdp_statistics.
func counts(s *unix.XDPStatistics) *[6]uint64 { return (*[6]uint64)(unsafe.Pointer(s)) }

// sum adds up XDP_STATISTICS of all queues, since their sockets were opened.
func (d *Device) sum() (sum unix.XDPStatistics, err error) {
	for n, q := range d.queues {
		var k unix.XDPStatistics
		size := uint32(unsafe.Sizeof(k))
		if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, q.fd, unix.SOL_XDP, unix.XDP_STATISTICS,
			uintptr(unsafe.Pointer(&k)), uintptr(unsafe.Pointer(&size)), 0); e != 0 {
			return sum, fmt.Errorf("interface %s: XDP_STATISTICS of queue %d: %w", d.iface.Name, n, e)
		}
		for i, v := range counts(&k) {
			counts(&sum)[i] += v
		}
	}
	return sum, nil
}

// Send implements nic.Device.
func (d *Device) Send(frame []byte) error {
	q := d.queues[0]
	if err := nic.CheckFrame(frame, d.info.MTU); err != nil {
		return fmt.Errorf("afxdp: interface %s: send: %w", d.iface.Name, err)
	}
	if q.unsent {
		q.kick()
	}
	if len(q.spare) == 0 {
		q.reclaim()
	}
	if len(q.spare) == 0 {
		if !d.watch.OK() {
			return fmt.Errorf("afxdp: %w", d.watch.Err())
		}
		q.txFull.Add(1)
		return nic.ErrFull
	}
	addr := q.spare[len(q.spare)-1]
	q.spare = q.spare[:len(q.spare)-1]
	copy(q.umem[addr:], frame)
	*q.tx.desc(q.txHead) = unix.XDPDesc{Addr: addr, Len: uint32(len(frame))}
	q.txHead++
	q.post()
	q.txFrames.Add(1)
	q.txBytes.Add(uint64(len(frame)))
	return nil
}

// Recv implements nic.Device.
func (d *Device) Recv(buf []byte) (n int, at int64, err error) {
	q := d.queues[0]
	if atomic.LoadUint32(q.rx.producer) == q.rxTail {
		q.idle()
		if !d.watch.OK() {
			return 0, 0, fmt.Errorf("afxdp: %w", d.watch.Err())
		}
		return 0, 0, nil
	}
	at = int64(polling.TSC())
	desc := *q.rx.desc(q.rxTail)
	q.rxTail++
	q.rxFrames.Add(1)
	q.rxBytes.Add(uint64(desc.Len))
	if int(desc.Len) > len(buf) {
		err = fmt.Errorf("afxdp: interface %s: received %d bytes into a buffer of %d: %w", d.iface.Name, desc.Len,
			len(buf),
			nic.ErrFrameSize)
	} else {
		n = copy(buf, q.umem[desc.Addr:][:desc.Len])
	}
	*q.fill.address(q.fillHead) = desc.Addr
	q.fillHead++
	mmio.Store32(q.rx.consumer, q.rxTail)
	q.reclaim()
	return n, at, err
}

// Close implements nic.Device. The program is detached first, so that no frame is redirected to a socket that is
// closing.
func (d *Device) Close() error {
	var err error
	if d.watch != nil {
		d.watch.Close()
	}
	if d.link != nil {
		err = d.link.Close()
	}
	if d.program != nil {
		d.program.Close()
	}
	if d.sockets != nil {
		d.sockets.Close()
	}
	for _, q := range d.queues {
		q.close()
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
