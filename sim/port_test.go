package sim_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

var mac = [6]byte{2, 0, 0, 0, 0, 1}

// power returns the port of a model, until the end of the test.
func power(t *testing.T, m sim.Model) *sim.Port {
	t.Helper()
	p := must.Get(sim.New(m, sim.Options{Name: "toy", Seed: 1}))(t)
	t.Cleanup(func() { p.Close() })
	return p
}

func newToy(t *testing.T) (*sim.Port, *sim.Cable) {
	t.Helper()
	p := power(t, toysim.New(mac))
	near, far := sim.Pair()
	p.Connect(near)
	return p, far
}

func open(t *testing.T, p *sim.Port) *sim.Function {
	t.Helper()
	return must.Get(p.Function())(t)
}

// A driver with a receive and a transmit ring sends back each frame. Each reply costs the same transactions.
func TestEchoInProcess(t *testing.T) {
	const entries, txRing, buffers = 4, 0x100, 0x1000
	p, far := newToy(t)
	for range 3 { // several opens, one after another
		fn := open(t, p)
		if _, err := p.Function(); err != sim.ErrOpen {
			t.Fatalf("second open: %v", err)
		}
		bar, bells := must.Get(fn.BAR(0))(t), must.Get(fn.BAR(2))(t)
		must.Equal(t, bar.Read32(0), toysim.Magic, "magic: %#x")
		arena := must.Get(dma.NewArena(fn, 1<<21))(t)
		mem := must.Get(arena.Alloc(buffers+2048*entries, 4096))(t)
		rx, tx, high := mem.Bytes, mem.Bytes[txRing:], uint32(mem.IOVA>>32)
		for i := range uint64(entries) {
			binary.LittleEndian.PutUint64(rx[16*i:], mem.IOVA+buffers+2048*i)
		}
		must.OK(t, fn.SetBusMaster(true))
		for off, v := range map[uint64]uint32{0x20: uint32(mem.IOVA), 0x24: high, 0x28: entries, 0x2c: 2048,
			0x30: uint32(mem.IOVA) + txRing, 0x34: high, 0x38: entries} {
			bar.Write32(off, v)
		}
		bar.Write32(4, 1)
		rxTail, txTail := (*uint32)(must.Get(bells.Pointer(0, 4))(t)), (*uint32)(must.Get(bells.Pointer(0x40, 4))(t))
		mmio.Store32(rxTail, entries)
		p.Settle(10)
		for i := range uint32(20) {
			want := bytes.Repeat([]byte{byte(i)}, 60+int(i))
			before := p.Counts()
			far.Send(0, want)
			p.Step()
			d := rx[16*(i%entries):][:16]
			if sim.Load32(d[8:])>>16&1 == 0 {
				t.Fatalf("frame %d did not arrive", i)
			}
			clear(d[10:])
			copy(tx[16*(i%entries):], d)
			clear(d[8:])
			mmio.Store32(txTail, i+1)
			mmio.Store32(rxTail, i+1+entries)
			p.Settle(10)
			if got := far.Recv(0); !bytes.Equal(got, want) {
				t.Fatalf("frame %d: got %x, want %x", i, got, want)
			}
			must.Equal(t, p.Counts().Since(before), (sim.Counts{MMIOWrite: 2, DMARead: 3, DMAWrite: 3}),
				"transactions of one reply: %+v")
		}
		check.OK(t, fn.SetBusMaster(false))
		must.Close(t, arena)
		must.Close(t, fn)
		if n := p.Mappings(); n != 0 || p.BusMaster() {
			t.Fatalf("after close: %d mappings, bus master %v", n, p.BusMaster())
		}
	}
	check.Same(t, p.Violations(), nil, "violations: %q")
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
