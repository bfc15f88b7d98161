package mlx4

import (
	"fmt"
	"net/netip"

	"github.com/rebound-nic/rebound/nic/kit"
)

// Options are the settings of this driver. A zero field selects the default.
type Options struct {
	// Push selects how replies reach the card: "full" or "off". "" and "auto" select the best that the card supports,
	// which is full.
	Push string
	// MaxInline is the longest frame in bytes that is sent inline in its work queue entry; 0 for the card's maximum.
	MaxInline int
	// Port is the port of the card: 1 (also if 0) or 2. A card with two has both on one PCI function.
	Port int
	// Steering is "a0" to do without device-managed flow steering, "" for the best the firmware has.
	Steering string
	// Dedicated are addresses of the interface that only the responder uses, beside the kernel's driver: the kernel
	// sends nothing from them.
	Dedicated []netip.Addr
}

func (o Options) check() error {
	if err := kit.CheckPush(o.Push, o.MaxInline, pushFull); err != nil {
		return err
	}
	if o.Port < 0 || o.Port > 2 {
		return fmt.Errorf("port %d is none of 1 and 2", o.Port)
	}
	if o.Steering != "" && o.Steering != steeringA0 {
		return fmt.Errorf("steering %q is none of a0 and the empty string", o.Steering)
	}
	return nil
}

// Push modes.
const (
	// the frame inline, up to MaxInline bytes, through BlueFlame; for a longer frame the WQE with a pointer
	pushFull = "full"
	pushOff  = "off" // a pointer in the send queue, and a doorbell: the device fetches all
)

// choosePush sets the longest frame that is sent inline: up to half a BlueFlame register.
func (d *Device) choosePush() {
	d.inlineMax, d.pushBlocks = 0, 0
	if d.own.Push == pushOff {
		return
	}
	blocks := uint32(maxBlocks)
	if d.caps.bfHalf >= txbb {
		blocks = min(blocks, d.caps.bfHalf/txbb)
	}
	if d.caps.maxWQE >= txbb {
		blocks = min(blocks, d.caps.maxWQE/txbb)
	}
	d.pushBlocks = blocks
	most := inlineMax(blocks)
	if d.subnet != nil {
		most = inlineNext*(blocks-1) + extra
	}
	if d.inlineMax = most; d.own.MaxInline > 0 {
		d.inlineMax = min(most, uint32(d.own.MaxInline))
	}
	if d.own.MaxInline > int(most) {
		d.lacks = append(d.lacks, fmt.Sprintf("frames are pushed whole up to %d bytes, %d were asked for", most,
			d.own.MaxInline))
	}
}

// doorbell sets a queue's doorbell, and its BlueFlame register if it is used.
func (d *Device) doorbell(q *Queue) error {
	p, err := d.uars.Pointer(uint64(q.uar)*uarPage+uarSend, 4)
	if err != nil {
		return err
	}
	q.db, q.bfHalf = (*uint32)(p), d.caps.bfHalf
	q.setFlame(nil)
	switch {
	case d.own.Push == pushOff:
		return nil
	case d.flames == nil:
		d.noBlueFlame("the device has none")
		return nil
	case d.flameless:
		d.noBlueFlame(nothingSent)
		return nil
	}
	if why := d.card.Uncached(2, d.flames); why != "" {
		d.noBlueFlame(why)
		return nil
	}
	bf, err := d.flames.Pointer(uint64(d.caps.uars+q.uar)*uarPage, 2*uint64(q.bfHalf))
	if err == nil {
		q.setFlame(bf)
	}
	return err
}

func (d *Device) noBlueFlame(why string) {
	d.card.FallBack("BlueFlame", "plain doorbells, after which the device fetches each WQE", "%s", why)
}

// pushName is the mode in force.
func (d *Device) pushName() string {
	way := "doorbell"
	if d.queues[0].bf != nil {
		way = "blueflame"
	}
	if d.own.Push == pushOff {
		return way + " off"
	}
	return way + " full"
}

func (d *Device) pushNotes() []string {
	q := d.queues[0]
	if q.inlineMax == 0 {
		return []string{"work queue entries hold pointers: the device fetches entry and frame"}
	}
	what := "frames"
	if d.subnet != nil {
		what = "payloads"
	}
	return []string{fmt.Sprintf("%s up to %d bytes go whole into their work queue entry, longer ones by a pointer",
		what, q.inlineMax)}
}

// layout sets a queue's sizes.
func (d *Device) layout(q *Queue) {
	n := uint32(d.card.Options.RingSize)
	q.mask, q.txMask = n-1, n*maxBlocks-1
	q.shift, q.txShift = log2(n), log2(n*maxBlocks)
	q.txRoom = n*maxBlocks - headroom
	q.askEvery = min(32, n/8)
	q.stride = bufferStride(d.card.MaxFrame())
	q.size = q.stride - slack
	q.lkey = d.lkey
	q.number = q.txQPN << 8
	q.inlineMax = d.inlineMax
}
