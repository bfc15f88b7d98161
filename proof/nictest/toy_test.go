package nictest

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// bug is a driver bug; each has a check that finds it.
type bug int

const (
	none          bug = iota
	givesEarly        // returns a buffer to receive while it is still being sent
	overruns          // Send does not check whether the ring is full
	hidesDrops        // does not count the device's drops
	leaksMemory       // does not unmap
	mastersOn         // unmaps while bus mastering is enabled
	leaksRoutine      //
	leaksFile         //
	readsMMIO         // in Poll
	allocates         // in Poll
	trusts            // trusts the length in a write-back
	blind             // treats all ones as a register's value
	waitsForever      // far too long for a device that does not respond
	ignoresStall      // does not check whether the device was enabled
	miscounts         // includes the FCS in the byte counts
	silent            // does not notice a reset
	corrupts          // corrupts a byte of long frames
	reverses          // reverses the replies of a pass
	stopsAtWrap       //
	linkUp            // always reports link up
	anySize           // Send does not check the frame's size
	miscopies         // in Recv
	looksOnce         // checks once for a completion: a late one is never seen
	sleeps            // sleeps in Serve, and never wakes
	forgetsDevice     // does not restore function and memory if opening fails
)

type slot struct {
	iova uint64
	word uint64 // length 16, flags 16
}

var leaked []*os.File

// toy is a driver for toysim, correct unless it has a bug.
type toy struct {
	mu     sync.Mutex // a real driver's counters are read without a lock
	bug    bug
	fn     pci.Function
	bar    *mmio.Window
	arena  *dma.Arena
	rx, tx []slot
	buf    dma.Block
	send   dma.Block
	rxBell *uint32
	txBell *uint32
	ring   uint32
	mtu    int
	size   uint32

	rxNext, posted uint32   // slots before posted were given to the device
	txTail, txDone uint32   //
	owner          []uint32 // for each receive slot, the transmit + 1 that has to be done before it is free; 0 for none
	stats          nic.Stats
	garbage        *[]byte
	blinded        bool
}

func openToy(b bug) func(fn pci.Function, o nic.Options) (nic.Device, error) {
	return func(fn pci.Function, o nic.Options) (nic.Device, error) {
		d := &toy{bug: b, fn: fn, ring: uint32(o.RingSize), mtu: o.MTU, size: 2048}
		if o.MTU+14 > 2048 {
			d.size = 16384
		}
		if err := d.start(o.MAC); err != nil {
			if b != forgetsDevice {
				d.stop()
			}
			return nil, err
		}
		return d, nil
	}
}

func (d *toy) gone() error {
	if d.bar.Read32(0) != toysim.Magic && d.bug != blind {
		return fmt.Errorf("toy: magic reads %#x: %w", d.bar.Read32(0), nic.ErrGone)
	}
	return nil
}

func (d *toy) start(mac [6]byte) (err error) {
	if d.bar, err = d.fn.BAR(0); err != nil {
		return err
	}
	bells, err := d.fn.BAR(2)
	if err != nil {
		return err
	}
	rx, err := bells.Pointer(0, 4)
	if err != nil {
		return err
	}
	tx, err := bells.Pointer(0x40, 4)
	if err != nil {
		return err
	}
	d.rxBell, d.txBell = (*uint32)(rx), (*uint32)(tx)
	if err := d.gone(); err != nil {
		return err
	}
	d.bar.Write32(4, 1<<31)
	d.bar.Write32(0x0c, binary.LittleEndian.Uint32(mac[:]))
	d.bar.Write32(0x10, uint32(binary.LittleEndian.Uint16(mac[4:])))
	n := int(d.ring)
	if d.arena, err = dma.NewArena(d.fn, 1<<16+2*n*int(d.size)); err != nil {
		return err
	}
	var rings [2]dma.Block
	for i := range rings {
		if rings[i], err = d.arena.Alloc(16*n, 4096); err != nil {
			return err
		}
	}
	if d.buf, err = d.arena.Alloc(n*int(d.size), 4096); err != nil {
		return err
	}
	if d.send, err = d.arena.Alloc(n*int(d.size), 4096); err != nil {
		return err
	}
	d.rx = unsafe.Slice((*slot)(unsafe.Pointer(&rings[0].Bytes[0])), n)
	d.tx = unsafe.Slice((*slot)(unsafe.Pointer(&rings[1].Bytes[0])), n)
	d.owner = make([]uint32, n)
	if err := d.fn.SetBusMaster(true); err != nil {
		return err
	}
	for i, v := range []uint32{uint32(rings[0].IOVA), uint32(rings[0].IOVA >> 32), d.ring, d.size,
		uint32(rings[1].IOVA), uint32(rings[1].IOVA >> 32), d.ring} {
		d.bar.Write32(0x20+4*uint64(i), v)
	}
	d.bar.Write32(4, 1)
	if err := d.gone(); err != nil {
		return err
	}
	for i := 0; d.bar.Read32(4) != 1 && d.bug != ignoresStall; i++ {
		if d.bug == waitsForever && i == 0 {
			time.Sleep(time.Hour)
		}
		if i > 100 {
			if err := d.gone(); err != nil {
				return err
			}
			return fmt.Errorf("toy: control: enable does not stick: %w", nic.ErrTimeout)
		}
		time.Sleep(10 * time.Microsecond)
	}
	if err := d.gone(); err != nil {
		return err
	}
	d.arm()
	if d.bug == leaksFile {
		f, _ := os.Open("/dev/null")
		leaked = append(leaked, f) // prevents finalisation by the garbage collector
	}
	if d.bug == leaksRoutine {
		go time.Sleep(time.Hour)
	}
	return nil
}

func (d *toy) arm() {
	from := d.posted
	for d.posted != d.rxNext+d.ring {
		i := d.posted % d.ring
		if o := d.owner[i]; o != 0 && int32(d.txDone-o) < 0 && d.bug != givesEarly {
			break
		}
		d.owner[i] = 0
		d.rx[i] = slot{iova: d.buf.IOVA + uint64(i*d.size)}
		d.posted++
	}
	if d.posted != from {
		mmio.Store32(d.rxBell, d.posted)
	}
}

func (d *toy) reap() {
	for d.txDone != d.txTail && !d.blinded && atomic.LoadUint64(&d.tx[d.txDone%d.ring].word)>>16&1 != 0 {
		d.txDone++
	}
	d.blinded = d.blinded || d.bug == looksOnce && d.txDone != d.txTail
}

func (d *toy) post(iova uint64, n int) bool {
	if d.txTail-d.txDone == d.ring && d.bug != overruns {
		return false
	}
	d.tx[d.txTail%d.ring] = slot{iova, uint64(n)}
	d.txTail++
	d.stats.TxFrames++
	d.stats.TxBytes += uint64(n)
	return true
}

func pollToy(dev nic.Device, _ int, r *fastpath.Responder) int {
	d := dev.(*toy)
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.txTail
	d.reap()
	for range 16 {
		i := d.rxNext % d.ring
		w := atomic.LoadUint64(&d.rx[i].word)
		if w>>16&1 == 0 || d.posted == d.rxNext || d.bug == stopsAtWrap && d.rxNext >= 3*d.ring {
			break
		}
		d.rxNext++
		n := int(w & 0xffff)
		if n < 14 || n > int(d.size) || w>>17&1 != 0 {
			d.stats.RxErrors++
			if d.bug != trusts {
				d.rx[i].word = 0
				continue
			}
		}
		at := i * d.size
		frame := d.buf.Bytes[at : at+uint32(min(n, int(d.size)))]
		d.stats.RxFrames++
		d.stats.RxBytes += uint64(n)
		if d.bug == miscounts {
			d.stats.RxBytes += 4
		}
		d.rx[i].word = 0
		m := answer(r, frame)
		if d.bug == trusts && n > int(d.size) {
			m = n
		}
		if d.bug == corrupts && m > 1000 {
			frame[m-1]++
		}
		switch {
		case m == 0:
		case d.post(d.buf.IOVA+uint64(at), m):
			d.owner[i] = d.txTail
		default:
			d.stats.TxDropped++
		}
	}
	if d.bug == reverses && d.txTail-first > 1 {
		for a, b := first, d.txTail-1; a < b; a, b = a+1, b-1 {
			d.tx[a%d.ring], d.tx[b%d.ring] = d.tx[b%d.ring], d.tx[a%d.ring]
		}
	}
	if d.txTail != first {
		mmio.Store32(d.txBell, d.txTail)
	}
	if d.bug == readsMMIO {
		d.bar.Read32(8)
	}
	if d.bug == allocates {
		p := make([]byte, 16)
		d.garbage = &p
	}
	d.arm()
	return int(d.txTail - first)
}

func answer(r *fastpath.Responder, frame []byte) int {
	n := len(frame)
	h, m := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), n
	if !r.Reply(h, n) {
		m = r.Slow(h, n)
	}
	r.Departing()
	return m
}

func (d *toy) Info() nic.Info {
	var mac [8]byte
	binary.LittleEndian.PutUint32(mac[:], d.bar.Read32(0x0c))
	binary.LittleEndian.PutUint32(mac[4:], d.bar.Read32(0x10))
	return nic.Info{Driver: "toy", MTU: d.mtu, Queues: 1, Backend: nic.Sim,
		MAC: fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", mac[0], mac[1], mac[2], mac[3], mac[4], mac[5])}
}

func (d *toy) healthy() error {
	if err := d.gone(); err != nil {
		return err
	}
	if d.bar.Read32(4) != 1 && d.bug != silent && d.bug != blind {
		return fmt.Errorf("toy: device was reset: %w", nic.ErrHardware)
	}
	return nil
}

func (d *toy) Link() (nic.Link, error) {
	if err := d.healthy(); err != nil {
		return nic.Link{}, err
	}
	return nic.Link{Up: d.bar.Read32(8)&1 != 0 || d.bug == linkUp, Speed: 10000}, nil
}

func (d *toy) ReadStats(s *nic.Stats) error {
	if err := d.healthy(); err != nil {
		return err
	}
	d.mu.Lock()
	*s = d.stats
	d.mu.Unlock()
	s.RxDropped = uint64(d.bar.Read32(0x44))
	if d.bug == hidesDrops {
		s.RxDropped = 0
	}
	return nil
}

func (d *toy) Serve(_ int, stop *atomic.Bool, r *fastpath.Responder) error {
	t := r.Loop.Begin()
	for n := 0; !stop.Load(); n++ {
		if d.bug != sleeps {
			t = r.Loop.Pass(t, pollToy(d, 0, r))
		}
		if n%1024 == 0 {
			if err := d.healthy(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *toy) Send(frame []byte) error {
	if (len(frame) < 14 || len(frame) > d.mtu+14) && d.bug != anySize {
		return nic.ErrFrameSize
	}
	d.reap()
	at := d.txTail % d.ring * d.size
	if d.txTail-d.txDone == d.ring && d.bug != overruns {
		return nic.ErrFull
	}
	n := copy(d.send.Bytes[at:at+d.size], frame)
	if !d.post(d.send.IOVA+uint64(at), n) {
		return nic.ErrFull
	}
	mmio.Store32(d.txBell, d.txTail)
	return nil
}

func (d *toy) Recv(buf []byte) (int, int64, error) {
	i := d.rxNext % d.ring
	w := atomic.LoadUint64(&d.rx[i].word)
	if w>>16&1 == 0 {
		return 0, 0, nil
	}
	d.rxNext++
	n := copy(buf, d.buf.Bytes[i*d.size:][:w&0xffff])
	if d.bug == miscopies {
		n--
	}
	d.rx[i].word = 0
	d.arm()
	return n, 1, nil
}

func (d *toy) Close() error { return d.stop() }

func (d *toy) stop() error {
	if d.bar != nil {
		d.bar.Write32(4, 0)
	}
	if d.bug != mastersOn {
		d.fn.SetBusMaster(false)
	}
	if d.arena != nil && d.bug != leaksMemory {
		d.arena.Close()
	}
	return d.fn.Close()
}

func toyHarness(b bug) Harness {
	return Harness{
		Model: func() sim.Model { return toysim.New([6]byte{2, 0, 0, 0, 0, 9}) },
		Open:  openToy(b), Poll: pollToy, Ring: 64, MTU: 9000, WriteBack: 16,
	}
}
