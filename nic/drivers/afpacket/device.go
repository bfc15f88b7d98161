package afpacket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/polling"
)

const (
	ethernet    = 14      // bytes of an Ethernet header
	tags        = 8       // bytes of two VLAN tags
	defaultRing = 2048    // slots: frames that arrive within a timeslice of 4 ms at half a million per second
	maxRing     = 1 << 16 // slots
)

// Device is an open interface. It implements nic.Device and nic.Timestamper.
type Device struct {
	info   nic.Info
	iface  *netif.Interface
	watch  *netif.Watch
	queues []*Queue
	claims netif.Claims
	match  *fastpath.Config // of a responder
	stamps stamps

	mu      sync.Mutex
	packets uint64 // sums of PACKET_STATISTICS, which reading resets
	drops   uint64
}

// Open opens o.Queues sockets on the interface o.Device in the calling thread's network namespace. It returns
// nic.ErrNoDevice, nic.ErrDown, nic.ErrRights (CAP_NET_RAW is missing) and nic.ErrBusy (the kernel owns an address that
// o.Match would answer for, or another Device answers for it), each explained.
func Open(o nic.Options) (*Device, error) {
	d, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("afpacket: %w", err)
	}
	return d, nil
}

func open(o nic.Options) (_ *Device, err error) {
	slots, queues := o.RingSize, max(1, o.Queues)
	if slots == 0 {
		slots = defaultRing
	}
	if slots < batch || slots > maxRing || slots&(slots-1) != 0 {
		return nil, fmt.Errorf("ring of %d slots: want a power of two from %d to %d", slots, batch, maxRing)
	}
	d := &Device{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.iface, err = netif.Lookup(o.Device); err != nil {
		return nil, err
	}
	mtu := o.MTU
	if mtu == 0 {
		mtu = d.iface.MTU
	}
	if mtu < 68 || mtu > d.iface.MTU {
		return nil, fmt.Errorf("interface %s: MTU %d: %w: the interface has %d", o.Device, mtu, nic.ErrFrameSize,
			d.iface.MTU)
	}
	mac := d.iface.MAC
	if o.MAC != [6]byte{} {
		mac = o.MAC
	}
	d.info = nic.Info{
		Driver: "afpacket", Device: o.Device, Model: d.iface.Driver, MAC: net.HardwareAddr(mac[:]).String(), MTU: mtu,
		Queues: queues, Backend: nic.Socket, Push: "sendto, qdisc bypassed", PartialChecksums: d.iface.Local(),
	}
	bypass := 1
	if o.Qdisc {
		bypass, d.info.Push = 0, "sendto, through the qdisc"
	}
	if err := d.mayAnswer(o.Match); err != nil {
		return nil, err
	}
	var program []unix.SockFilter
	if o.Filter != nil {
		program = instructions(o.Filter)
	} else if o.Match != nil || o.Steer != nil {
		program = dropTCP
	}
	for range queues {
		q, err := openQueue(d.iface, slots, mtu+ethernet+tags, program, bypass)
		if err != nil {
			return nil, err
		}
		d.queues = append(d.queues, q)
		if o.Match != nil && len(d.queues) == 1 {
			err = d.iface.Receive(int(q.fd), mac, o.Match.Addresses)
		} else if len(d.queues) == 1 {
			err = d.iface.Receive(int(q.fd), mac, nil)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := d.fanout(); err != nil {
		return nil, err
	}
	if d.watch, err = d.iface.Watch(d.following(&o, mac)); err != nil {
		return nil, err
	}
	return d, nil
}

// mayAnswer refuses addresses for which the kernel answers too, and notes what else the kernel does with its own copy
// of the requests.
func (d *Device) mayAnswer(c *fastpath.Config) error {
	if c == nil {
		return nil
	}
	for _, p := range c.Addresses {
		owner, err := d.iface.Owner(p.Addr())
		if err != nil {
			return err
		}
		if owner != "" {
			return fmt.Errorf("address %v: %w: the kernel owns it on %s, and on AF_PACKET it gets a copy of every frame, so "+
				"that both would answer; use an address that no interface of this host has, or driver afxdp", p.Addr(),
				nic.ErrBusy, owner)
		}
	}
	var err error
	if d.claims, err = d.iface.Claim(c.Addresses, &d.info.Notes); err != nil {
		return err
	}
	for _, f := range []string{"ipv4", "ipv6"} {
		b, err := os.ReadFile("/proc/sys/net/" + f + "/conf/" + d.iface.Name + "/forwarding")
		if err == nil && strings.TrimSpace(string(b)) != "0" {
			d.info.Notes = append(d.info.Notes, f+" forwarding is on for "+d.iface.Name+
				": the kernel may forward its copy of a request, or send a redirect")
		}
	}
	return nil
}

func openQueue(i *netif.Interface, slots, frame int, program []unix.SockFilter, bypass int) (*Queue, error) {
	fd, err := netif.PacketSocket()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("packet socket: %w: it takes CAP_NET_RAW (run as root, or setcap cap_net_raw+ep): %w",
			nic.ErrRights, err)
	} else if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	q := &Queue{fd: uintptr(fd)}
	for _, s := range []struct {
		name       string
		opt, value int
	}{
		{"PACKET_VERSION", unix.PACKET_VERSION, unix.TPACKET_V2},
		{"PACKET_RESERVE", unix.PACKET_RESERVE, reserve},
		{"PACKET_QDISC_BYPASS", unix.PACKET_QDISC_BYPASS, bypass},
		{"PACKET_IGNORE_OUTGOING", unix.PACKET_IGNORE_OUTGOING, 1},
	} {
		if err = unix.SetsockoptInt(fd, unix.SOL_PACKET, s.opt, s.value); err != nil {
			q.close()
			return nil, fmt.Errorf("interface %s: %s: %w", i.Name, s.name, err)
		}
	}
	if len(program) > 0 { // before the first frame
		p := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
		if err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &p); err != nil {
			q.close()
			return nil, fmt.Errorf("interface %s: SO_ATTACH_FILTER: %w", i.Name, err)
		}
	}
	if q.ring, err = newRing(fd, slots, frame); err == nil {
		all := unix.SockaddrLinklayer{Protocol: netif.NetworkOrder(unix.ETH_P_ALL), Ifindex: i.Index}
		if err = unix.Bind(fd, &all); err != nil {
			err = fmt.Errorf("bind: %w", err)
		}
	}
	if err == nil {
		q.long, err = openLong(i, frame, bypass)
	}
	if err != nil {
		q.close()
		return nil, fmt.Errorf("interface %s: %w", i.Name, err)
	}
	return q, nil
}

// fanout joins several queues into one group, which receives each frame once.
func (d *Device) fanout() error {
	if len(d.queues) == 1 {
		return nil
	}
	const kind = unix.PACKET_FANOUT_HASH | unix.PACKET_FANOUT_FLAG_IGNORE_OUTGOING
	group := 0
	for n, q := range d.queues {
		arg := kind<<16 | group
		if n == 0 {
			arg |= unix.PACKET_FANOUT_FLAG_UNIQUEID << 16
		}
		err := unix.SetsockoptInt(int(q.fd), unix.SOL_PACKET, unix.PACKET_FANOUT, arg)
		if err == nil && n == 0 {
			group, err = unix.GetsockoptInt(int(q.fd), unix.SOL_PACKET, unix.PACKET_FANOUT)
			group &= 0xffff
		}
		if err != nil {
			return fmt.Errorf("interface %s: PACKET_FANOUT of queue %d: %w", d.iface.Name, n, err)
		}
	}
	// Until it joined, each socket got every frame.
	for _, q := range d.queues {
		for h := q.ring.slot(q.head); ; h = q.ring.slot(q.head) {
			if _, ok := h.full(); !ok {
				break
			}
			h.free()
			q.head = q.ring.next(q.head)
		}
	}
	return nil
}

// following returns what a responder on the socket needs to know of the interface; a bench needs to know that it is up.
func (d *Device) following(o *nic.Options, mac [6]byte) (f netif.Following) {
	if o.Match != nil {
		d.match = o.Match
		f = netif.Following{DownLimit: o.DownLimit, MTU: d.iface.MTU, OwnMAC: mac == d.iface.MAC,
			Addresses: o.Match.Addresses, Log: o.Log}
	}
	return f
}

// Info implements nic.Device.
func (d *Device) Info() nic.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// Impaired implements nic.Followed.
func (d *Device) Impaired() []string { return d.watch.Impaired() }

// MACChanged implements nic.Followed.
func (d *Device) MACChanged() <-chan [6]byte { return d.watch.MACChanged() }

// FollowMAC implements nic.Followed.
func (d *Device) FollowMAC(mac [6]byte) error {
	d.mu.Lock()
	d.info.MAC = net.HardwareAddr(mac[:]).String()
	d.mu.Unlock()
	d.iface.Announce(int(d.queues[0].fd), mac, d.match)
	d.watch.Followed(mac)
	return nil
}

// Link implements nic.Device.
func (d *Device) Link() (nic.Link, error) { return d.iface.Link() }

// ReadStats implements nic.Device. Extra holds tp_packets and tp_drops (packet(7), PACKET_STATISTICS) and the frames
// dropped because they were longer than a slot.
func (d *Device) ReadStats(s *nic.Stats) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var truncated uint64
	*s = nic.Stats{}
	for n, q := range d.queues {
		k, err := unix.GetsockoptTpacketStats(int(q.fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			return fmt.Errorf("afpacket: interface %s: PACKET_STATISTICS of queue %d: %w", d.iface.Name, n, err)
		}
		d.packets += uint64(k.Packets)
		d.drops += uint64(k.Drops)
		s.RxFrames += q.rxFrames.Load()
		s.RxBytes += q.rxBytes.Load()
		s.TxFrames += q.txFrames.Load()
		s.TxBytes += q.txBytes.Load()
		s.TxDropped += q.txFull.Load()
		s.TxErrors += q.txErrors.Load()
		truncated += q.rxTruncated.Load()
	}
	s.RxDropped, s.RxErrors = d.drops, truncated
	s.Extra = map[string]uint64{"tp_packets": d.packets, "tp_drops": d.drops, "rx_truncated": truncated}
	return nil
}

// Send implements nic.Device.
func (d *Device) Send(frame []byte) error {
	q := d.queues[0]
	if err := nic.CheckFrame(frame, d.info.MTU); err != nil {
		return fmt.Errorf("afpacket: interface %s: send: %w", d.iface.Name, err)
	}
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, q.fd, uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)),
		unix.MSG_DONTWAIT, 0, 0)
	if e == unix.EMSGSIZE {
		e = q.long.send(unsafe.Pointer(&frame[0]), len(frame))
	}
	if e != 0 {
		q.failed(e)
		return d.sendError(e)
	}
	q.txFrames.Add(1)
	q.txBytes.Add(uint64(len(frame)))
	return nil
}

func (d *Device) sendError(e unix.Errno) error {
	err := error(e)
	switch e {
	case unix.EAGAIN, unix.ENOBUFS:
		return nic.ErrFull // a sender at full rate sees this often
	case unix.EMSGSIZE:
		err = nic.ErrFrameSize
	case unix.ENETDOWN:
		err = nic.ErrDown
	case unix.ENXIO, unix.ENODEV:
		err = nic.ErrGone
	}
	return fmt.Errorf("afpacket: interface %s: sendto: %w", d.iface.Name, err)
}

// Recv implements nic.Device. A VLAN tag that the kernel took out is back in its place, and a UDP checksum that the
// sender left to the device is complete.
func (d *Device) Recv(buf []byte) (n int, at int64, err error) {
	q := d.queues[0]
	for {
		h := q.ring.slot(q.head)
		status, ok := h.full()
		if !ok {
			if !d.watch.OK() {
				return 0, 0, fmt.Errorf("afpacket: %w", d.watch.Err())
			}
			return 0, 0, nil
		}
		at = int64(polling.TSC())
		frame, size := h.frame(), int(h.snaplen)
		q.rxFrames.Add(1)
		q.rxBytes.Add(uint64(h.len))
		if h.len != h.snaplen {
			q.rxTruncated.Add(1)
			size = 0
		} else if status&statusVLAN != 0 {
			frame = h.retag(status)
			size += tagSize
		}
		if status&statusPartial != 0 {
			complete(unsafe.Slice((*byte)(frame), size))
		}
		if size > len(buf) {
			err = fmt.Errorf("afpacket: interface %s: received %d bytes into a buffer of %d: %w", d.iface.Name, size,
				len(buf), nic.ErrFrameSize)
		} else {
			n = copy(buf, unsafe.Slice((*byte)(frame), size))
		}
		d.stamps.received(h, status)
		h.free()
		q.head = q.ring.next(q.head)
		if n > 0 || err != nil {
			return n, at, err
		}
	}
}

// Close implements nic.Device.
func (d *Device) Close() error {
	if d.watch != nil {
		d.watch.Close()
	}
	err := d.stamps.close(d)
	for _, q := range d.queues {
		q.close()
	}
	d.claims.Close()
	if d.iface != nil {
		d.iface.Close()
	}
	return err
}

func (q *Queue) close() {
	q.long.close()
	if q.ring.mem != nil {
		unix.Munmap(q.ring.mem)
	}
	unix.Close(int(q.fd))
}
