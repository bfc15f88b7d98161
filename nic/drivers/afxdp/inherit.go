package afxdp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

// bequest describes the files of a nic.Inheritance: the program, its link and its map of sockets, the socket and the UMEM of each
// queue, and the sockets that claim the addresses.
type bequest struct {
	Layout    int // of this struct
	Interface int
	Queue     int // the interface's first receive queue in use
	Queues    int
	Frames    int  // entries of a receive ring
	Send      int  // chunks of Send
	Size      int  // bytes of a chunk
	Tagged    bool // the program asks for the VLAN tag
	Push      string
	BusyPoll  []bool
	Claims    []netip.Addr
}

const layout = 1

// Bequest implements nic.Heritable.
func (d *Device) Bequest() (nic.Inheritance, error) {
	b := d.will
	b.Push, b.BusyPoll, b.Claims = d.info.Push, nil, d.claims.Addresses()
	l, ok := d.link.(interface{ FD() int })
	if !ok {
		return nic.Inheritance{}, errors.New("afxdp: the program has no link")
	}
	in := nic.Inheritance{Files: []int{d.program.FD(), l.FD(), d.sockets.FD()}}
	for _, q := range d.queues {
		b.BusyPoll = append(b.BusyPoll, q.busyPoll)
		in.Files = append(in.Files, int(q.fd), q.umemFD)
	}
	in.Files = append(in.Files, d.claims.Files()...)
	var err error
	in.State, err = json.Marshal(b)
	return in, err
}

// inherit takes the program and the sockets of another process, if they fit d.will, and replaces the program. Until
// Continue, Close puts the other's program back.
func (d *Device) inherit(in *nic.Inheritance, f *filter) (claims netif.Claims, err error) {
	files := netif.Files(in.Files)
	defer files.Close()
	var b bequest
	if err := json.Unmarshal(in.State, &b); err != nil {
		return nil, fmt.Errorf("inherited sockets: %w", err)
	}
	want := d.will
	switch {
	case b.Layout != layout, b.Queues < 1, 3+2*b.Queues+len(b.Claims) != len(files), len(b.BusyPoll) != b.Queues:
		return nil, fmt.Errorf("inherited sockets: another version's (layout %d, %d files): stop the other responder first", b.Layout, len(files))
	case b.Interface != want.Interface:
		return nil, fmt.Errorf("inherited sockets are of interface number %d, and %s is %d", b.Interface, d.iface.Name, want.Interface)
	case b.Queue != want.Queue || b.Queues != want.Queues || b.Frames != want.Frames || b.Send != want.Send || b.Size != want.Size:
		return nil, fmt.Errorf("inherited sockets: queues %d to %d with %d frames of %d bytes, and these settings need queues %d to %d with %d of %d: stop the other responder first",
			b.Queue, b.Queue+b.Queues-1, b.Frames, b.Size, want.Queue, want.Queue+want.Queues-1, want.Frames, want.Size)
	}
	d.will, d.info.Push = b, b.Push
	if d.before, err = ebpf.NewProgramFromFD(files.Next()); err != nil {
		return nil, fmt.Errorf("inherited program: %w", err)
	}
	l, err := link.NewFromFD(files.Next())
	if err != nil {
		return nil, fmt.Errorf("inherited program: %w", err)
	}
	d.link = l
	if d.sockets, err = ebpf.NewMapFromFD(files.Next()); err != nil {
		return nil, fmt.Errorf("inherited map of sockets: %w", err)
	}
	for _, busy := range b.BusyPoll {
		q := &Queue{fd: uintptr(files.Next()), umemFD: -1, busyPoll: busy, unsent: true}
		d.queues = append(d.queues, q)
		q.umemFD = files.Next()
		if err := q.mapUMEM((b.Frames + b.Send) * b.Size); err != nil {
			return nil, err
		}
		if err := q.mapRings(b.Frames); err != nil {
			return nil, err
		}
		q.spareFrom(b.Frames, b.Send, b.Size)
	}
	if d.since, err = d.sum(); err != nil {
		return nil, err
	}
	only := 0
	if b.Tagged {
		only = d.iface.Index
	}
	if d.program, err = f.load(new(xdpkit.Types), d.sockets, only); err == nil {
		err = d.link.Update(d.program)
	}
	if err != nil {
		return nil, d.iface.ExplainBPF("XDP program", err)
	}
	return files.Claims(b.Claims), nil
}

// Position implements nic.Heritable. The rings have all of it.
func (d *Device) Position() ([]byte, error) { return nil, nil }

// Continue implements nic.Heritable.
func (d *Device) Continue([]byte) error {
	for _, q := range d.queues {
		q.rxTail, q.doneTail = atomic.LoadUint32(q.rx.consumer), atomic.LoadUint32(q.completion.consumer)
		q.txHead, q.fillHead = atomic.LoadUint32(q.tx.producer), atomic.LoadUint32(q.fill.producer)
		q.filled = q.fillHead
	}
	d.before.Close()
	d.before = nil
	return nil
}

// ClaimFiles returns the listening sockets that claim the addresses.
func (d *Device) ClaimFiles() []int { return d.claims.Files() }
