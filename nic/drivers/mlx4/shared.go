package mlx4

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/beside"
)

// shared is the control of a function that belongs to the kernel's driver. The kernel creates the queue pairs, for raw
// packets, in this process's memory, and destroys them with its context. Rules, which come before the kernel's, send
// the frames that are answered, or a bench's replies, to them; all others reach the kernel.
type shared struct {
	d    *Device
	fn   *verbs.Function
	port *beside.Port
	ctx  *verbs.Context

	handles map[uint32]uint32 // the kernel's, of QPs by number
	wide    uint32            // Queue.wide

	opened bool   // once
	seen   uint32 // receive slots at the last count
	frames uint64 // received
}

func (s *shared) prepare() error {
	c := &s.d.card
	switch o := &c.Options; {
	case s.d.own.Steering != "":
		return c.Errorf("debug.no_steering is for a function of our own: the kernel steers this one")
	case o.Queues != 1:
		return c.Errorf("%w: %d queue pairs: beside the kernel's driver there is one (cpu.cores: give one)",
			errors.ErrUnsupported, o.Queues)
	case o.Match != nil && o.Match.VLANs != nil:
		return c.Errorf("%w: respond.vlans: beside the kernel's driver the card's rules do not select frames without a tag", errors.ErrUnsupported)
	}
	if err := s.port.Choose(c); err != nil {
		return err
	}
	if p := s.d.own.Port; p != 0 && p != s.port.Number {
		return c.Errorf("nic.port is %d, interface %s is port %d of the card", p, s.port.Name, s.port.Number)
	}
	s.d.port = uint32(s.port.Number)
	return nil
}

func (s *shared) start() error {
	if s.opened { // a restart
		return s.d.card.AwaitKernel(s.startOnce)
	}
	err := s.startOnce()
	s.opened = err == nil
	return err
}

func (s *shared) startOnce() error {
	if err := s.release(); err != nil {
		return err
	}
	s.d.lacks = nil
	return s.d.card.Stages(
		kit.Stage{Name: "open a context", Do: s.open}, kit.Stage{Name: "read the port",
			Do: func() error { return s.port.Learn(&s.d.card) }}, kit.Learned,
		kit.Stage{Name: "create queues", Do: s.createQueue}, kit.Stage{Name: "steer frames", Do: s.steer})
}

// open opens a context and maps its doorbells: an ordinary page, and a BlueFlame page if the card has them.
func (s *shared) open() error {
	d := s.d
	if err := s.fn.Start(); err != nil {
		return err
	}
	s.ctx, s.handles, s.seen = s.fn.Context(), map[uint32]uint32{}, 0
	r, err := s.begin()
	if err != nil {
		return err
	}
	q, err := s.ctx.QueryDevice(nil)
	if err != nil {
		return d.card.Errorf("query the device: %w", err)
	}
	if q.DeviceCapFlags&abi.DeviceManagedFlowSteering == 0 {
		return d.card.Errorf("%w: the kernel's driver steers by MAC addresses only: load mlx4_core with log_num_mgm_entry_size=-1 (/etc/modprobe.d), or use driver xdp",
			errors.ErrUnsupported)
	}
	if r.CQESize != cqeSize && r.CQESize != 2*cqeSize {
		return d.card.Errorf("%w: completions of %d bytes, expected %d or %d", nic.ErrHardware, r.CQESize, cqeSize,
			2*cqeSize)
	}
	s.wide = r.CQESize/cqeSize - 1
	var pd abi.MLX4IBAllocPDResp
	if err := s.ctx.AllocPD(verbs.Bytes(&pd)); err != nil {
		return d.card.Errorf("%w", err)
	}
	d.pd = pd.PDN
	d.caps = capabilities{maxWQE: maxBlocks * txbb, bfHalf: uint32(r.BfRegSize) / 2}
	page := os.Getpagesize()
	doorbells, err := s.ctx.Mapped(0, page, true)
	if err != nil {
		return d.card.Errorf("doorbells: %w", err)
	}
	d.uars, d.flames = mmio.Mapped(doorbells, false), nil
	if r.BfRegSize != 0 {
		flames, err := s.ctx.Mapped(uint64(page), page, true)
		if err != nil {
			return d.card.Errorf("BlueFlame: %w", err)
		}
		d.flames = mmio.Mapped(flames, true)
	}
	return nil
}

// begin opens a context. Without completions of 64 bytes the kernel has version 3 of its interface, with a shorter
// answer.
func (s *shared) begin() (r abi.MLX4IBAllocUcontextResp, err error) {
	switch s.fn.Found.ABI {
	case 3:
		var short abi.MLX4IBAllocUcontextRespV3
		err = s.ctx.Begin(nil, verbs.Bytes(&short))
		r = abi.MLX4IBAllocUcontextResp{QPTabSize: short.QPTabSize, BfRegSize: short.BfRegSize,
			BfRegsPerPage: short.BfRegsPerPage, CQESize: cqeSize}
	case 4:
		err = s.ctx.Begin(nil, verbs.Bytes(&r))
	default:
		err = fmt.Errorf("%w: version %d of mlx4_ib's interface, this driver knows 3 and 4", errors.ErrUnsupported,
			s.fn.Found.ABI)
	}
	if err != nil {
		return r, s.d.card.Errorf("%w", err)
	}
	return r, nil
}

// Available returns how a device is used beside the kernel's driver, or why it cannot be.
func Available(fn *verbs.Function) (how string, err error) {
	names := fn.Function.Interfaces
	if slices.Contains(names, fn.Name()) {
		names = []string{fn.Name()}
	}
	err = fmt.Errorf("%s: %w: it has no interface here", fn.Name(), nic.ErrNoDevice)
	for _, name := range names {
		if _, err = beside.Read(name); err == nil {
			break
		}
	}
	if err != nil { // InfiniBand, for example
		return "", err
	}
	d := &Device{}
	d.card.Name = "mlx4 " + fn.Name()
	s := &shared{d: d, fn: fn}
	return "by queue pairs for raw packets", errors.Join(s.open(), s.release())
}

// createQueue creates the queue: a QP that receives and one that sends, as on a function of our own, each with an
// unused other half.
func (s *shared) createQueue() error {
	d := s.d
	if d.queues == nil {
		d.queues = []*Queue{{}}
	}
	q := d.queues[0]
	d.choosePush()
	d.layout(q)
	q.uar, q.wide = 0, s.wide
	slots, blocks := int(q.mask+1), int(q.txMask+1)
	var records, rxCQ, txCQ, tx, rx dma.Block // records: doorbell records, a cache line each
	err := d.card.Lay(func(memory *kit.Rings) {
		records = memory.Block(4*64, 64)
		rxCQ, txCQ = memory.Block(slots*cqeSize<<s.wide, 4096), memory.Block(blocks*cqeSize<<s.wide, 4096)
		tx, rx = memory.Block(blocks*txbb+rxWQE, 4096), memory.Block(txbb+slots*rxWQE, 4096)
		q.allocate(memory, true)
	})
	if err != nil {
		return err
	}
	line := func(n int) dma.Block {
		return dma.Block{Bytes: records.Bytes[64*n:][:64], IOVA: records.IOVA + uint64(64*n)}
	}
	record := func(n int) *uint32 { return (*uint32)(kit.Pointer(line(n))) }
	q.rqRec, q.rxCQRec, q.txCQRec = record(0), record(1), record(2)
	if _, _, d.lkey, err = s.fn.Region(records.IOVA); err != nil {
		return d.card.Errorf("%w", err)
	}
	q.lkey = d.lkey
	receives, err := s.createCQ(&q.rxCQ, &q.rxCQN, rxCQ, slots, line(1))
	if err != nil {
		return err
	}
	sends, err := s.createCQ(&q.txCQ, &q.txCQN, txCQ, blocks, line(2))
	if err != nil {
		return err
	}
	if err := s.createQP(&q.txQPN, tx, blocks, 1, sends, line(3)); err != nil {
		return err
	}
	q.wq, q.number = mmio.SendRing{Base: kit.Pointer(tx), Mask: q.txMask}, q.txQPN<<8
	if err := s.createQP(&q.rxQPN, rx, 1, slots, receives, line(0)); err != nil {
		return err
	}
	*(*uint32)(kit.Pointer(rx)) = swap(ownerBit)
	q.rq = unsafe.Add(kit.Pointer(rx), txbb)
	q.fillReceives()
	if err := d.doorbell(q); err != nil {
		return err
	}
	q.reset() // the send queue's blocks are stamped before the device may read them
	if err := s.startQP(q.rxQPN, nil); err != nil {
		return err
	}
	return s.startQP(q.txQPN, nil)
}

// createCQ creates a completion queue in our memory, and returns the kernel's handle. The kernel has one entry more
// than asked for, and rounds up to a power of two.
func (s *shared) createCQ(mem *unsafe.Pointer, number *uint32, b dma.Block, entries int,
	record dma.Block) (handle uint32, err error) {
	c := &s.d.card
	ask := abi.MLX4IBCreateCQ{BufAddr: b.IOVA, DBAddr: record.IOVA}
	var r abi.MLX4IBCreateCQResp
	handle, size, err := s.ctx.CreateCQ(uint32(entries-1), verbs.Bytes(&ask), verbs.Bytes(&r))
	if err != nil {
		return 0, c.Errorf("%w", err)
	}
	if int(size) != entries-1 {
		return 0, c.Errorf("%w: a completion queue of %d entries, expected %d", nic.ErrHardware, size, entries-1)
	}
	emptyCQ(kit.Pointer(b), uint32(entries)<<s.wide) // the kernel or firmware may have written its own
	*mem, *number = unsafe.Add(kit.Pointer(b), s.wide*cqeSize), r.CQN
	return handle, nil
}

// createQP creates a queue pair for raw packets with a ring in our memory: the send queue's blocks, then the receive
// queue's slots.
func (s *shared) createQP(number *uint32, ring dma.Block, blocks, slots int, cq uint32, record dma.Block) error {
	c := &s.d.card
	ask := abi.MLX4IBCreateQP{BufAddr: ring.IOVA, DBAddr: record.IOVA, LogSQBBCount: uint8(log2(uint32(blocks))),
		LogSQStride: uint8(log2(txbb))}
	made, err := s.ctx.CreateQP(abi.CreateQP{SendCQHandle: cq, RecvCQHandle: cq, MaxSendWR: uint32(blocks),
		MaxRecvWR: uint32(slots), MaxSendSGE: 1, MaxRecvSGE: 1,
		QPType: verbs.QPTypeRawPacket}, verbs.Bytes(&ask), nil)
	switch {
	case errors.Is(err, unix.EPERM):
		return c.Errorf("create a queue pair for raw packets: %w: %w (CAP_NET_RAW)", nic.ErrRights, err)
	case err != nil:
		return c.Errorf("create a queue pair for raw packets: %w", err)
	case made.MaxRecvWR != uint32(slots):
		return c.Errorf("%w: a receive queue of %d slots, expected %d", nic.ErrHardware, made.MaxRecvWR, slots)
	}
	*number = made.QPN
	s.handles[made.QPN] = made.QPHandle
	return nil
}

func (s *shared) startQP(qpn uint32, _ mailbox) error {
	for _, m := range []abi.ModifyQP{
		{AttrMask: verbs.QPMaskState | verbs.QPMaskPort, QPState: verbs.QPStateInit, PortNum: uint8(s.d.port)},
		{AttrMask: verbs.QPMaskState, QPState: verbs.QPStateRTR},
		{AttrMask: verbs.QPMaskState, QPState: verbs.QPStateRTS},
	} {
		if err := s.modify(qpn, m); err != nil {
			return err
		}
	}
	return nil
}

func (s *shared) resetQP(qpn uint32) error {
	return s.modify(qpn, abi.ModifyQP{AttrMask: verbs.QPMaskState, QPState: verbs.QPStateReset})
}

func (s *shared) modify(qpn uint32, m abi.ModifyQP) error {
	m.QPHandle = s.handles[qpn]
	if err := s.ctx.ModifyQP(m); err != nil {
		return s.d.card.Errorf("QP %#x to state %d: %w", qpn, m.QPState, err)
	}
	return nil
}

// flowsFor returns the rules for frames that are answered, and what is left to the kernel, with the reason. The card's
// rules know neither ICMP nor IPv6. dedicated are addresses that the kernel sends nothing from: for these, all of IPv4
// is diverted.
func flowsFor(c *fastpath.Config, mac [6]byte, dedicated []netip.Addr) (flows []verbs.Flow, left []string) {
	for _, p := range c.Addresses {
		to := p.Addr()
		switch {
		case to.Is6():
			left = append(left, fmt.Sprintf("%v is answered by the kernel: the card's rules do not select IPv6", to))
			continue
		case slices.Contains(dedicated, to):
			flows = append(flows, verbs.Flow{MAC: mac, To: to})
			continue
		}
		left = append(left, fmt.Sprintf(
			"pings to %v are answered by the kernel: the card cannot tell them from other frames (use an address that the host does not have)", to))
		for _, port := range c.Ports() {
			flows = append(flows, verbs.Flow{MAC: mac, To: to, UDP: port})
		}
	}
	return flows, left
}

// flowsOf returns the rules for the replies that a bench receives.
func flowsOf(s *nic.Steer, mac [6]byte) (flows []verbs.Flow, err error) {
	if len(s.EchoIDs) > 0 {
		return nil, fmt.Errorf("%w: the card cannot tell the replies to this program's pings from other frames: probe with UDP or STAMP, or use driver afpacket", errors.ErrUnsupported)
	}
	for _, to := range append([]netip.Addr{s.Local}, s.Also...) {
		if to.Is6() {
			return nil, fmt.Errorf("%w: the card's rules do not select IPv6: use driver afpacket",
				errors.ErrUnsupported)
		}
		for _, port := range s.UDPPorts {
			flows = append(flows, verbs.Flow{MAC: mac, To: to, From: s.Remote, UDP: port})
		}
	}
	return flows, nil
}

// steer creates the rules. The first takes effect immediately, so the queue has to be ready.
func (s *shared) steer() error {
	c := &s.d.card
	var flows []verbs.Flow
	if o := &c.Options; o.Steer != nil {
		var err error
		if flows, err = flowsOf(o.Steer, c.MAC); err != nil {
			return c.Errorf("%w", err)
		}
	} else {
		var left []string
		flows, left = flowsFor(o.Match, c.MAC, s.d.own.Dedicated)
		if s.d.lacks = append(s.d.lacks, left...); len(flows) == 0 {
			return c.Errorf("nothing to answer: no rule is possible: %v", left)
		}
	}
	for _, f := range flows {
		switch err := s.ctx.CreateFlow(s.handles[s.d.queues[0].rxQPN], uint8(s.d.port), 0, f); {
		case errors.Is(err, unix.EPERM):
			return c.Errorf("rule for %v: %w: %w (CAP_NET_RAW)", f.To, nic.ErrRights, err)
		case err != nil:
			return c.Errorf("rule for %v: %w", f.To, err)
		}
		c.Log.Debug("rule", "to", f.To, "from", f.From, "port", f.UDP)
	}
	return nil
}

func (s *shared) describe() (version, steering string) {
	return fmt.Sprintf("board %s, port %d, firmware %s", s.fn.Text("board_id"), s.d.port, s.fn.Text("fw_ver")),
		"frames are steered by rules of the device (DMFS), which come before the kernel's"
}

func (s *shared) look(bool) *kit.Symptom { return s.port.Check(&s.d.card) }

func (s *shared) link() (nic.Link, error) { return s.port.Link() }

// counts returns the frames that our queue received and sent: the port's counters are the kernel's, with its own
// traffic.
func (s *shared) counts() (t nic.Stats, err error) {
	q := s.d.queues[0]
	now := q.received()
	s.frames += uint64(now - s.seen)
	s.seen = now
	t.RxFrames, t.TxFrames = s.frames, q.pushed.Load()+q.pointed.Load()
	t.Extra = map[string]uint64{}
	return t, nil
}

func (s *shared) extra(out *nic.Stats) { out.Extra["kernel_events"] = s.port.Events.Load() }

// release closes the context: the kernel destroys rules and queues, and releases the memory, which is then freed.
func (s *shared) release() error { return errors.Join(s.fn.Stop(), s.d.card.Deallocate()) }
