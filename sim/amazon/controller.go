// Package amazon models the management interface that Amazon's ENA and EFA share: the registers below 68h, the reset
// protocol, register reads by DMA, the admin queue and the event queue. A model embeds Controller and adds the card's
// own registers, commands and queues.
package amazon

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/parts"
)

var le = binary.LittleEndian

// Card describes what one card adds to the controller, and the faults that a test injects.
type Card struct {
	Registers *parts.Table[Reg]
	Command   func(opcode uint8) (c Command, known bool)
	Features  map[uint8]string // names of the features of GET_FEATURE and SET_FEATURE

	Version, Controller uint32
	Width               int    // DMA address bits
	AdminTimeout        uint32 // CAPS, in 100 ms; 0 leaves it to the driver
	Vectors             int    // MSI-X vectors that ACQ_CAPS and AENQ_CAPS can name; 0 if they name none
	ExtendedReasons     bool   // DEV_CTL has eight bits of reset reason
	EventsFromDepth     bool   // the event doorbell counts from the queue's depth
	NoReadByDMA         bool

	NotReady        bool          // DEV_STS.READY stays clear
	AdminDelay      time.Duration // from an admin command to its completion
	AdminOutOfOrder bool
	Recorded        parts.Answers // answers of a real device; nil for those of the model

	Clear func() // any reset
	// executes a known command and writes its response after the head
	Execute   func(b *Message, in parts.Msg, r []byte) (status byte, err error)
	Write     func(r Reg, v uint32) (own bool, err error) // own reports whether r is one of the card's own registers
	InReset   func(r Reg) (allowed, lost bool)            // a write before the reset protocol has ended
	Enabled   func()                                      // the driver enabled the event queue; may be nil
	KeepAlive func() Event
}

// Controller is the management interface of one adapter. Attach the host first. Knobs may be set from any goroutine at
// any time; all other methods are called with the lock held.
type Controller struct {
	sync.Mutex
	Host  sim.Host
	Rand  *rand.Rand // decides the order of completions
	Knobs Knobs

	Groups                uint32 // enabled event groups, as bits
	AdminCommands, Events uint64

	card    Card
	val     [BARSize / 4]uint32
	reasons []int
	reset   struct {
		wanted  bool
		pending int // register accesses or steps until DEV_STS follows DEV_CTL
	}
	aq   adminQueue
	aenq eventQueue
}

// Init initialises c as a controller of this card.
func (c *Controller) Init(card Card, r *rand.Rand) { c.card, c.Rand = card, r }

// Attach implements sim.Model.
func (c *Controller) Attach(h sim.Host) { c.Host = h }

// Reset is power-on or a function-level reset.
func (c *Controller) Reset() {
	c.Lock()
	defer c.Unlock()
	c.clear()
	c.reset.wanted, c.reset.pending, c.aenq.gone = false, 0, false
}

// clear resets everything except for the reset protocol itself.
func (c *Controller) clear() {
	c.card.Registers.Reset(c.val[:])
	c.aq, c.aenq, c.Groups = adminQueue{}, eventQueue{gone: c.aenq.enabled || c.aenq.gone}, 0
	c.Knobs.fatal = false
	c.card.Clear()
}

// Resetting reports whether the reset protocol is under way.
func (c *Controller) Resetting() bool {
	return c.reset.wanted || c.val[RegDEVSTS/4]&StsResetProgress != 0
}

// ReadRegister is a read by MMIO or by DMA.
func (c *Controller) ReadRegister(r Reg) (uint32, error) {
	c.settleReset()
	if _, err := c.card.Registers.Read(r); err != nil {
		return all, err
	}
	switch r {
	case RegVERSION:
		return c.card.Version, nil
	case RegCTRLVERSION:
		return c.card.Controller, nil
	case RegCAPS:
		return capsContiguous | 10<<capsResetShift | uint32(c.card.Width)<<capsWidthShift |
			c.card.AdminTimeout<<capsAdminTOShift, nil
	case RegACQTAIL:
		return uint32(c.aq.done), nil
	case RegAENQTAIL:
		return uint32(c.aenq.tail), nil
	case RegDEVSTS:
		v := c.val[RegDEVSTS/4]
		if !c.card.NotReady && !c.reset.wanted {
			v |= StsReady // ready again after the reset, although DEV_CTL still requests one
		}
		if c.Knobs.fatal {
			v |= StsFatal
		}
		return v, nil
	}
	return c.val[r/4], nil
}

// WriteRegister is a write by MMIO.
func (c *Controller) WriteRegister(r Reg, v uint32) error {
	c.settleReset()
	if r == RegAENQDB && (c.Resetting() || c.aenq.gone && c.val[RegAENQCAPS/4] == 0) {
		return nil // Linux's interrupt handler may acknowledge events from before the reset
	}
	if c.Resetting() && r != RegDEVCTL && r != RegREADREQ && r != RegRESPLO && r != RegRESPHI {
		switch allowed, lost := c.card.InReset(r); {
		case lost:
			return nil
		case !allowed:
			return fmt.Errorf("write to %v before DEV_STS.RESET_IN_PROGRESS was seen to clear", c.label(r))
		}
	}
	old := c.val[r/4]
	v, _, err := c.card.Registers.Write(c.Host, r, v, old, c.card.Registers.Bits(r), old)
	if err != nil {
		return err
	}
	if own, err := c.card.Write(r, v); own {
		return err
	}
	switch r {
	case RegAQDB:
		return c.adminDoorbell(v)
	case RegAENQDB:
		return c.eventDoorbell(v)
	case RegDEVCTL:
		return c.writeCTL(v)
	case RegREADREQ:
		return c.readByDMA(v)
	case RegAQBASELO, RegAQBASEHI, RegAQCAPS, RegACQBASELO, RegACQBASEHI, RegACQCAPS:
		if c.aq.tail != 0 && v == 0 && (r == RegAQCAPS || r == RegACQCAPS) { // iPXE does this on shutdown
			c.Host.Warnf("write of 0 to %v after the first admin command: a reset ends the queues", c.label(r))
			c.aq.tail, c.aq.late = c.aq.head, nil
		} else if c.aq.tail != 0 {
			return fmt.Errorf("write of %#x to %v after the first admin command: a reset comes first", v, c.label(r))
		}
	case RegAENQBASELO, RegAENQBASEHI, RegAENQCAPS:
		if c.aenq.enabled {
			return fmt.Errorf("write of %#x to %v after the first AENQ doorbell: a reset comes first", v, c.label(r))
		}
	}
	c.val[r/4] = v
	switch {
	case r == RegRESPLO && v&7 != 0:
		return fmt.Errorf("MMIO_RESP_LO = %#x: the response has 8 bytes and is aligned to them", v)
	case r == RegRESPHI:
		return c.CheckWidth("MMIO_RESP", c.pair(RegRESPLO))
	}
	return nil
}

func (c *Controller) label(r Reg) string { return c.card.Registers.Label(r) }

// pair returns the address in a pair of registers.
func (c *Controller) pair(lo Reg) uint64 { return uint64(c.val[lo/4+1])<<32 | uint64(c.val[lo/4]) }

// CheckWidth checks an address against CAPS.DMA_ADDR_WIDTH.
func (c *Controller) CheckWidth(what string, a uint64) error {
	if a>>c.card.Width != 0 {
		return fmt.Errorf("%s address %#x has more than the %d bits of CAPS.DMA_ADDR_WIDTH", what, a, c.card.Width)
	}
	return nil
}

// writeCTL starts and ends the reset protocol.
func (c *Controller) writeCTL(v uint32) error {
	reserved, reason := uint32(ctlReserved|0xf<<ctlReasonExt), v>>CTLReason
	if c.card.ExtendedReasons {
		reserved, reason = ctlReserved, reason|v>>ctlReasonExt&0xf<<4
	}
	if v&reserved != 0 {
		return fmt.Errorf("DEV_CTL = %#x: bits %#x (AQ restart, quiescence, reserved) are not supported", v, v&reserved)
	}
	inReset := c.val[RegDEVSTS/4]&StsResetProgress != 0
	switch {
	case v&CTLReset != 0 && c.Resetting():
		return fmt.Errorf("DEV_CTL = %#x while a reset is under way", v)
	case v&CTLReset != 0:
		c.reasons = append(c.reasons, int(reason))
		if len(c.reasons) > 1000 {
			c.reasons = c.reasons[1:]
		}
		c.clear()
		c.reset.wanted, c.reset.pending = true, 2
	case inReset:
		c.reset.pending = 2
	case c.reset.wanted:
		return fmt.Errorf("DEV_CTL = %#x before DEV_STS.RESET_IN_PROGRESS was seen set", v)
	}
	c.val[RegDEVCTL/4] = v
	return nil
}

// settleReset lets DEV_STS follow DEV_CTL.
func (c *Controller) settleReset() {
	if c.reset.pending == 0 {
		return
	}
	if c.reset.pending--; c.reset.pending > 0 {
		return
	}
	c.val[RegDEVSTS/4] = stsResetFinished
	if c.reset.wanted {
		c.val[RegDEVSTS/4] = StsResetProgress
	}
	c.reset.wanted = false
}

// EndReset ends a reset that DEV_STS already shows, whatever DEV_CTL requests. It reports whether there was one.
func (c *Controller) EndReset() bool {
	if c.reset.wanted || !c.Resetting() {
		return false
	}
	c.val[RegDEVCTL/4], c.val[RegDEVSTS/4] = 0, stsResetFinished
	return true
}

// readByDMA answers MMIO_REG_READ, {ena,efa}_admin_mmio_req_read_less_resp.
func (c *Controller) readByDMA(v uint32) error {
	at := c.pair(RegRESPLO)
	switch {
	case c.card.NoReadByDMA:
		return fmt.Errorf("MMIO_REG_READ = %#x: PCI revision 1 has no read-less reads", v)
	case at == 0:
		return fmt.Errorf("MMIO_REG_READ = %#x before MMIO_RESP holds an address", v)
	case c.Knobs.mute:
		return nil
	}
	r := Reg(v >> 16)
	x, err := c.ReadRegister(r)
	var b [8]byte
	le.PutUint16(b[0:], uint16(v))
	le.PutUint16(b[2:], uint16(r))
	le.PutUint32(b[4:], x)
	c.Host.DMAWrite(at, b[:])
	if err != nil {
		return fmt.Errorf("read of %v: %w", c.label(r), err)
	}
	return nil
}

// Step advances the reset protocol and both queues. It reports whether it did any work, and whether the card is out of
// reset and running.
func (c *Controller) Step() (busy, running bool) {
	busy = c.reset.pending > 0
	c.settleReset()
	if c.Resetting() {
		return busy, false
	}
	busy = c.stepAdmin() || busy
	return c.stepEvents() || busy, true
}

// interrupt raises a management interrupt.
func (c *Controller) interrupt(vector int) {
	if c.val[RegINTRMASK/4]&1 == 0 {
		c.Host.Interrupt(vector)
	}
}

// WriteEntry writes an entry. The first 16 bytes, which mark it as valid, are written last, because a device writes the
// entry at once.
func (c *Controller) WriteEntry(at uint64, b []byte) {
	if c.Host.DMAWrite(at+16, b[16:]) == nil {
		c.Host.DMAWrite(at, b[:16])
	}
}

// Phase returns the phase bit of a running index: 1 in the first round, then alternating.
func Phase[T uint16 | uint32](i, depth T) byte { return byte(^(i / depth) & 1) }
