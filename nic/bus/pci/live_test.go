package pci

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// TestLive unbinds a function of this machine from its driver, uses it through the real kernel, and binds it again. It
// runs if REBOUND_TEST_PCI names a function that may be used: in the lab's guest, or on a host with a spare card.
func TestLive(t *testing.T) {
	addr := os.Getenv("REBOUND_TEST_PCI")
	if addr == "" {
		t.Skip("REBOUND_TEST_PCI names no PCI function that may be taken")
	}
	before := must.Get(machine.find(addr))(t)
	to := Target{NoDriver: before.Group == "", Needed: must.Get(netif.Needed())(t)}
	must.OK(t, Bind(addr, to))
	t.Cleanup(func() {
		check.OK(t, Unbind(addr))
		after := must.Get(machine.find(addr))(t)
		check.Equal(t, after.Driver, before.Driver, "afterwards driver %q has it")
		t.Logf("given back to %q", after.Driver)
	})
	for range 2 {
		live(t, addr, to.NoDriver)
	}
}

func live(t *testing.T, addr string, unsafeNoIOMMU bool) {
	f := must.Get(Open(addr, unsafeNoIOMMU))(t)
	defer f.Close()
	check.Fails(t, "a second open", check.Err(Open(addr, unsafeNoIOMMU)), bus.ErrBusy)
	check.Equal(t, must.Get(readID(f))(t), f.ID(), "ID by configuration space %v")
	aer := must.Get(ExtCapability(f, ExtCapAER))(t)
	t.Logf("%s: %v, AER at %#x, notes %q", f.Name(), f.ID(), aer, Notes(f))
	for n := range 6 {
		w, err := f.BAR(n)
		if err != nil {
			t.Logf("BAR %d: %v", n, err)
			continue
		}
		t.Logf("BAR %d: %#x bytes, at 0 %08x, at 8 %08x", n, w.Size(), w.Read32(0), w.Read32(8))
	}

	arena := must.Get(dma.NewArena(f, 4<<20))(t)
	check.OK(t, arena.Grow(1<<20))
	b := must.Get(arena.Alloc(1<<20, 1<<12))(t)
	t.Logf("memory at device address %#x; %q", b.IOVA, arena.Notes())
	check.OK(t, f.SetBusMaster(true))
	check.OK(t, f.Reset())
	if w, err := f.BAR(0); err == nil && w.Read32(8) == ^uint32(0) && Gone(f) {
		t.Error("the function does not answer after its reset")
	}
	if v, err := read16(f, cfgCommand); err != nil || v&cmdBusMaster != 0 || v&cmdMemory == 0 {
		t.Errorf("command %#x after the reset, %v", v, err)
	}
	check.OK(t, f.SetBusMaster(true))
	check.OK(t, f.SetBusMaster(false))
	must.Close(t, arena)
	must.Close(t, f)
}

// TestLiveWC maps a part of a prefetchable BAR write-combining, and logs what the kernel granted.
func TestLiveWC(t *testing.T) {
	addr := os.Getenv("REBOUND_TEST_PCI_WC")
	if addr == "" {
		t.Skip("REBOUND_TEST_PCI_WC names no PCI function whose BAR 2 is memory that may be written")
	}
	before := must.Get(machine.find(addr))(t)
	must.OK(t, Bind(addr, Target{NoDriver: before.Group == "", Needed: must.Get(netif.Needed())(t)}))
	defer Unbind(addr)
	f := must.Get(Open(addr, before.Group == ""))(t)
	defer f.Close()
	must.OK(t, SplitWC(f, 2, 0x1000))
	uc := must.Get(f.BAR(2))(t)
	wc := must.Get(f.BARWC(2))(t)
	uc.Write32(0x40, 0x11111111)
	wc.Write32(0x1040, 0x22222222)
	if uc.Read32(0x40) != 0x11111111 || wc.Read32(0x1040) != 0x22222222 {
		t.Error("memory does not keep what is stored")
	}
	t.Logf("write-combining %v, notes %q", wc.WriteCombining(), Notes(f))
	if types, err := os.ReadFile("/sys/kernel/debug/x86/pat_memtype_list"); err == nil {
		t.Logf("%d memory types, write-combining: %q", strings.Count(string(types), "\n"),
			slices.DeleteFunc(strings.Split(string(types), "\n"),
				func(l string) bool { return !strings.Contains(l, "write-combining") }))
	}
	if before.Group == "" && !wc.WriteCombining() { // with vfio-pci it depends on the kernel
		t.Error("there is no write-combining")
	}
}
