package sim_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

func lines(events []sim.Event) (all []string) {
	for i := range events {
		all = append(all, strings.Join(strings.Fields(events[i].String()), " "))
	}
	return all
}

func TestTrace(t *testing.T) {
	p, _ := newToy(t)
	p.StartTrace(100)
	fn := open(t, p)
	bar := must.Get(fn.BAR(0))(t)
	for range 3 {
		bar.Read32(0)
	}
	bar.Write32(0x2000+16+8, 5) // MSI-X table
	fn.SetBusMaster(true)
	bar.Write32(0x28, 16)
	bar.Write32(0x28, 32)
	bar.Write32(0x50, 2)
	want := []string{
		"read MAGIC (BAR 0 00000h) = 52425944h (3 times)",
		"write MSI-X[1].data (BAR 0 02018h) = 00000005h",
		"config Command = 0006h", "bus-master 1",
		"write RX_ENTRIES (BAR 0 00028h) = 00000010h", "write RX_ENTRIES (BAR 0 00028h) = 00000020h",
		"write INTERRUPT (BAR 0 00050h) = 00000002h", "interrupt 2",
	}
	tr := p.Trace()
	if got := lines(tr.Events); !slices.Equal(got, want) || tr.Lost != 0 || tr.Before != nil {
		t.Errorf("%d lost, events:\n%s", tr.Lost, strings.Join(got, "\n"))
	}
	check.Equal(t, fmt.Sprint(tr.Settings), "[{MSI-X[1].data 5 1} {RX_ENTRIES 32 2} {INTERRUPT 2 1}]", "settings: %s")

	bar.Write32(8, 1)
	bar.Read32(0x100)
	for i := range uint32(100) {
		bar.Write32(0x20, i)
	}
	check.Same(t, p.Violations(),
		[]string{"sim:toy: error: write of 00000001 to STATUS (BAR 0 00008h): register is read only (package toysim)",
			"sim:toy: error: read of BAR 0 00100h: no such register (package toysim)"}, "violations: %q")
	tr = p.Trace()
	if len(tr.Events) != 100 || tr.Lost != 12 || !strings.Contains(tr.Events[99].String(),
		"RX_LO (BAR 0 00020h) = 00000063h") {
		t.Errorf("%d events, %d lost, last %v", len(tr.Events), tr.Lost, &tr.Events[len(tr.Events)-1])
	}
	if got := lines(tr.Before); len(got) != 10 || got[8] != "write STATUS (BAR 0 00008h) = 00000001h" ||
		got[9] != "violation error: write of 00000001 to STATUS (BAR 0 00008h): register is read only (package toysim)" {
		t.Errorf("before the violation:\n%s", strings.Join(got, "\n"))
	}
	var text strings.Builder
	if _, err := tr.WriteTo(&text); err != nil || !strings.Contains(text.String(), "\nRX_LO = 63h\n") {
		t.Errorf("%v, text:\n%s", err, &text)
	}

	p.ForgetViolations()
	fn.SetBusMaster(false)
	fn.Reset()
	tr = p.Trace()
	if got := lines(tr.Events[97:]); len(tr.Settings) != 5 || tr.Before != nil ||
		!slices.Equal(got, []string{"config Command = 0002h", "bus-master 0", "reset"}) {
		t.Errorf("after a reset: %v, last events %q", tr.Settings, got)
	}
	bar.Write32(0x34, 1)
	check.Equal(t, fmt.Sprint(p.Trace().Settings), "[{TX_HI 1 1}]", "settings after a reset and a write: %s")
}

func TestTraceCountsNothing(t *testing.T) {
	p, _ := newToy(t)
	fn := open(t, p)
	bar := must.Get(fn.BAR(0))(t)
	before := p.Counts()
	p.StartTrace(10)
	bar.Write32(0x0c, 1)
	bar.Read32(0)
	p.Trace()
	check.Equal(t, p.Counts().Since(before), (sim.Counts{MMIOWrite: 1, MMIORead: 1}), "a trace changes the count: %+v")
}

func TestCompare(t *testing.T) {
	program := func(writes ...[2]uint32) *sim.Trace {
		p, _ := newToy(t)
		p.StartTrace(10)
		bar := must.Get(open(t, p).BAR(0))(t)
		for _, w := range writes {
			bar.Write32(uint64(w[0]), w[1])
		}
		return p.Trace()
	}
	a := program([2]uint32{0x38, 64}, [2]uint32{0x0c, 7}, [2]uint32{0x2c, 2048}, [2]uint32{0x28, 16},
		[2]uint32{0x20, 0x80})
	b := program([2]uint32{0x28, 32}, [2]uint32{0x2c, 1}, [2]uint32{0x2c, 2048}, [2]uint32{0x30, 9},
		[2]uint32{0x38, 128})
	differ, onlyA, onlyB := sim.Compare(a, b)
	if want := []sim.Difference{{Name: "TX_ENTRIES", A: 64, B: 128},
		{Name: "RX_ENTRIES", A: 16, B: 32}}; !slices.Equal(differ, want) ||
		!slices.Equal(onlyA, []string{"MAC_LO", "RX_LO"}) || !slices.Equal(onlyB, []string{"TX_LO"}) {
		t.Errorf("differ %v, only a %q, only b %q", differ, onlyA, onlyB)
	}
}

func TestFaultyIsNamed(t *testing.T) {
	p := power(t, sim.Inject(toysim.New(mac), 1))
	bar := must.Get(open(t, p).BAR(0))(t)
	bar.Write32(8, 1)
	if v := p.Violations(); len(v) != 1 || !strings.Contains(v[0], "STATUS") {
		t.Errorf("violations: %q", v)
	}
}
