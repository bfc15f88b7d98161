package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// space is a writable configuration space of any length.
type space []byte

func (s space) ReadConfig(off int, p []byte) error { return bytesConfig(s).ReadConfig(off, p) }
func (s space) WriteConfig(off int, p []byte) error {
	copy(s[off:], p)
	return nil
}

func (s space) put16(off int, v uint16) { binary.LittleEndian.PutUint16(s[off:], v) }
func (s space) put32(off int, v uint32) { binary.LittleEndian.PutUint32(s[off:], v) }

// A model is known by a capability, all of it.
func TestIsModel(t *testing.T) {
	of := func(spoil func(s space)) bool {
		s := card()
		s.put32(0x100, uint32(ExtCapVendor)|1<<16)
		s.put32(0x104, ModelVSEC|1<<16|uint32(8+len(ModelMark))<<20)
		copy(s[0x108:], ModelMark)
		spoil(s)
		return IsModel(s)
	}
	check.Equal(t, of(func(space) {}), true, "a model: %t")
	for at := 0x104; at < 0x108+len(ModelMark); at++ {
		check.Equal(t, of(func(s space) { s[at] ^= 1 }), false, fmt.Sprintf("with another byte %#x: %%t", at))
	}
	check.Equal(t, of(func(s space) { s.put32(0x100, 0) }), false, "without the capability: %t")
	check.Equal(t, IsModel(card()[:cfgExtendedSize/16]), false, "without its space: %t")
	check.Equal(t, InterfaceIsModel("lo"), false, "the loopback interface: %t")
	check.Equal(t, InterfaceIsModel("nosuch0"), false, "no interface: %t")
	path := filepath.Join(t.TempDir(), "config")
	s := card()
	must.OK(t, os.WriteFile(path, s, 0o600))
	file := must.Get(os.Open(path))(t)
	defer file.Close()
	b := make([]byte, 4)
	must.OK(t, readOnly{file}.ReadConfig(cfgSubsystem, b))
	check.Equal(t, string(b), string(s[cfgSubsystem:cfgSubsystem+4]), "%x")
	check.Fails(t, "a write", readOnly{file}.WriteConfig(0, b), os.ErrPermission)
}

// card returns the space of a PCI Express function: power management, MSI-X of 64, Express with FLR at gen 3 x8; AER,
// serial number.
func card() space {
	s := make(space, cfgExtendedSize)
	s.put32(cfgVendor, 0x10fb8086)
	s.put16(cfgStatus, statusCapabilities)
	s.put32(cfgRevision, 0x02000001)
	s.put32(cfgSubsystem, 0x000c8086)
	s[cfgCapabilities] = 0x42 // the low bits are reserved
	s.put16(0x40, 0x7001)
	s.put16(0x70, 0xa011)
	s.put16(0x72, 63)
	s.put16(0xa0, 0x0010)
	s.put32(0xa4, 1<<28)
	s.put16(0xb2, 0x1083)
	s.put32(0x100, 0x14010001)
	s.put32(0x140, 0x00010003)
	return s
}

func TestConfig(t *testing.T) {
	s := card()
	id, err := readID(s)
	want := ID{Vendor: 0x8086, Device: 0x10fb, SubVendor: 0x8086, SubDevice: 0x000c, Revision: 1, Class: 0x020000}
	if err != nil || id != want {
		t.Errorf("ReadID = %+v, %v; want %+v", id, err, want)
	}
	for id, want := range map[CapID]int{CapPower: 0x40, CapMSIX: 0x70, CapExpress: 0xa0, CapMSI: 0} {
		if got, err := Capability(s, id); got != want || err != nil {
			t.Errorf("Capability(%#x) = %#x, %v; want %#x", id, got, err, want)
		}
	}
	for id, want := range map[ExtCapID]int{ExtCapAER: 0x100, ExtCapSerial: 0x140, ExtCapSRIOV: 0} {
		if got, err := ExtCapability(s, id); got != want || err != nil {
			t.Errorf("ExtCapability(%#x) = %#x, %v; want %#x", id, got, err, want)
		}
	}
	if at, err := ExtCapability(s[:cfgSize], ExtCapAER); at != 0 || err != nil {
		t.Errorf("a conventional function has an extended capability at %#x, %v", at, err)
	}
}

// TestCapabilities: a function may have several of one kind, and entries before a broken one are returned.
func TestCapabilities(t *testing.T) {
	s := card()
	s[cfgCapabilities] = 0x80
	s.put16(0x80, 0x9009)
	s.put16(0x90, 0xa005)
	s.put16(0xa0, 0x0009)
	if all, err := Capabilities(s, CapVendor); !slices.Equal(all, []int{0x80, 0xa0}) || err != nil {
		t.Errorf("Capabilities = %#x, %v", all, err)
	}
	s.put16(0xa0, 0x0409)
	if all, err := Capabilities(s, CapVendor); !slices.Equal(all, []int{0x80, 0xa0}) || !errors.Is(err, errConfig) {
		t.Errorf("of a list that leads into the header: %#x, %v", all, err)
	}
	if at, err := Capability(s, CapVendor); at != 0x80 || err != nil {
		t.Errorf("Capability = %#x, %v", at, err)
	}
}

func TestConfigGarbage(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(s space)
		want  error
	}{
		"all ones":          {func(s space) { fill(s, 0xff) }, ErrGone},
		"list in header":    {func(s space) { s[cfgCapabilities] = 0x10 }, errConfig},
		"circle":            {func(s space) { s.put16(0x70, 0x4011) }, errConfig},
		"circle to itself":  {func(s space) { s.put16(0x40, 0x4001) }, errConfig},
		"next in header":    {func(s space) { s.put16(0x70, 0x0411) }, errConfig},
		"no list":           {func(s space) { s.put16(cfgStatus, 0) }, nil},
		"empty list":        {func(s space) { s[cfgCapabilities] = 0 }, nil},
		"list of all zeros": {func(s space) { s[cfgCapabilities] = 0x80 }, nil},
	} {
		s := card()
		c.spoil(s)
		// Advanced Features, which the card has not
		if at, err := Capability(s, 0x13); at != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: Capability = %#x, %v; want %v", name, at, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		head uint32
		want error
	}{
		"below 0x100": {0x0f010001, errConfig},
		"circle":      {0x10010001, errConfig},
		"none":        {0, nil},
		"undecoded":   {^uint32(0), nil},
	} {
		s := card()
		s.put32(0x100, c.head)
		if at, err := ExtCapability(s, ExtCapSRIOV); at != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: ExtCapability = %#x, %v; want %v", name, at, err, c.want)
		}
	}
}

// Accesses of configuration space have 1, 2 or 4 bytes, are aligned, and end within it.
func TestAccess(t *testing.T) {
	for _, c := range []struct {
		off, n int
		want   bool
	}{{0, 1, true}, {0, 2, true}, {0, 4, true}, {255, 1, true}, {254, 2, true}, {252, 4, true}, {256, 1, false},
		{256, 4, false}, {-4, 4, false}, {0, 0, false}, {0, 3, false}, {0, 8, false}, {1, 2, false}, {2, 4, false}} {
		err := checkAccess("x", c.off, make([]byte, c.n), 256)
		check.Equal(t, err == nil, c.want, fmt.Sprintf("%d bytes at %d: %%t", c.n, c.off))
	}
}

func fill(s space, v byte) {
	for i := range s {
		s[i] = v
	}
}

func TestCommand(t *testing.T) {
	s := card()
	s.put16(cfgCommand, 0x0003)
	if err := setBusMaster(s, true); err != nil || binary.LittleEndian.Uint16(s[cfgCommand:]) != 0x0007 {
		t.Errorf("bus mastering on: command %#x, %v", s[cfgCommand], err)
	}
	if err := setBusMaster(s, false); err != nil || binary.LittleEndian.Uint16(s[cfgCommand:]) != 0x0003 {
		t.Errorf("bus mastering off: command %#x, %v", s[cfgCommand], err)
	}
	check.Fails(t, "a bit that does not take", setBusMaster(stubborn{s}, true), errConfig)
	fill(s, 0xff)
	check.Fails(t, "a function that is gone", setBusMaster(s, false), ErrGone)
}

// stubborn ignores writes.
type stubborn struct{ space }

func (stubborn) WriteConfig(int, []byte) error { return nil }

// FuzzCapabilities checks that each walk ends, stays inside configuration space, and returns capabilities with the
// right ID.
func FuzzCapabilities(f *testing.F) {
	f.Add([]byte(card()), byte(CapMSIX), uint16(ExtCapSerial))
	f.Add([]byte(card()[:64]), byte(0xff), uint16(0))
	f.Add([]byte{}, byte(1), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, id byte, ext uint16) {
		s := space(b)
		if at, err := Capability(s, CapID(id)); err == nil && at != 0 && (at < cfgHeader || s[at] != id) {
			t.Errorf("Capability(%#x) = %#x, where %#x is", id, at, s[at])
		}
		if at, err := ExtCapability(s, ExtCapID(ext)); err == nil && at != 0 &&
			(at < cfgSize || binary.LittleEndian.Uint16(s[at:]) != ext) {
			t.Errorf("ExtCapability(%#x) = %#x", ext, at)
		}
		readID(s)
	})
}

// FuzzVFIOCapabilities checks that chains from the kernel cannot make the walk hang or leave the buffer.
func FuzzVFIOCapabilities(f *testing.F) {
	f.Add([]byte{0: 0, 8: 1, 12: 0, 16: 1, 40: 0}, uint32(8), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, off uint32, id uint16) {
		body, ok := vfioCapability(b, off, id)
		if ok && len(body) > len(b) {
			t.Error("a body longer than the answer")
		}
		if n := len(vfioPairs(body)); n*16 > len(b) {
			t.Errorf("%d pairs in %d bytes", n, len(b))
		}
	})
}

// hardwired is a space whose INTx Disable bit is hardwired to 0, and optionally Bus Master Enable too.
type hardwired struct {
	space
	stuck bool
}

func (s hardwired) WriteConfig(off int, p []byte) error {
	s.space.WriteConfig(off, p)
	v := binary.LittleEndian.Uint16(s.space[cfgCommand:]) &^ cmdINTxDisable
	if s.stuck {
		v |= cmdBusMaster
	}
	s.put16(cfgCommand, v)
	return nil
}

// A function need not implement INTx Disable; memory space and bus mastering must change.
func TestSetCommand(t *testing.T) {
	s := hardwired{space: card()}
	check.OK(t, setCommand(s, cmdMemory|cmdINTxDisable, cmdBusMaster))
	s.stuck = true
	check.Fails(t, "bus mastering stays on", setCommand(s, cmdMemory|cmdINTxDisable, cmdBusMaster), errConfig)
}

// vfio-pci returns vendor and device ID, and its emulated INTx Disable, even if the function does not respond.
func TestGoneUnderVFIO(t *testing.T) {
	s := space(slices.Repeat([]byte{0xff}, cfgExtendedSize))
	copy(s, card()[:4])
	for _, disabled := range []uint16{0, cmdINTxDisable} {
		s.put16(cfgCommand, 0xffff&^cmdINTxDisable|disabled)
		on, err := BusMastering(s)
		if !Gone(s) || on || err != nil || !errors.Is(setCommand(s, 0, cmdBusMaster), ErrGone) {
			t.Errorf("gone %v, bus mastering %v, %v", Gone(s), on, err)
		}
	}
	check.Fails(t, "ReadID", check.Err(readID(s)), ErrGone)
}
