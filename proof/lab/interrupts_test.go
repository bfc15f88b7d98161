package lab

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// interruptsScript pings between a function with MSI and one with only INTx, and shows the configuration space of each
// function.
const interruptsScript = `
for i in 4 5 6 7; do
  d=/sys/bus/pci/devices/0000:00:0$i.0
  show config$i od -An -v -tx1 $d/config
  show vpd$i od -An -v -tx1 $d/vpd
done
say read
` + pairHelpers + `
say up
for s in 56 1472; do pings 200 $s; done
show interrupts grep eth /proc/interrupts
say pinged
need ip link set $dev down
need there ip link set $far down
up
need there ip link set $far up
pings 50 56
need rmmod ixgbe
say gone
`

// TestLabInterrupts runs Linux's driver on 82599s whose EEPROM reduces MSI-X to one vector, which is too few for the
// driver, so that it uses MSI; or also disables MSI, so that it uses INTx. It also has two cards whose capabilities
// Linux walks.
func TestLabInterrupts(t *testing.T) {
	guests(t)
	beside(t, "ixgbe/F2interrupts", interrupts)
}

func interrupts(t *testing.T) {
	s := newScene(t)
	_, c := sim.Pair()
	_, d := sim.Pair()
	ixgbe := func(o ixgbesim.Options) func([6]byte) sim.Model {
		return func(mac [6]byte) sim.Model { o.MAC = mac; return ixgbesim.New(o) }
	}
	s.pair(ixgbeCard, ixgbe(ixgbesim.Options{Vectors: 1}), ixgbe(ixgbesim.Options{Vectors: 1, NoMSI: true}))
	s.serve(mlx5Card, c, connectX(mlx5sim.ConnectX5))
	s.serve(mlx4Card, d, func(mac [6]byte) sim.Model { return mlx4sim.New(mlx4sim.Options{MAC: mac}) })
	r, err := s.play(Machine{Limit: 60 * time.Second, Script: "module=ixgbe peer=10.9.0.1\n" + interruptsScript},
		"interrupts")
	must.OK(t, err)
	for i, want := range []struct {
		caps, extended []uint32 // ID and offset
		device         string
	}{
		{[]uint32{0x0140, 0x0550, 0x1170, 0x10a0, 0x03e0}, []uint32{0x1100, 0x3140}, "10fb"}, // QEMU hides ARI
		{[]uint32{0x0140, 0x1170, 0x10a0, 0x03e0}, []uint32{0x1100, 0x3140}, "10fb"},
		{[]uint32{0x0140, 0x1170, 0x10a0, 0x03e0, 0x09e8}, []uint32{0x1100}, "1017"},
		{[]uint32{0x0140, 0x1170, 0x10a0, 0x03e0}, []uint32{0x1100, 0x3140}, "1003"},
	} {
		config, vpd := dump(t, r[fmt.Sprint("config", 4+i)]), dump(t, r[fmt.Sprint("vpd", 4+i)])
		if len(config) < 4096 {
			t.Fatalf("function %d: %d bytes of configuration space", i, len(config))
		}
		var caps, extended []uint32
		for at := config[0x34]; at != 0; at = config[at+1] {
			caps = append(caps, uint32(config[at])<<8|uint32(at))
		}
		for at := uint32(0x100); at != 0; at = binary.LittleEndian.Uint32(config[at:]) >> 20 {
			if id := uint32(binary.LittleEndian.Uint16(config[at:])); id != 0x000b { // the model's mark
				extended = append(extended, id<<12|at)
			}
		}
		slices.Sort(caps) // QEMU keeps the offsets and builds a new chain
		want := want
		slices.Sort(want.caps)
		if !slices.Equal(caps, want.caps) || !slices.Equal(extended, want.extended) {
			t.Errorf("function %d: capabilities %x, %x, want %x, %x", i, caps, extended, want.caps, want.extended)
		}
		if text := string(vpd); !strings.Contains(text, "model-"+want.device) ||
			!strings.Contains(text, fmt.Sprintf("SN\x0c02000000000%d", i+1)) || !strings.HasSuffix(text, "\x78") {
			t.Errorf("function %d: VPD %q", i, text)
		}
	}
	text := strings.Join(r["interrupts"], "\n")
	if !strings.Contains(text, "PCI-MSI-0000:00:04.0") || !strings.Contains(text, "IO-APIC") ||
		strings.Contains(text, "MSIX") {
		t.Errorf("interrupts are of other kinds than MSI and INTx:\n%s", text)
	}
	proven(t, "F2", "Linux ixgbe, with MSI and with INTx",
		"450 pings; capabilities and VPD of 82599, ConnectX-5 and ConnectX-3 as Linux reads them")
}

func dump(t *testing.T, lines []string) []byte {
	t.Helper()
	return must.Get(hex.DecodeString(strings.ReplaceAll(strings.Join(lines, ""), " ", "")))(t)
}
