package sim_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// reach is a model that does the DMA that a test requests.
type reach struct {
	*toysim.Model
	host sim.Host
	do   func(sim.Host)

	read  func([]byte) error // of BAR 0 100h
	write func() error
}

func (r *reach) ReadBAR(bar int, off uint64, p []byte) error {
	if r.read != nil && bar == 0 && off == 0x100 {
		return r.read(p)
	}
	return r.Model.ReadBAR(bar, off, p)
}

func (r *reach) WriteBAR(bar int, off uint64, p []byte) error {
	if r.write != nil && bar == 0 && off == 0x100 {
		return r.write()
	}
	return r.Model.WriteBAR(bar, off, p)
}

func (r *reach) Attach(h sim.Host) { r.host = h; r.Model.Attach(h) }
func (r *reach) Step() bool        { r.do(r.host); return false }

func TestDMAIsConfined(t *testing.T) {
	var err error
	var got []byte
	r := &reach{Model: toysim.New(mac)}
	p := power(t, r)
	fn := open(t, p)
	a, b := make([]byte, 4096), make([]byte, 4096)
	for i, m := range []sim.Mapping{{Size: 4096, Bytes: a, Read: true, Write: true},
		{Size: 4096, Bytes: b, Read: true}} {
		must.OK(t, p.Map(0x10000+uint64(i)*4096, m))
	}
	a[4095], b[0] = 1, 2
	read := func(iova uint64, n int) func(sim.Host) {
		return func(h sim.Host) { got = make([]byte, n); err = h.DMARead(iova, got) }
	}
	write := func(iova uint64, n int) func(sim.Host) {
		return func(h sim.Host) { err = h.DMAWrite(iova, bytes.Repeat([]byte{9}, n)) }
	}
	for _, c := range []struct {
		name string
		bm   bool
		do   func(sim.Host)
		want string // in the error; "" for none
	}{
		{"bus mastering off", false, read(0x10000, 4), "bus mastering is off"},
		{"first byte", true, read(0x10000, 1), ""},
		{"over two mappings", true, read(0x10fff, 2), ""},
		{"before", true, read(0xffff, 2), "nothing is mapped at 0xffff"},
		{"past the end", true, read(0x11ffe, 3), "nothing is mapped at 0x12000"},
		{"write to read-only", true, write(0x11000, 4), "does not allow"},
		{"write into read-only", true, write(0x10ffe, 4), "does not allow"},
		{"wraps", true, read(^uint64(0), 2), "nothing is mapped"},
		{"nothing", true, read(0x10000, 0), "no bytes"},
	} {
		fn.SetBusMaster(c.bm)
		r.do = c.do
		p.ForgetViolations()
		p.Step()
		v := strings.Join(p.Violations(), "\n")
		if c.want == "" && (err != nil || v != "") || c.want != "" && (err == nil || !strings.Contains(v, c.want)) {
			t.Errorf("%s: error %v, violations %q, want %q", c.name, err, v, c.want)
		}
	}
	// A device that is removed while it works has done nothing wrong, until the driver uses it again.
	p.ForgetViolations()
	fn.SetBusMaster(true)
	fn.SetBusMaster(false)
	r.do = read(0x10000, 4)
	if p.Step(); err == nil || len(p.Violations()) > 0 {
		t.Errorf("bus mastering turned off: error %v, violations %q", err, p.Violations())
	}
	must.OK(t, p.WriteBAR(0, 0, make([]byte, 4)))
	if p.Step(); err == nil || !strings.Contains(strings.Join(p.Violations(), "\n"), "bus mastering is off") {
		t.Errorf("a register written after it: error %v, violations %q", err, p.Violations())
	}
	p.ForgetViolations()
	fn.SetBusMaster(true)
	check.Equal(t, a[4095], 1, "a write that was refused changed memory to %d")
	r.do = read(0x10fff, 2)
	p.Step()
	check.Same(t, got, []byte{1, 2}, "read over two mappings: %x")
	check.Fails(t, "an unmap that cuts mappings succeeds", check.Err(p.Unmap(0x10800, 0x1000)), nil)
	check.Fails(t, "an overlapping map succeeds", p.Map(0x11fff, sim.Mapping{Size: 1, Bytes: a[:1]}), nil)
	if n, err := p.Unmap(0, 1<<40); n != 8192 || err != nil || p.Mappings() != 0 {
		t.Errorf("unmap of all: %d, %v", n, err)
	}
}

// order records the calls of a port.
type order struct {
	*toysim.Model
	sim.Wire
	calls []string
}

func (o *order) Step() bool          { o.calls = append(o.calls, "step"); return false }
func (o *order) Receive([]byte) bool { o.calls = append(o.calls, "receive"); return true }
func (o *order) Recv(now time.Duration) []byte {
	f := o.Wire.Recv(now)
	if f != nil {
		o.calls = append(o.calls, "wire")
	}
	return f
}

// A doorbell that was rung before a frame was sent is seen before the frame. Otherwise a peer that learns "posted" over
// another path finds no receive descriptor.
func TestDoorbellsBeforeFrames(t *testing.T) {
	near, far := sim.Pair()
	o := &order{Model: toysim.New(mac), Wire: near}
	p := power(t, o)
	p.Connect(o)
	far.Send(0, make([]byte, 60))
	far.Send(0, make([]byte, 60))
	if !p.Step() {
		t.Error("two frames are no work")
	}
	check.Equal(t, strings.Join(o.calls, " "), "wire wire step receive receive step", "a step with two frames: %s")
}

// Memory that a driver wrote can be read through injected faults too: a model compares a push with the ring before it
// uses the push, because a later push may have overwritten half of it.
func TestPeekBehindFaults(t *testing.T) {
	r := &reach{Model: toysim.New(mac)}
	f := sim.Inject(r, 1)
	p := power(t, f)
	open(t, p).SetBusMaster(true)
	mem := bytes.Repeat([]byte{7}, 4096)
	must.OK(t, p.Map(0x10000, sim.Mapping{Size: 4096, Bytes: mem, Read: true, Write: true}))
	f.DelayDMA(time.Hour)
	var got [2]byte
	before := p.Counts()
	r.do = func(h sim.Host) {
		host, ok := h.(interface {
			Peek(iova uint64, p []byte) error
		})
		if !ok {
			t.Error("the model finds no Peek")
		} else if err := host.Peek(0x10010, got[:]); err != nil {
			t.Error(err)
		}
	}
	p.Step()
	if got != [2]byte{7, 7} || p.Counts() != before {
		t.Errorf("peeked %x, %+v", got, p.Counts().Since(before))
	}
}

// What the datasheet forbids and devices tolerate is reported and executed; everything else is refused.
func TestGrades(t *testing.T) {
	r := &reach{Model: toysim.New(mac)}
	p := power(t, r)
	bar := must.Get(open(t, p).BAR(0))(t)
	r.write = func() error { return sim.AsWarning(errors.New("bit 3 is reserved")) }
	bar.Write32(0x100, 9)
	r.write = func() error { return errors.New("no such thing") }
	bar.Write32(0x100, 9)
	r.write = func() error { return sim.AsWarning(nil) }
	bar.Write32(0x100, 9)
	r.read = func(b []byte) error { b[0] = 7; return sim.AsWarning(errors.New("too early")) }
	check.Equal(t, bar.Read32(0x100), 7, "a read that is reported yields %#x")
	r.read = func(b []byte) error { b[0] = 7; return errors.New("nothing there") }
	check.Equal(t, bar.Read32(0x100), ^uint32(0), "a read that is refused yields %#x")
	r.do = func(h sim.Host) {
		for i := range 150 {
			h.Warnf("told %d", i)
		}
		h.Errorf("refused after all that was reported")
	}
	p.Step()
	all, refused := p.Violations(), p.Errors()
	if len(all) != 104 || all[0] != "sim:toy: warning: write of 00000009 to BAR 0 00100h: bit 3 is reserved" ||
		all[103] != "sim:toy: warning: and 52 more" {
		t.Errorf("%d violations:\n%s", len(all), strings.Join(all, "\n"))
	}
	if len(refused) != 3 || refused[0] != "sim:toy: error: write of 00000009 to BAR 0 00100h: no such thing" ||
		refused[2] != "sim:toy: error: refused after all that was reported" {
		t.Errorf("refused:\n%s", strings.Join(refused, "\n"))
	}
	p.ForgetViolations()
	r.do = func(h sim.Host) {
		for range 120_000 {
			h.Warnf("the same")
		}
	}
	p.Step()
	check.Same(t, p.Violations(), []string{"sim:toy: warning: the same (120000 times)"}, "equal violations: %q")
}

// A function without No_Soft_Reset loses its state when it leaves D3hot; one with it keeps its state.
func TestPowerStateResets(t *testing.T) {
	for _, c := range []struct {
		pmcsr uint16
		want  uint32
	}{{0x2000, 0}, {0, 2}} {
		p := power(t, &shaped{toysim.New(mac), func(c0 *sim.Config) { c0.PMC, c0.PMCSR = 0x4823, c.pmcsr }})
		fn := open(t, p)
		bar, _ := fn.BAR(0)
		bar.Write32(0x28, 2)
		for _, state := range []byte{3, 0} {
			must.OK(t, fn.WriteConfig(0x44, []byte{state, 0}))
		}
		must.OK(t, fn.WriteConfig(4, []byte{2, 0})) // the reset disabled memory space
		check.Equal(t, bar.Read32(0x28), c.want, fmt.Sprintf("PMCSR %#x: after D3hot RX_ENTRIES is %%d", c.pmcsr))
		var b [4]byte
		if fn.ReadConfig(0x40, b[:]); c.pmcsr != 0 && (b[2] != 0x23 || b[3] != 0x48) {
			t.Errorf("PMC reads %x", b)
		}
	}
}

// Behind QEMU a model looks like silicon except for its mark, which package pci must find.
func TestModelMarksItself(t *testing.T) {
	for _, serial := range []uint64{0, 0x0200_00ff_ff00_0001} {
		fn := open(t, power(t, &shaped{toysim.New(mac), func(c *sim.Config) { c.SerialNumber = serial }}))
		at, err := pci.ExtCapability(fn, pci.ExtCapVendor)
		if err != nil || at == 0 {
			t.Fatalf("serial %#x: no vendor-specific capability: %v", serial, err)
		}
		if n, err := pci.ExtCapability(fn, pci.ExtCapID(3)); err != nil || (n != 0) != (serial != 0) {
			t.Errorf("serial %#x: serial number capability at %#x, %v", serial, n, err)
		}
		var got []byte
		for i := range 16 {
			got = append(got, must.Get(pci.Read8(fn, at+8+i))(t))
		}
		check.Equal(t, string(got), pci.ModelMark, "mark %q")
	}
}

// shaped is a toy whose configuration space a test changes.
type shaped struct {
	*toysim.Model
	shape func(*sim.Config)
}

func (s *shaped) Config() sim.Config {
	c := s.Model.Config()
	s.shape(&c)
	return c
}

// space returns functions that read and write n bytes of a function's configuration space.
func space(t *testing.T, fn *sim.Function) (read func(off, n int) uint32, write func(off, n int, v uint32)) {
	read = func(off, n int) uint32 {
		t.Helper()
		b := make([]byte, 4)
		must.OK(t, fn.ReadConfig(off, b[:n]))
		return binary.LittleEndian.Uint32(b)
	}
	return read, func(off, n int, v uint32) {
		t.Helper()
		must.OK(t, fn.WriteConfig(off, binary.LittleEndian.AppendUint32(nil, v)[:n]))
	}
}

func TestConfigurationSpace(t *testing.T) {
	p, _ := newToy(t)
	fn := open(t, p)
	read, write := space(t, fn)
	seen := map[byte]bool{}
	for at := read(0x34, 1); at != 0; at = read(int(at)+1, 1) {
		seen[byte(read(int(at), 1))] = true
	}
	if !seen[0x01] || !seen[0x10] || !seen[0x11] || len(seen) != 3 {
		t.Errorf("capabilities: %v", seen)
	}
	write(0, 4, 0)
	check.Equal(t, read(0, 4), toysim.Device<<16|toysim.Vendor, "identity reads %#x after a write")
	write(0x10, 4, ^uint32(0))
	check.Equal(t, read(0x10, 4), 0xffffc004, "BAR 0 sizes as %#x")
	write(4, 2, 0xffff)
	check.Equal(t, read(4, 2), 0x0546, "command reads %#x with all bits written")
	check.Equal(t, read(0xa0+0x12, 2)&0x3ff, 2|8<<4, "link status %#x")
	if lo, hi := read(0x104, 4), read(0x108, 4); read(0x100, 2) != 3 || lo != 0xff000001 || hi != 0x020000ff {
		t.Errorf("serial number %#x %#x", lo, hi)
	}
	write(4, 2, 2)
	write(0xa8, 2, read(0xa8, 2)|1<<15) // FLR
	check.Equal(t, read(4, 2), 0, "command reads %#x after FLR")
	bar, _ := fn.BAR(0)
	if v := bar.Read32(0); v != ^uint32(0) || len(p.Violations()) != 1 {
		t.Errorf("with memory space off: %#x, %q", v, p.Violations())
	}
	write(4, 2, 2)
	write(0x44, 2, 3)
	check.Equal(t, bar.Read32(0), ^uint32(0), "in D3 a register reads %#x")
	write(0x44, 2, 0)
	check.Equal(t, bar.Read32(0), toysim.Magic, "in D0 again a register reads %#x")
	p.ForgetViolations()
	p.UnplugAfter(1)
	id := read(0, 4)
	check.Equal(t, read(8, 4), ^uint32(0), "after the one access a register reads %#x")
	check.Equal(t, read(0, 4), id, "and the register that was read before %#x")
	check.Equal(t, bar.Read32(0), ^uint32(0), "and one of the BAR %#x")
}

func TestCapabilities(t *testing.T) {
	v := &vendored{}
	vpd := sim.VPD(0x1234, mac, [2]string{"V0", "x"})
	v.shaped = shaped{toysim.New(mac), func(c *sim.Config) {
		c.MSI, c.VPD, c.AER, c.ARI, c.NextFunction, c.VendorSize = true, vpd, 2, true, 1, 0x18
		c.PCIeDevCap |= 1 << 28
	}}
	p := power(t, v)
	fn := open(t, p)
	readBytes, write := space(t, fn)
	read := func(off int) uint32 { return readBytes(off, 4) }
	chain := []uint32{}
	for at := read(0x34) & 0xff; at != 0; at = read(int(at)) >> 8 & 0xff {
		chain = append(chain, at<<8|read(int(at))&0xff)
	}
	check.Same(t, chain, []uint32{0x4001, 0x5005, 0x7011, 0xa010, 0xe003, 0xe809}, "capabilities %x")
	chain = chain[:0]
	for at := uint32(0x100); at != 0; at = read(int(at)) >> 20 {
		chain = append(chain, at<<16|read(int(at))&0xffff)
	}
	check.Same(t, chain, []uint32{0x1000001, 0x1400003, 0x150000e, 0x180000b}, "extended capabilities %x")
	check.Equal(t, read(0x154), 1<<8, "ARI: %#x")

	write(0x52, 2, 0xffff)
	write(0x54, 4, 0xffffffff)
	write(0x60, 4, 0xffffffff)
	if c, a, m := read(0x50), read(0x54), read(0x60); c != 0x0181_7005 || a != 0xfffffffc || m != 1 {
		t.Errorf("MSI: control %#x, address %#x, mask %#x", c, a, m)
	}

	var got []byte
	for at := 0; at < len(vpd)+4; at += 4 {
		write(0xe2, 2, uint32(at))
		if read(0xe0)>>31 != 1 {
			t.Fatalf("VPD at %#x is not there", at)
		}
		got = binary.LittleEndian.AppendUint32(got, read(0xe4))
	}
	if !bytes.HasPrefix(got, vpd) || got[len(got)-1] != 0xff {
		t.Errorf("VPD %x, want %x", got, vpd)
	}
	var sum byte
	for _, b := range vpd[:len(vpd)-1] {
		sum += b
	}
	if sum != 0 || !bytes.Contains(vpd, []byte("PN\x0amodel-1234SN\x0c020000000001V0\x01xRV\x01")) {
		t.Errorf("VPD %q, of checksum %d", vpd, sum)
	}
	write(0xe4, 4, 0x12345678)
	write(0xe2, 2, 1<<15) // a write, which completes and changes nothing
	check.Equal(t, read(0xe0)>>31, 0, "bit 31 after a write to VPD is %d")
	write(0xe2, 2, 0)
	check.Equal(t, read(0xe4), binary.LittleEndian.Uint32(vpd), "VPD after a write: %#x")
	write(0xe2, 2, 2)
	if r, all := p.Errors(), p.Violations(); len(r) != 0 || len(all) != 1 ||
		!strings.Contains(all[0], "not a multiple of 4") {
		t.Errorf("an odd address: %q", all)
	}

	write(0xec, 4, 0x11223344)
	write(0xed, 1, 0xff)
	if read(0xe8) != 0x0018_0009 || read(0xec) != 0x1122ff44 || v.reg[4] != 0x1122ff44 {
		t.Errorf("vendor-specific: %#x %#x, the model has %#x", read(0xe8), read(0xec), v.reg)
	}

	write(0x108, 4, 0xffffffff) // sticky
	write(0x104, 4, 0xffffffff)
	write(0xa8, 2, read(0xa8)|1<<15) // FLR
	if m, st := read(0x108), read(0x104); m != 0x001ff010 || st != 0 {
		t.Errorf("AER after FLR: mask %#x, status %#x", m, st)
	}
	check.Equal(t, read(0x50), 0x0180_7005, "MSI control after FLR: %#x")
}

// vendored is a toy with a vendor-specific capability.
type vendored struct {
	shaped
	reg [6 * 4]uint32
}

func (v *vendored) ReadVendor(off int) uint32     { return v.reg[off] }
func (v *vendored) WriteVendor(off int, x uint32) { v.reg[off] = x }
