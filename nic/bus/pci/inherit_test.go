package pci

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// handed returns what another process gets: the same files under other numbers.
func handed(t *testing.T, f Heritable) Bequest {
	t.Helper()
	b := must.Get(f.Bequest())(t)
	for i, fd := range b.Files {
		b.Files[i] = must.Get(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
	}
	return b
}

// Another process continues with a VFIO function: the kernel sees no reset, bus mastering stays on, and the IOMMU keeps the memory at its
// addresses, until the last process closes it.
func TestInheritVFIO(t *testing.T) {
	k := vfioKernel(t)
	fds := openFiles(t)
	f := must.Get(k.openVFIO(addr0, false))(t)
	must.OK(t, f.SetBusMaster(true))
	must.Get(f.BARWC(2))(t)
	old := must.Get(dma.NewArena(f, 4<<20))(t)
	block := must.Get(old.Alloc(8192, 4096))(t)
	copy(block.Bytes, "what the device wrote")
	calls := len(k.log)
	for _, end := range []func(Heritable) error{Heritable.Leave, func(h Heritable) error { return h.Close() }} { // before it arrived
		must.OK(t, end(must.Get(k.inherit(handed(t, f)))(t)))
	}
	h := must.Get(k.inherit(handed(t, f)))(t)
	w, files := old.Bequest()
	for i, fd := range files {
		files[i] = must.Get(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
	}
	arena := must.Get(dma.Inherit(h, w, files))(t)
	same := must.Get(arena.Alloc(8192, 4096))(t)
	if same.IOVA != block.IOVA || string(same.Bytes[:4]) != "what" || &same.Bytes[0] == &block.Bytes[0] {
		t.Errorf("the block is at %#x with %q, was at %#x", same.IOVA, same.Bytes[:4], block.IOVA)
	}
	check.Fails(t, "a block that the other process does not have", check.Err(arena.Alloc(64, 64)), dma.ErrLayout)
	check.OK(t, arena.Replayed())

	must.OK(t, old.Leave())
	must.OK(t, f.Leave())
	must.Close(t, f)
	if len(k.mapped) != len(w.Mappings) || k.command()&byte(cmdBusMaster) == 0 || len(k.log) != calls {
		t.Errorf("after the other process: IOMMU %v, command %#x, kernel %q", k.mapped, k.command(), k.log[calls:])
	}
	h.Arrive()
	bar := must.Get(h.BAR(0))(t)
	bar.Write32(0x40, 0x77777777)
	check.Equal(t, k.at(0x40), 0x77, "the store to BAR 0 left %#x")
	check.Equal(t, must.Get(h.BARWC(2))(t).WriteCombining(), true, "BAR 2 is write-combining: %v")
	more := must.Get(arena.Alloc(64, 64))(t) // in memory that was the other process's
	if more.IOVA < block.IOVA+8192 && block.IOVA < more.IOVA+64 {
		t.Errorf("a new block at %#x is in the old one at %#x", more.IOVA, block.IOVA)
	}
	must.OK(t, arena.Grow(2<<20)) // at a free address, or the kernel refuses it
	must.Close(t, arena)
	must.Close(t, h)
	if len(k.mapped) != 0 || k.command()&byte(cmdBusMaster) != 0 {
		t.Errorf("after Close: IOMMU %v, command %#x", k.mapped, k.command())
	}
	check.Equal(t, openFiles(t), fds, "%d files are open")
}

// A function is not inherited if the kernel does not map its memory as before, or if the description is not understood.
func TestInheritRefused(t *testing.T) {
	k := vfioKernel(t)
	fds := openFiles(t)
	f := must.Get(k.openVFIO(addr0, false))(t)
	must.Get(f.BARWC(2))(t)
	k.memoryTypes(bar2 + "uncached-minus")
	if mmio.PushMethod() != mmio.MOVDIR64B {
		check.Fails(t, "uncached where it was write-combining", check.Err(k.inherit(handed(t, f))), errAgain)
	}
	for name, alter := range map[string]func(b *Bequest){
		"kind":  func(b *Bequest) { b.Kind = "vfio2" },
		"files": func(b *Bequest) { unix.Close(b.Files[0]); b.Files = b.Files[1:] },
		"state": func(b *Bequest) { b.State = json.RawMessage(`7`) },
		"other device": func(b *Bequest) {
			b.State = json.RawMessage(strings.Replace(string(b.State), addr0, "0000:0a:00.0", 1))
		},
	} {
		b := handed(t, f)
		alter(&b)
		check.Fails(t, name, check.Err(k.inherit(b)), nil)
	}
	must.Close(t, f)
	check.Equal(t, openFiles(t), fds, "%d files are open")
}

// Without an IOMMU the lock of the configuration space goes along, so that no third process gets the function.
func TestInheritSysfs(t *testing.T) {
	if mmio.PureGo {
		t.Skip("purego build: devices are refused")
	}
	needs.Root(t, "reading physical addresses")
	k := newKernel(t)
	k.card(addr0, "", "")
	fds := openFiles(t)
	f := must.Get(k.openSysfs(addr0, true))(t)
	must.OK(t, f.SetBusMaster(true))
	calls := len(k.log)
	h := must.Get(k.inherit(handed(t, f)))(t)
	must.OK(t, f.Leave())
	h.Arrive()
	check.Fails(t, "a third process", check.Err(k.openSysfs(addr0, true)), bus.ErrBusy)
	command := func() byte { return must.Get(os.ReadFile(k.host.device(addr0) + "/config"))(t)[cfgCommand] }
	if command()&byte(cmdBusMaster) == 0 || len(k.log) != calls {
		t.Errorf("after the other process: command %#x, kernel %q", command(), k.log[calls:])
	}
	must.Close(t, h)
	if command()&byte(cmdBusMaster) != 0 {
		t.Error("bus mastering is on after Close")
	}
	must.Close(t, must.Get(k.openSysfs(addr0, true))(t))
	check.Equal(t, openFiles(t), fds, "%d files are open")
}
