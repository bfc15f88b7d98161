package mlx5

import (
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
)

// Options are the settings of this driver. A zero field selects the default.
type Options struct {
	// Push selects how replies reach the card: "full", "header" or "off"; "" and "auto" select the best supported mode,
	// full.
	Push string
	// MaxInline is the longest frame in bytes that is pushed completely; 0 for the card's maximum.
	MaxInline int
	// NoSteering sends every frame to queue 0, by one rule. It is for diagnosing why a card does not receive.
	NoSteering bool
	// Dedicated are addresses of the interface that only the responder uses, beside the kernel's driver: the kernel
	// sends nothing from them.
	Dedicated []netip.Addr
}

func (o Options) check() error {
	return kit.CheckPush(o.Push, o.MaxInline, pushFull, pushHeader)
}

// Push modes.
const (
	pushAuto   = "auto"   // full
	pushFull   = "full"   // the frame inline, up to MaxInline bytes; for longer ones the headers and a pointer
	pushHeader = "header" // the headers that the vport requires inline, and a pointer
	pushOff    = "off"    // as header, and no BlueFlame: a doorbell notifies the device, which fetches everything
)

// choosePush sets the longest frame that is sent inline: up to half a BlueFlame register.
func (d *Device) choosePush() {
	d.maxInline = 0
	switch d.own.Push {
	case "", pushAuto, pushFull:
		most := maxBlocks*wqebb - room
		if d.caps.bfHalf != 0 {
			most = min(most, int(d.caps.bfHalf)-room)
		}
		if d.caps.maxWQE != 0 {
			most = min(most, int(d.caps.maxWQE)-room)
		}
		if d.maxInline = most; d.own.MaxInline > 0 {
			d.maxInline = min(most, d.own.MaxInline)
		}
		if d.own.MaxInline > most {
			d.lacks = append(d.lacks, fmt.Sprintf("frames are pushed whole up to %d bytes, %d were asked for", most,
				d.own.MaxInline))
		}
	}
	// A frame that consists only of headers leaves nothing to point to.
	d.maxInline = max(d.maxInline, int(headerBytes[d.minInline]))
}

// doorbell sets a queue's doorbell, and its BlueFlame register if it is used.
func (d *Device) doorbell(q *Queue) error {
	p, err := q.uar.bell(8)
	if err != nil {
		return err
	}
	q.db, q.wcDoorbell, q.bf, q.bfHalf = (*uint64)(p), q.uar.window.WriteCombining(), nil, d.caps.bfHalf
	switch {
	case d.own.Push == pushOff:
		return nil
	case q.bfHalf == 0:
		d.noBlueFlame("the device has none")
		return nil
	}
	if why := d.card.Uncached(0, q.uar.window); why != "" {
		d.noBlueFlame(why)
		return nil
	}
	q.bf, err = q.uar.bell(2 * uint64(q.bfHalf))
	return err
}

func (d *Device) noBlueFlame(why string) {
	d.card.FallBack("BlueFlame", "plain doorbells, after which the device fetches each WQE", "%s", why)
}

// proof is the result of the push test of a queue.
type proof struct {
	pushed, used int // WQEs pushed, and how many of these the device read from BlueFlame
	timing       mmio.Timing
}

func (p *proof) holds() bool { return 2*p.used > p.pushed }

const (
	proofWQEs  = 16
	proofTries = 4 * proofWQEs // with those that a pause of the device spoils
	proofLimit = 2 * time.Second
	proofGive  = 3 // this many misses suffice if nothing was taken
)

// Without a completion for that long, the device did not read BlueFlame. A device that pauses needs longer than a
// twentieth of it after a doorbell, too.
var proofMiss = 20 * time.Millisecond

// provePush sends empty WQEs through each queue to determine how the device fetches them. Pushed ones request a
// completion in BlueFlame and not in the send queue, so a completion shows that the device used BlueFlame. (Linux tests
// write-combining in the same way.) The duration of the stores shows whether the window combines writes.
func (d *Device) provePush() error {
	for i, q := range d.queues {
		if err := q.prove(); err != nil {
			return d.card.Errorf("queue %d: %w", i, err)
		}
		if p := q.proof; q.bf != nil && !p.holds() {
			q.bf = nil
			why := fmt.Sprintf("of %d WQEs pushed the device took %d from there", p.pushed, p.used)
			if p.pushed == 0 {
				why = fmt.Sprintf("the device paused in each of %d attempts to see whether it takes WQEs from there",
					proofTries)
			}
			d.noBlueFlame(fmt.Sprintf("queue %d: %s", i, why))
		}
	}
	return nil
}

// prove tests with NOPs whether the device reads pushed WQEs from BlueFlame: the pushed copy requests a completion,
// the one in the ring does not. It also measures how long a push and a doorbell take.
func (q *Queue) prove() error {
	p := &q.proof
	*p = proof{}
	for tries := 0; q.bf != nil && p.pushed < proofWQEs && (p.used > 0 || p.pushed < proofGive) &&
		tries < proofTries; tries++ {
		rec, w := q.nop(false)
		*(*uint64)(unsafe.Add(w, 8)) = ceAlways
		// The WQE in the ring requests no completion, so a completion shows which of the two the device used. The push
		// writes to a ring of one block beside it.
		aside := mmio.SendRing{Base: unsafe.Add(q.scratch, wqebb), Record: q.wq.Record}
		began := time.Now()
		mmio.PushWQE(&aside, 0, rec, unsafe.Add(q.bf, q.bfOff), w, 1)
		p.timing.Block = shorter(p.timing.Block, time.Since(began))
		q.bfOff ^= q.bfHalf
		n, err := q.proven(proofMiss)
		if err != nil {
			return err
		}
		// A doorbell shows whether the device reads no BlueFlame or nothing at all. A virtual one pauses with its host.
		if n == 0 {
			began = time.Now()
			if n, err = q.ringNop(); err != nil {
				return err
			}
			if n--; n == 0 && time.Since(began) > proofMiss/20 {
				continue
			}
		}
		p.pushed++
		p.used += min(n, 1)
	}
	for range proofWQEs {
		if _, err := q.ringNop(); err != nil {
			return err
		}
	}
	q.txDone, q.txRung, q.txAsked, q.askTail = q.txTail, q.txTail, q.txTail, q.txNext
	return nil
}

// ringNop has the device fetch an empty WQE after a doorbell, and returns the number of completions up to that one's.
func (q *Queue) ringNop() (int, error) {
	rec, w := q.nop(true)
	began := time.Now()
	mmio.RingDoorbellWC(q.wq.Record, rec, q.db, *(*uint64)(w))
	q.proof.timing.Store = shorter(q.proof.timing.Store, time.Since(began))
	n, err := q.proven(proofLimit)
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: the send queue does not move: no completion within %v", nic.ErrTimeout, proofLimit)
	}
	return n, err
}

func shorter(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// nop puts an empty WQE into the send queue, with a copy of it in the scratch block, and returns the doorbell record
// for it.
func (q *Queue) nop(ask bool) (record uint32, w unsafe.Pointer) {
	var b [wqebb / 8]uint64
	b[0] = control(wqeNop, q.txTail, q.sqn, 1)
	*(*[wqebb / 8]uint64)(q.scratch) = b
	if ask {
		b[1] = ceAlways
	}
	*(*[wqebb / 8]uint64)(unsafe.Add(q.wq.Base, q.txTail&q.txMask*wqebb)) = b
	q.txTail++
	return swap(q.txTail & 0xFFFF), q.scratch
}

// proven waits for the completion of the last empty WQE, and returns the number of completions up to that one; 0 if it
// did not come within limit.
func (q *Queue) proven(limit time.Duration) (n int, err error) {
	last := uint16(q.txTail - 1)
	for end := kit.NewDeadline(limit, leastLooks); ; {
		late := end.Over()
		c := q.completion(q.txCQ, q.txNext&q.txMask)
		own := atomic.LoadUint32(&c.counterOwn)
		if (own>>cqeOwner^q.txNext>>(q.txShift&31))&1 != 0 {
			if late {
				return 0, nil
			}
			time.Sleep(10 * time.Microsecond)
			continue
		}
		if own>>cqeFormat != cqeRequest {
			q.fail(c, faultSend)
			return 0, fmt.Errorf("%w: %s", nic.ErrHardware, q.faultText())
		}
		n++
		q.txNext++
		mmio.Store32(q.txCQRec, swap(q.txNext&0xFFFFFF))
		if bits.ReverseBytes16(uint16(own)) == last {
			return n, nil
		}
	}
}

// pushName is the active mode.
func (d *Device) pushName() string {
	way := "doorbell"
	if d.queues[0].bf != nil {
		way = "blueflame"
	}
	switch d.own.Push {
	case pushOff, pushHeader:
		return way + " " + d.own.Push
	}
	return way + " full"
}

func (d *Device) pushNotes() []string {
	q := d.queues[0]
	notes := []string{fmt.Sprintf(
		"frames up to %d bytes go whole into their WQE; of longer ones %d bytes, which the vport demands (min_wqe_inline_mode %d), and a pointer",
		q.maxInline, q.headers, d.minInline)}
	p := q.proof
	if p.pushed == 0 {
		return notes
	}
	if d.card.Fn.Simulated() {
		return append(notes, fmt.Sprintf("BlueFlame proven: the model took %d of %d WQEs from the register", p.used,
			p.pushed))
	}
	combined := "too long for one bus write: the window does not combine"
	if p.timing.Combined() {
		combined = "so a block leaves as one bus write"
	}
	return append(notes, fmt.Sprintf(
		"BlueFlame proven: the device took %d of %d WQEs from the register, half of %d bytes; a block stored by %v took %v, a doorbell %v: %s",
		p.used, p.pushed, q.bfHalf, mmio.PushMethod(), p.timing.Block, p.timing.Store, combined))
}
