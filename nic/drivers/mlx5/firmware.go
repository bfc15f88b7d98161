package mlx5

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
)

// firmware is the driver's access to the card's firmware: either the driver owns the function and so a command queue,
// or it shares the function with the kernel's driver, which forwards commands. The queues and their contexts are the
// same.
type firmware interface {
	// prepare is called once, before start.
	prepare() error
	// begin and end are the stages of a start before and after the queues are created.
	begin() []kit.Stage
	end() []kit.Stage

	// exec sends a command, and create one that creates an object: its number is in the low bits, up to hi, of the
	// dword at 08h in the answer and in the command that destroys it.
	exec(in message, outLen int) (message, error)
	create(in message, destroy opcode, hi int) (uint32, error)

	allocUAR() (uar, error)
	// protect creates the objects that all queues need: event queue, protection and transport domain, memory key.
	protect() error
	// key returns the local key of memory, and place its description in a queue's context.
	key(b dma.Block) (uint32, error)
	place(b dma.Block) place
	// vport reads the address and the inline mode.
	vport() error

	version() string
	notes() []string
	link() (nic.Link, error)
	counts() (nic.Stats, error)
	extra(map[string]uint64)
	// look finds problems of the device other than those of queues, and health possible causes if the queues are fine.
	look(polled bool) *kit.Symptom
	health() *kit.Symptom
	release() error
}

// place is memory as described in a queue's context: the addresses of its pages, or an offset in registered memory
// (umem).
type place struct {
	umem bool
	id   uint32
	at   uint64 // device address, or offset
}

// ring makes a CREATE command use b: offset and id are the positions of the umem offset and ID.
func (d *Device) ring(in message, b dma.Block, offset, id int) message {
	p := d.fw.place(b)
	if !p.umem {
		return in.pages(b.IOVA, len(b.Bytes))
	}
	binary.BigEndian.PutUint32(in[id:], p.id)
	return in.set64(offset, p.at)
}

// record makes a context use a doorbell record: at and id are the positions of its address and of the umem's ID.
func (d *Device) record(ctx message, b dma.Block, at, id int) {
	p := d.fw.place(b)
	ctx.set64(at, p.at)
	if p.umem {
		binary.BigEndian.PutUint32(ctx[id:], p.id)
	}
}

// owned is the firmware of a function that belongs to this process.
type owned struct{ *Device }

func (d owned) prepare() (err error) {
	d.listen(d.card.Options)
	if err := pci.SplitWC(d.card.Fn, 0, firstUAR); err != nil {
		return err
	}
	if d.bar, err = d.card.Fn.BAR(0); err != nil {
		return err
	}
	if d.wc, err = d.card.Fn.BARWC(0); err != nil {
		return err
	}
	d.barSize = d.wc.Size()
	if d.barSize < firstUAR+uarPage {
		return d.card.Errorf("BAR 0 is %#x bytes, expected %#x or more", d.barSize, firstUAR+uarPage)
	}
	return nil
}

// begin initializes the function, in the order of the PRM's Device Initialization. It allocates all memory again,
// because firmware that failed may still use the old pages.
func (d owned) begin() []kit.Stage {
	return []kit.Stage{
		{Name: "reset the function", Do: d.quiet},
		{Name: "start the command queue", Do: d.startCommands},
		{Name: "enable the function", Do: d.enable},
		{Name: "negotiate capabilities", Do: d.negotiate},
		{Name: "initialize the function", Do: d.initialize},
		d.card.Evidence(d.evidence),
	}
}

func (d owned) startCommands() error {
	if err := d.card.Allocate(4 << 20); err != nil {
		return err
	}
	d.pages = &pagePool{arena: d.card.Arena, given: map[uint64]struct{}{}, limit: maxPages}
	d.commands = &commandQueue{name: d.card.Name, trace: &d.card.Trace, regs: d.bar, alive: d.card.Alive, sick: d.sick,
		health: d.healthText}
	if err := d.card.Fn.SetBusMaster(true); err != nil {
		return err
	}
	return d.commands.start(d.card.Arena)
}

func (d owned) end() []kit.Stage {
	return []kit.Stage{
		{Name: "steer frames", Do: d.startSteering},
		{Name: "start the port", Do: d.startPort},
		{Name: "prove pushes", Do: d.provePush},
	}
}

func (d owned) exec(in message, outLen int) (message, error) { return d.commands.exec(in, outLen) }

func (d owned) create(in message, destroy opcode, hi int) (uint32, error) {
	out, err := d.exec(in, 0x10)
	if err != nil {
		return 0, err
	}
	n := out.get(0x08, hi, 0)
	d.steps.Done(destroy.String(), func() error {
		return d.run(command(destroy, 0, 0x10).set("number", 0x08, hi, 0, n))
	})
	return n, nil
}

func (d owned) allocUAR() (u uar, err error) {
	if u.number, err = d.create(command(opAllocUAR, 0, 0x10), opDeallocUAR, 23); err != nil {
		return u, err
	}
	u.off, u.window = uint64(u.number)*uarPage, d.wc
	if u.off < initSegment || u.off+uarPage > d.barSize {
		return u, d.card.Errorf("%w: firmware gave UAR page %#x, BAR 0 has %#x bytes", nic.ErrHardware, u.number,
			d.barSize)
	}
	if u.off < firstUAR {
		u.window = d.bar
	}
	return u, nil
}

func (d owned) protect() (err error) {
	if err := d.createEQ(); err != nil {
		return err
	}
	if d.pd, err = d.create(command(opAllocPD, 0, 0x10), opDeallocPD, 23); err != nil {
		return err
	}
	if d.td, err = d.create(command(opAllocTD, 0, 0x10), opDeallocTD, 23); err != nil {
		return err
	}
	return d.memoryKey()
}

func (d owned) key(dma.Block) (uint32, error) { return d.lkey, nil }

func (d owned) place(b dma.Block) place { return place{at: b.IOVA} }

func (d owned) vport() error { return d.startVport() }

func (d owned) version() string {
	v := d.commands.read(regFwRev)
	return fmt.Sprintf("%d.%d.%04d", v&0xFFFF, v>>16, d.commands.read(regCmdifRev)&0xFFFF)
}

func (d owned) notes() []string { return nil }

func (d owned) counts() (nic.Stats, error) {
	if pci.Gone(d.card.Fn) {
		return nic.Stats{}, d.card.Gone("configuration space")
	}
	t, err := d.vportCounts()
	if err != nil {
		return t, err
	}
	t.RxDropped, err = d.dropped()
	return t, err
}

func (d owned) extra(extra map[string]uint64) {
	e := &d.events
	for name, n := range map[string]uint64{
		"firmware_pages": uint64(d.pages.held()), "page_requests": e.pageRequests.Load(),
		"page_request_errors": e.pageErrors.Load(),
		"port_changes":        e.portChanges.Load(), "cq_errors": e.cqErrors.Load(), "unknown_events": e.unknown.Load(),
	} {
		extra[name] = n
	}
}

func (d owned) link() (nic.Link, error) {
	if pci.Gone(d.card.Fn) {
		return nic.Link{}, d.card.Gone("configuration space")
	}
	return d.portLink()
}

// look processes events. It reads device registers only while a loop runs or a caller sends or receives.
func (d owned) look(polled bool) *kit.Symptom {
	d.serveEvents()
	if !polled {
		d.beat = kit.Progress{}
		return nil
	}
	if s := d.wanted.Swap(nil); s != nil {
		return s
	}
	if err := d.commands.dead.Load(); err != nil {
		if s := d.checkHealth(); s != nil { // the likely cause
			return s
		}
		return &kit.Symptom{Reason: "command_stuck", Why: (*err).Error()}
	}
	return nil
}

func (d owned) health() *kit.Symptom { return d.checkHealth() }

func (d owned) release() error { return d.releaseFunction() }

var _, _ firmware = owned{}, (*shared)(nil)

// bell returns the address of n bytes of a UAR's BlueFlame registers, the first of which is its doorbell.
func (u uar) bell(n uint64) (unsafe.Pointer, error) { return u.window.Pointer(u.off+uarBF, n) }

// uar is a page of doorbells, at an offset of a window.
type uar struct {
	number uint32
	off    uint64
	window *mmio.Window
}
