package amazonadmin

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// controlled is a device that follows DEV_CTL, and the text of what the driver writes.
type controlled struct {
	*device
	text       strings.Builder
	mute       bool // it answers no reads
	other      bool // it answers for another register
	stuck, low bool // a reset does not begin, or not end
}

func (c *controlled) set(reg Reg, v uint32) { binary.LittleEndian.PutUint32(c.regs[reg:], v) }

func (c *controlled) ReadBAR(off uint64, p []byte) error {
	fmt.Fprintf(&c.text, "\tread %02x by MMIO\n", off)
	return c.device.ReadBAR(off, p)
}

func (c *controlled) WriteBAR(off uint64, p []byte) error {
	fmt.Fprintf(&c.text, "\twrite %02x %x\n", off, p)
	v := binary.LittleEndian.Uint32(p)
	switch reg := Reg(off); {
	case reg == MMIO_REG_READ && c.mute:
		return nil
	case reg == MMIO_REG_READ && c.other:
		return c.device.WriteBAR(off, binary.LittleEndian.AppendUint32(nil, v^4<<16))
	case reg == DEV_CTL && v != 0 && !c.stuck:
		c.set(DEV_STS, DevStsResetInProgress)
	case reg == DEV_CTL && v == 0 && !c.low:
		c.set(DEV_STS, DevStsReady)
	}
	return c.device.WriteBAR(off, p)
}

// What a driver writes to read registers and to reset a device, and what it says of a device that does not follow.
func TestRegs(t *testing.T) {
	var b strings.Builder
	for _, x := range []struct {
		name     string
		dialect  Dialect
		revision uint8
		prepare  func(*controlled)
	}{
		{"well", ENA, 0, nil}, {"EFA", EFA, NoReadLess, nil}, {"MMIO reads", ENA, NoReadLess, nil},
		{"MMIO reads, gone", ENA, NoReadLess, func(c *controlled) { c.gone = true }},
		{"no answer", EFA, 0, func(c *controlled) { c.mute = true }},
		{"gone", ENA, 0, func(c *controlled) { c.mute, c.gone = true, true }},
		{"wrong answer", ENA, 0, func(c *controlled) { c.other = true }},
		{"old controller", ENA, 0, func(c *controlled) { c.set(CONTROLLER_VERSION, 0x07000000) }},
		{"not ready", ENA, 0, func(c *controlled) { c.set(DEV_STS, 2) }},
		{"no time for a reset", ENA, 0, func(c *controlled) { c.set(CAPS, ^uint32(CapsResetTimeoutMask<<1)) }},
		{"a reset does not begin", ENA, 0, func(c *controlled) { c.stuck = true }},
		{"a reset does not end", ENA, 0, func(c *controlled) { c.low = true }},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &controlled{device: &device{}}
			a := must.Get(dma.NewArena(d, 1<<16))(t)
			defer a.Close()
			d.set(VERSION, 0x0203)
			d.set(CONTROLLER_VERSION, 0x04050607)
			d.set(CAPS, 7<<CapsAdminTimeoutShift|3<<CapsResetTimeoutShift)
			d.set(DEV_STS, DevStsReady)
			r := must.Get(newRegs("dev", x.dialect, x.revision, mmio.Trapped(0x80, d, nil, nil), a))(t)
			if x.prepare != nil {
				x.prepare(d)
			}
			var trace cmdtrace.Ring
			r.Trace(&trace)
			v, err := r.Version()
			fmt.Fprintf(&b, "%s\n%s%v, admin timeout %v: %v\n", x.name, repeated(&d.text), v,
				AdminTimeout(binary.LittleEndian.Uint32(d.regs[CAPS:])), err)
			begun := time.Now()
			err = r.Reset(5)
			fmt.Fprintf(&b, "reset %v: %v\n%s", time.Since(begun).Round(100*time.Millisecond), err, repeated(&d.text))
		})
	}
	fmt.Fprintf(&b, "%x\n", PutAddr(0xabcd_1234_5678_9abc))
	golden.Equal(t, "testdata/regs.txt", b.String())
}

// repeated returns and clears a text, of which only the first lines are kept.
func repeated(text *strings.Builder) string {
	lines := strings.SplitAfter(text.String(), "\n")
	text.Reset()
	return strings.Join(lines[:min(len(lines), 12)], "")
}
