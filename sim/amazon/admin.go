package amazon

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Command is one admin command: its name and its fields.
type Command struct {
	Name string
	*parts.Layout
}

func (c Command) aboutFeature() bool { return strings.HasSuffix(c.Name, "_FEATURE") }

// Lay declares a command of size bytes. The head, its first dword, is checked with the entry. Bytes after the end of a
// short command are not checked: drivers leave those of an older command there.
func Lay(name string, size int, text string) Command {
	return Command{name, parts.Lay(le, size, "00.31:0 head "+text)}
}

// Without declares fields that a device acts on and the model does not: parts.Layout.Without.
func (c Command) Without(names ...string) Command {
	c.Layout.Without(names...)
	return c
}

// Message is an entry of the admin queue, {ena,efa}_admin_aq_entry.
type Message [Entry]byte

func (b *Message) id() uint16 { return le.Uint16(b[0:]) }

// Opcode returns the opcode of the command.
func (b *Message) Opcode() uint8 { return b[2] }

// adminQueue is the state of AQ and ACQ.
type adminQueue struct {
	tail, head uint16 // AQ: doorbell, entries fetched
	done       uint16 // ACQ: completions written
	late       []adminReply
}

type adminReply struct {
	due   time.Duration
	entry [Entry]byte
}

// caps decodes ACQ_CAPS or AENQ_CAPS.
func (c *Controller) caps(r Reg) (depth uint16, size, vector int) {
	v := c.val[r/4]
	if c.card.Vectors == 0 {
		return uint16(v), int(v >> 16), 0
	}
	return uint16(v), int(v >> 16 & 0xff), int(v >> 24)
}

// depths compares the depths of both queues with their registers.
func (c *Controller) depths() (depth uint16, err error) {
	aq := c.val[RegAQCAPS/4]
	acqDepth, acqSize, vector := c.caps(RegACQCAPS)
	switch n := aq & 0xffff; {
	case aq>>16 != Entry || acqSize != Entry:
		return 0, fmt.Errorf("AQ_CAPS %#x, ACQ_CAPS %#x: entries have %d bytes", aq, c.val[RegACQCAPS/4], Entry)
	case n == 0 || n&(n-1) != 0 || uint32(acqDepth) < n:
		return 0, fmt.Errorf("AQ_CAPS %#x, ACQ_CAPS %#x: depths must be a power of two, ACQ as deep as AQ", aq,
			c.val[RegACQCAPS/4])
	case vector > 0 && vector >= c.card.Vectors:
		return 0, fmt.Errorf("ACQ_CAPS %#x: MSI-X vector %d, there are %d", c.val[RegACQCAPS/4], vector, c.card.Vectors)
	case c.pair(RegAQBASELO) == 0 || c.pair(RegACQBASELO) == 0:
		return 0, fmt.Errorf("admin command before AQ_BASE %#x and ACQ_BASE %#x are set", c.pair(RegAQBASELO),
			c.pair(RegACQBASELO))
	}
	if err := c.CheckWidth("AQ_BASE", c.pair(RegAQBASELO)); err != nil {
		return 0, err
	}
	return uint16(aq), c.CheckWidth("ACQ_BASE", c.pair(RegACQBASELO))
}

func (c *Controller) adminDoorbell(v uint32) error {
	depth, err := c.depths()
	if err != nil {
		return err
	}
	if n := uint16(v) - c.aq.head; v > 0xffff || n > depth || n == 0 {
		return fmt.Errorf("%s = %#x: the tail was %d, the queue has %d entries", c.card.Registers.Name(RegAQDB), v,
			c.aq.tail, depth)
	}
	c.aq.tail = uint16(v)
	return nil
}

func (c *Controller) stepAdmin() (busy bool) {
	q := &c.aq
	if c.Knobs.stall {
		return false
	}
	for q.tail != q.head {
		busy = true
		depth := uint16(c.val[RegAQCAPS/4])
		var b Message
		if c.Host.DMARead(c.pair(RegAQBASELO)+Entry*uint64(q.head%depth), b[:]) != nil {
			q.head = q.tail
			break
		}
		if p := b[3] & 1; p != Phase(q.head, depth) {
			c.Host.Errorf("admin command %d (opcode %d): phase %d, expected %d", q.head, b.Opcode(), p,
				Phase(q.head, depth))
		}
		q.head++
		c.AdminCommands++
		if f := c.Knobs.ignore; f != nil && f(c.name(&b)) {
			continue
		}
		r := adminReply{due: c.Host.Now() + c.card.AdminDelay, entry: c.execute(&b)}
		le.PutUint16(r.entry[6:], q.head)
		q.late = append(q.late, r)
	}
	if c.card.AdminOutOfOrder && busy && len(q.late) > 1 {
		c.Rand.Shuffle(len(q.late), func(i, j int) {
			q.late[i].entry, q.late[j].entry = q.late[j].entry,
				q.late[i].entry
		})
	}
	for len(q.late) > 0 && q.late[0].due <= c.Host.Now() {
		busy = true
		r := q.late[0]
		q.late = q.late[1:]
		depth, _, vector := c.caps(RegACQCAPS)
		r.entry[3] = Phase(q.done, depth)
		if f := c.Knobs.tamperAdmin; f != nil {
			c.Knobs.tamperAdmin = nil
			f(r.entry[:])
		}
		c.WriteEntry(c.pair(RegACQBASELO)+Entry*uint64(q.done%depth), r.entry[:])
		q.done++
		c.interrupt(vector)
	}
	return busy
}

// execute runs a command and returns its completion.
func (c *Controller) execute(b *Message) (r [Entry]byte) {
	le.PutUint16(r[0:], b.id()&0xfff)
	if b.id()&0xf000 != 0 || b[3]&^7 != 0 {
		c.Host.Warnf("admin command %#04x, flags %#02x: reserved bits set", b.id(), b[3])
	}
	k, known := c.command(b)
	msg, name := parts.Msg{B: b[:], Layout: k.Layout}, c.name(b)
	if off, bits, found := msg.Stray(b[:]); found {
		c.Host.Warnf("admin command %d, %s: reserved bits %08x set in the dword at %02xh", b.id(), name, bits, off)
	}
	msg.WarnIdle(c.Host, name)
	status, err := byte(0), error(nil)
	feature := uint32(0)
	if k.aboutFeature() {
		feature = uint32(b[17])
	}
	rec := c.card.Recorded.Next(uint32(b.Opcode()), 0, feature)
	if rec != nil {
		status = rec.Status
	}
	if f := c.Knobs.fail; f != nil {
		status = cmp.Or(f(name), status)
	}
	switch {
	case status != statusOK:
	case known:
		status, err = c.card.Execute(b, msg, r[8:])
		if rec != nil && status == statusOK && k.Name == "GET_FEATURE" && len(rec.Out) == len(r) {
			copy(r[8:], rec.Out[8:])
		}
	default:
		status, err = statusBadOpcode, errors.New("no such opcode")
	}
	if err != nil {
		c.Host.Errorf("admin command %d, %s (opcode %d): %v", b.id(), name, b.Opcode(), err)
	}
	if status != statusOK {
		clear(r[8:])
	}
	r[2] = status
	c.Host.Command(name, status, func(yield func(string, uint64) bool) {
		msg.Each(func(name string, v uint64) bool { return name == "head" || yield(name, v) })
	})
	return r
}

func (c *Controller) command(b *Message) (k Command, known bool) {
	if k, known = c.card.Command(b.Opcode()); !known {
		k = Lay(fmt.Sprintf("opcode %d", b.Opcode()), 4, "")
	}
	return k, known
}

// name returns the name of the command, with its feature if it has one.
func (c *Controller) name(b *Message) string {
	k, _ := c.command(b)
	if !k.aboutFeature() {
		return k.Name
	}
	if f, known := c.card.Features[b[17]]; known {
		return k.Name + " " + f
	}
	return fmt.Sprintf("%s %d", k.Name, b[17])
}
