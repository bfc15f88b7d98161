package afpacket

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// bequest describes the files of a nic.Inheritance: the sockets of the queues, then those that claim the addresses.
type bequest struct {
	Layout    int // of this struct and of the position
	Interface int
	SlotSize  uintptr // bytes
	RingSize  int     // bytes
	Queues    int
	Claims    []netip.Addr
}

const layout = 1

// Bequest implements nic.Heritable.
func (d *Device) Bequest() (nic.Inheritance, error) {
	b := bequest{Layout: layout, Interface: d.iface.Index, SlotSize: d.queues[0].ring.size, RingSize: len(d.queues[0].ring.mem), Queues: len(d.queues),
		Claims: d.claims.Addresses()}
	state, err := json.Marshal(b)
	in := nic.Inheritance{State: state}
	for _, q := range d.queues {
		in.Files = append(in.Files, int(q.fd))
	}
	in.Files = append(in.Files, d.claims.Files()...)
	return in, err
}

// inherit takes the sockets of another process, if they fit: the kernel cannot change a ring that is mapped.
func (d *Device) inherit(in *nic.Inheritance, slots, frame int) (claims netif.Claims, err error) {
	files := netif.Files(in.Files)
	defer files.Close()
	var b bequest
	if err := json.Unmarshal(in.State, &b); err != nil {
		return nil, fmt.Errorf("inherited sockets: %w", err)
	}
	size := slotSize(frame)
	switch {
	case b.Layout != layout, b.Queues+len(b.Claims) != len(files):
		return nil, fmt.Errorf("inherited sockets: another version's (layout %d, %d files): stop the other responder first", b.Layout, len(files))
	case b.Interface != d.iface.Index:
		return nil, fmt.Errorf("inherited sockets are of interface number %d, and %s is %d", b.Interface, d.iface.Name, d.iface.Index)
	case b.Queues != d.info.Queues || b.SlotSize != uintptr(size) || b.RingSize != slots*size:
		return nil, fmt.Errorf("inherited sockets: %d queues of %d slots of %d bytes, and these settings need %d of %d of %d: stop the other responder first",
			b.Queues, b.RingSize/int(b.SlotSize), b.SlotSize, d.info.Queues, slots, size)
	}
	for range b.Queues {
		q := &Queue{fd: uintptr(files.Next())}
		d.queues = append(d.queues, q)
		if q.ring, err = mapRing(int(q.fd), b.RingSize, b.SlotSize); err != nil {
			return nil, err
		}
		if q.long, err = openLong(d.iface, frame); err != nil {
			return nil, err
		}
	}
	return files.Claims(b.Claims), nil
}

// Position implements nic.Heritable.
func (d *Device) Position() ([]byte, error) {
	var heads []uintptr
	for _, q := range d.queues {
		heads = append(heads, q.head)
	}
	return json.Marshal(heads)
}

// Continue implements nic.Heritable.
func (d *Device) Continue(position []byte) error {
	var heads []uintptr
	if err := json.Unmarshal(position, &heads); err != nil {
		return fmt.Errorf("afpacket: position: %w", err)
	}
	if len(heads) != len(d.queues) {
		return fmt.Errorf("afpacket: the position of %d queues, want %d", len(heads), len(d.queues))
	}
	for i, q := range d.queues {
		if heads[i] >= q.ring.end || heads[i]%q.ring.size != 0 {
			return fmt.Errorf("afpacket: queue %d: position %d is no slot of %d bytes in %d", i, heads[i], q.ring.size, q.ring.end)
		}
		q.head = heads[i]
	}
	return nil
}

// ClaimFiles returns the listening sockets that claim the addresses.
func (d *Device) ClaimFiles() []int { return d.claims.Files() }
