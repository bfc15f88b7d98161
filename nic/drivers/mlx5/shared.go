package mlx5

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/beside"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// shared is the firmware of a function that belongs to the kernel's driver, which forwards commands (DEVX), or makes
// queue pairs for raw packets if the firmware has no user contexts. Objects belong to this process's context and are
// destroyed with it. Rules in the kernel's flow tables send the frames that are answered, or a bench's replies, to our
// queues; all others reach the kernel.
type shared struct {
	*Device
	fn   *verbs.Function
	port *beside.Port
	ctx  verbs.DevX
	raw  *rawPackets // nil with DEVX

	objects map[object]uint32 // the kernel's handles
	umems   map[uint64]uint32 // memory registered for queues, by start address
	failed  error             // why memory could not be registered

	seen   []uint32 // receive slots of each queue at the last count
	frames uint64   // received
}

// object is one of the firmware's objects: the command that destroys it, and its number.
type object struct {
	destroy opcode
	number  uint32
}

func (s *shared) prepare() error {
	if s.own.NoSteering {
		return s.card.Errorf("debug.no_steering is for a function of our own: the kernel steers this one")
	}
	return s.port.Choose(&s.card)
}

func (s *shared) begin() []kit.Stage {
	return []kit.Stage{
		{Name: "open a context", Do: s.open},
		{Name: "read capabilities", Do: s.capabilities},
		{Name: "allocate a protection domain", Do: s.domain},
	}
}

// open opens a context. The objects of an earlier one are destroyed before their memory is freed.
func (s *shared) open() error {
	s.raw, s.make = nil, byCommand{s.Device}
	_, err := s.begun(true)
	if errors.Is(err, unix.EINVAL) {
		return s.openRaw()
	}
	return err
}

// begun opens a context in place of an earlier one.
func (s *shared) begun(devx bool) (abi.MLX5AllocUcontextResp, error) {
	if err := s.release(); err != nil {
		return abi.MLX5AllocUcontextResp{}, err
	}
	if err := s.fn.Start(); err != nil {
		return abi.MLX5AllocUcontextResp{}, err
	}
	s.ctx = verbs.DevX{Context: s.fn.Context()}
	s.objects, s.umems, s.failed, s.seen = map[object]uint32{}, map[uint64]uint32{}, nil,
		make([]uint32, s.card.Options.Queues)
	r, err := s.ctx.Begin(devx)
	if err != nil {
		err = s.card.Errorf("%w", err)
	}
	return r, err
}

// Available returns how a device is used beside the kernel's driver, or why it cannot be.
func Available(fn *verbs.Function) (how string, err error) {
	s := &shared{Device: &Device{}, fn: fn}
	s.card.Name, s.card.Options.Queues = "mlx5 "+fn.Name(), 1
	err = s.open()
	if how = "by DEVX"; s.raw != nil {
		how = "by queue pairs for raw packets, because " + noContexts
	}
	return how, errors.Join(err, s.release())
}

func (s *shared) capabilities() error {
	if err := s.port.Learn(&s.card); err != nil {
		return err
	}
	if s.raw != nil {
		return s.raw.learn()
	}
	return s.learn()
}

func (s *shared) domain() (err error) {
	if s.pd, err = s.ctx.AllocPD(); err != nil {
		err = s.card.Errorf("%w", err)
	}
	return err
}

// end proves pushes before rules send the first frames.
func (s *shared) end() []kit.Stage {
	return []kit.Stage{{Name: "prove pushes", Do: s.provePush}, {Name: "steer frames", Do: s.steer}}
}

// exec forwards a command; a command for an object uses the kernel's handle of it.
func (s *shared) exec(in message, outLen int) (message, error) {
	began := time.Now()
	out := make(message, max(outLen, entryInline))
	var err error
	switch in.opcode() {
	case opModifySQ:
		err = s.onObject(object{opDestroySQ, in.get(0x08, 23, 0)}, s.ctx.Modify, in, out)
	case opModifyRQ:
		err = s.onObject(object{opDestroyRQ, in.get(0x08, 23, 0)}, s.ctx.Modify, in, out)
	case opQuerySQ:
		err = s.onObject(object{opDestroySQ, in.get(0x08, 23, 0)}, s.ctx.Ask, in, out)
	case opQueryQCounter:
		err = s.onObject(object{opDeallocQCounter, in.get(0x1C, 7, 0)}, s.ctx.Ask, in, out)
	default:
		err = s.ctx.Query(in, out)
	}
	return out, s.passed(in, out, began, err)
}

func (s *shared) onObject(o object, pass func(handle uint32, in, out []byte) error, in, out message) error {
	handle, ok := s.objects[o]
	if !ok {
		return fmt.Errorf("%v of an object that was not created: %d", in.opcode(), o.number)
	}
	return pass(handle, in, out)
}

// passed records a command, and returns an error if the firmware or the kernel refused it.
func (s *shared) passed(in, out message, began time.Time, err error) error {
	e := cmdtrace.Entry{Kind: cmdtrace.Command, Name: in.opcode().String(), Opcode: uint32(in.opcode()),
		OpMod: in.opMod(), In: cmdtrace.Bytes(in),
		Out: cmdtrace.Bytes(out), Took: time.Since(began), Status: out.get(0x00, 31, 24),
		Syndrome: out.get(0x04, 31, 0)}
	switch {
	case err == nil:
	case errors.Is(err, unix.EREMOTEIO):
		err = s.card.Errorf("%w", &CommandError{in.opcode(), in.opMod(), Status(e.Status), e.Syndrome})
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ENODEV):
		err = s.card.Errorf("%v: %w: the kernel took the device away: %w", in.opcode(), nic.ErrHardware, err)
	default:
		err = s.card.Errorf("%v: %w", in.opcode(), &kernelRefusal{err})
	}
	if err != nil {
		e.Err = err.Error()
	}
	s.card.Trace.Add(e)
	return err
}

// kernelRefusal is a command that the kernel did not forward, or, up to Linux 5.18, one that firmware refused.
type kernelRefusal struct{ err error }

func (e *kernelRefusal) Error() string { return "the kernel refuses: " + e.err.Error() }
func (e *kernelRefusal) Unwrap() error { return e.err }

func (s *shared) create(in message, destroy opcode, hi int) (uint32, error) {
	if s.failed != nil {
		return 0, s.failed
	}
	began := time.Now()
	out := make(message, entryInline)
	handle, err := s.ctx.Create(in, out)
	err = s.passed(in, out, began, err)
	switch {
	case err != nil && in.opcode() == opCreateSQ:
		return 0, fmt.Errorf("%w (a send queue takes CAP_NET_RAW when the responder starts)", err)
	case err != nil:
		return 0, err
	}
	n := out.get(0x08, hi, 0)
	s.objects[object{destroy, n}] = handle
	return n, nil
}

// allocUAR has the kernel map a page of doorbells, write-combining if its test for that passed and the BAR has such a
// page left.
func (s *shared) allocUAR() (u uar, err error) {
	combining := true
	page, number, err := s.ctx.AllocUAR(true)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOMEM) {
		combining = false
		page, number, err = s.ctx.AllocUAR(false)
	}
	switch {
	case errors.Is(err, unix.ENOMEM):
		return u, s.card.Errorf(
			"%w: other programs use all of the card's BAR (mlxconfig -d %s set PF_LOG_BAR_SIZE=..., with a larger value)", err, s.fn.Function.Address)
	case err != nil:
		return u, s.card.Errorf("%w", err)
	}
	// A host page may contain several of the device's pages.
	off := uint64(number) * uarPage % uint64(os.Getpagesize())
	if off+uarPage > uint64(len(page)) {
		return u, s.card.Errorf("%w: doorbells in %d bytes", nic.ErrHardware, len(page))
	}
	return uar{number: number, off: off, window: mmio.Mapped(page, combining)}, nil
}

func (s *shared) protect() (err error) {
	if s.events.eqn, err = s.ctx.EQN(); err != nil {
		return s.card.Errorf("query the kernel's event queue: %w", err)
	}
	s.td, err = s.create(command(opAllocTD, 0, 0x10), opDeallocTD, 23)
	return err
}

func (s *shared) key(b dma.Block) (uint32, error) {
	_, _, key, err := s.fn.Region(b.IOVA)
	return key, err
}

// place registers the pages of a ring or of a doorbell record for queues, unless they are. Each ring has its own
// registration, because it has to begin at an offset that is a multiple of the page size that the kernel chooses: the
// largest possible, before Linux 5.12 always.
func (s *shared) place(b dma.Block) place {
	base := b.IOVA &^ (uarPage - 1)
	id, ok := s.umems[base]
	if !ok {
		size := (b.IOVA - base + uint64(len(b.Bytes)) + uarPage - 1) &^ (uarPage - 1)
		var err error
		if id, err = s.ctx.RegisterUmem(base, size); err != nil {
			s.failed = s.card.Errorf("%w", err)
		}
		s.umems[base] = id
	}
	return place{umem: true, id: id, at: b.IOVA - base}
}

func (s *shared) vport() error {
	if s.raw != nil {
		return s.raw.setInline()
	}
	out, err := s.exec(command(opQueryNICVport, 0, 0x10), 0x110)
	if err != nil {
		return err
	}
	return s.setInline(out)
}

func (s *shared) version() string { return s.fn.Text("fw_ver") }

func (s *shared) notes() []string {
	if s.raw != nil {
		return []string{"the kernel makes the queues, as queue pairs for raw packets, because " + noContexts}
	}
	return []string{"the queues are made by commands that the kernel forwards (DEVX)"}
}

func (s *shared) link() (nic.Link, error) { return s.port.Link() }

// counts returns the frames that our queues received and sent, because the vport's counters include the kernel's
// traffic.
func (s *shared) counts() (t nic.Stats, err error) {
	for i, q := range s.queues {
		now := q.received()
		s.frames += uint64(now - s.seen[i])
		s.seen[i] = now
		t.TxFrames += q.pushed.Load() + q.pointed.Load()
	}
	t.RxFrames = s.frames
	if s.raw != nil {
		t.RxDropped = s.raw.dropped()
		return t, nil
	}
	t.RxDropped, err = s.dropped()
	return t, err
}

func (s *shared) extra(extra map[string]uint64) {
	extra["kernel_events"] = s.port.Events.Load()
	if s.raw != nil {
		return
	}
	if v, err := s.vportCounts(); err == nil {
		extra["vport_rx_frames"], extra["vport_tx_frames"] = v.RxFrames, v.TxFrames
		extra["vport_rx_bytes"], extra["vport_tx_bytes"] = v.RxBytes, v.TxBytes
	}
}

func (s *shared) look(bool) *kit.Symptom { return s.port.Check(&s.card) }

func (s *shared) health() *kit.Symptom { return nil } // the kernel's driver watches it

// release closes the context: the kernel destroys rules and queues, and releases the memory, which is then freed.
func (s *shared) release() error { return errors.Join(s.fn.Stop(), s.card.Deallocate()) }
