package sim_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

var mac = [6]byte{2, 0, 0, 0, 0, 1}

func newToy(t *testing.T) (*sim.Port, *sim.Cable) {
	t.Helper()
	p := must.Get(sim.New(toysim.New(mac), sim.Options{Name: "toy", Seed: 1}))(t)
	near, far := sim.Pair()
	p.Connect(near)
	t.Cleanup(func() { p.Close() })
	return p, far
}

// echo is a driver with one receive and one transmit ring of 4 descriptors that sends back each frame.
type echo struct {
	fn             pci.Function
	arena          *dma.Arena
	rx, tx, buf    dma.Block
	rxTail, txTail *uint32
	head           uint32
}

const entries = 4

func openEcho(t *testing.T, fn pci.Function) *echo {
	t.Helper()
	bar := must.Get(fn.BAR(0))(t)
	must.Equal(t, bar.Read32(0), toysim.Magic, "magic: %#x")
	e := &echo{fn: fn}
	e.arena = must.Get(dma.NewArena(fn, 1<<21))(t)
	e.rx = must.Get(e.arena.Alloc(16*entries, 64))(t)
	e.tx = must.Get(e.arena.Alloc(16*entries, 64))(t)
	e.buf = must.Get(e.arena.Alloc(2048*entries, 64))(t)
	for i := range uint64(entries) {
		binary.LittleEndian.PutUint64(e.rx.Bytes[16*i:], e.buf.IOVA+2048*i)
	}
	must.OK(t, fn.SetBusMaster(true))
	for off, v := range map[uint64]uint32{0x20: uint32(e.rx.IOVA), 0x24: uint32(e.rx.IOVA >> 32), 0x28: entries, 0x2c: 2048,
		0x30: uint32(e.tx.IOVA), 0x34: uint32(e.tx.IOVA >> 32), 0x38: entries} {
		bar.Write32(off, v)
	}
	bar.Write32(4, 1)
	bells := must.Get(fn.BAR(2))(t)
	rx := must.Get(bells.Pointer(0, 4))(t)
	tx := must.Get(bells.Pointer(0x40, 4))(t)
	e.rxTail, e.txTail = (*uint32)(rx), (*uint32)(tx)
	mmio.Store32(e.rxTail, entries)
	return e
}

func (e *echo) poll() bool {
	d := e.rx.Bytes[16*(e.head%entries):][:16]
	if sim.Load32(d[8:])>>16&1 == 0 {
		return false
	}
	i := e.head % entries
	copy(e.tx.Bytes[16*i:], d[:10])
	clear(e.tx.Bytes[16*i+10 : 16*i+16])
	clear(d[8:16])
	e.head++
	mmio.Store32(e.txTail, e.head)
	mmio.Store32(e.rxTail, e.head+entries)
	return true
}

func (e *echo) close(t *testing.T) {
	t.Helper()
	check.OK(t, e.fn.SetBusMaster(false))
	must.Close(t, e.arena)
	must.Close(t, e.fn)
}

func open(t *testing.T, p *sim.Port) *sim.Function {
	t.Helper()
	return must.Get(p.Function())(t)
}

func clean(t *testing.T, p *sim.Port) {
	t.Helper()
	for _, v := range p.Violations() {
		t.Errorf("violation: %s", v)
	}
}

func TestEchoInProcess(t *testing.T) {
	p, far := newToy(t)
	for range 3 { // several opens, one after another
		e := openEcho(t, open(t, p))
		if _, err := p.Function(); err != sim.ErrOpen {
			t.Fatalf("second open: %v", err)
		}
		p.Settle(10)
		for i := range 20 {
			want := bytes.Repeat([]byte{byte(i)}, 60+i)
			before := p.Counts()
			far.Send(0, want)
			p.Step()
			if !e.poll() {
				t.Fatalf("frame %d did not arrive", i)
			}
			p.Settle(10)
			if got := far.Recv(0); !bytes.Equal(got, want) {
				t.Fatalf("frame %d: got %x, want %x", i, got, want)
			}
			must.Equal(t, p.Counts().Since(before), (sim.Counts{MMIOWrite: 2, DMARead: 3, DMAWrite: 3}), "transactions of one reply: %+v")
		}
		e.close(t)
		if n := p.Mappings(); n != 0 || p.BusMaster() {
			t.Fatalf("after close: %d mappings, bus master %v", n, p.BusMaster())
		}
	}
	clean(t, p)
}

func TestShadowIsMemory(t *testing.T) {
	p, _ := newToy(t)
	fn := open(t, p)
	bells := must.Get(fn.BAR(2))(t)
	check.Fails(t, "pointer to a register that nobody polls", check.Err(bells.Pointer(8, 4)), nil)
	at := must.Get(bells.Pointer(0x40, 4))(t)
	mmio.Store32((*uint32)(at), 1)
	check.Equal(t, bells.Read32(0x40), 1, "reads %#x after a store by pointer")
	bells.Write32(0x40, 0)
	check.Equal(t, *(*uint32)(unsafe.Pointer(at)), 0, "shadow holds %#x after a trapped write")
}
