package mlx4

import (
	"encoding/binary"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/kit/beside"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
)

// Kernel simulates the relevant part of Linux's mlx4_core and mlx4_ib: it drives the card with this package's driver,
// creates the queues of user contexts in their memory, and inserts their rules with its priority for them.
type Kernel struct {
	rig.Kernel
	NoRaw   bool // the process has no CAP_NET_RAW
	NoRules bool // the driver was loaded without device-managed steering
	NoFlame bool // the card has no BlueFlame
	NoCaps  bool // it has nothing that a process would have to know: the interface has version 3
	host    *Device
}

// context is an open uverbs file.
type context struct {
	*Kernel
	rig.Process
	regions rig.Regions
	mttEnd  uint64
	cqs     map[uint32]uint32 // numbers by handle
	qps     map[uint32]*userQP
	used    map[uint32]uint32 // numbers of each kind, counted from the driver's own
}

type userQP struct {
	number uint32
	ctx    mailbox
	state  uint8
}

// NewKernel opens the model for the kernel, while the model runs.
func NewKernel(t testing.TB, port *sim.Port, mac [6]byte, mtu int) *Kernel {
	k := &Kernel{}
	k.Start(t, port, beside.Interface{Link: nic.Link{Up: true, Speed: 40000}, MAC: mac, MTU: mtu, Number: 1},
		func(fn pci.Function, o nic.Options) nic.Device {
			k.host = must.Get(Open(fn, o, Options{}))(k)
			return k.host
		})
	return k
}

// Function is the function as passed to a driver beside the kernel's. The card's other port has interface eth2.
func (k *Kernel) Function() pci.Function {
	abi := 4
	if k.NoCaps {
		abi = 3
	}
	found := verbs.Found{Name: "mlx4_0", ABI: abi, Function: pci.Found{Driver: "mlx4_core",
		Interfaces: []string{"eth1", "eth2"}}}
	return k.Beside(found, "2.42.5000", func() verbs.Kernel {
		// Translations are mapped in whole pages, so there is room after the driver's own.
		c := &context{Kernel: k, mttEnd: k.host.icm.mttEnd, cqs: map[uint32]uint32{}, qps: map[uint32]*userQP{},
			used: map[uint32]uint32{}}
		c.Process = k.Open(c)
		return c
	})
}

// next returns the next number after the driver's first.
func (c *context) next(first uint32) uint32 {
	c.used[first]++
	return first + c.used[first]
}

// Method implements rig.Calls.
func (c *context) Method(object, method uint16, attrs []verbs.Attr) error {
	switch {
	case object == abi.ObjectDevice && method == abi.MethodGetContext:
		own := rig.Data(attrs, abi.AttrUHWOut)
		r := abi.MLX4IBAllocUcontextResp{QPTabSize: 1 << 16, BfRegSize: uint16(2 * c.host.caps.bfHalf),
			BfRegsPerPage: 8, CQESize: cqeSize}
		if c.NoFlame {
			r.BfRegSize, r.BfRegsPerPage = 0, 0
		}
		if c.NoCaps { // only these three
			copy(own, verbs.Bytes(&r)[unsafe.Offsetof(r.QPTabSize):unsafe.Offsetof(r.CQESize)])
		} else {
			copy(own, verbs.Bytes(&r))
		}
		return nil
	case object == abi.ObjectCQ:
		return c.createCQ(attrs)
	}
	return unix.EPROTONOSUPPORT
}

// Write implements rig.Calls.
func (c *context) Write(number uint32, in, out, own, answer []byte) error {
	switch number {
	case abi.CmdQueryDevice | abi.CmdFlagExtended:
		if !c.NoRules {
			rig.As[abi.ExQueryDeviceResp](out).Base.DeviceCapFlags = abi.DeviceManagedFlowSteering
		}
	case abi.CmdAllocPD:
		rig.As[abi.AllocPDResp](out).PDHandle = c.Add(func() error { return nil })
		rig.As[abi.MLX4IBAllocPDResp](answer).PDN = c.pd()
	case abi.CmdRegMR:
		return c.register(rig.As[abi.RegMR](in), rig.As[abi.RegMRResp](out))
	case abi.CmdCreateQP:
		return c.createQP(rig.As[abi.CreateQP](in), rig.As[abi.MLX4IBCreateQP](own), rig.As[abi.CreateQPResp](out))
	case abi.CmdModifyQP:
		return c.modify(rig.As[abi.ModifyQP](in))
	case abi.ExCmdCreateFlow | abi.CmdFlagExtended:
		return c.flow(in)
	default:
		return unix.EOPNOTSUPP
	}
	return nil
}

func (c *context) pd() uint32 { return c.host.pd + 1 }

// translations writes addresses of pages to the card's table, and returns their place.
func (c *context) translations(first, pages, shift uint64) uint64 {
	at := c.mttEnd
	c.mttEnd += pages
	t := &c.host.icm.tables[resMTT]
	if c.mttEnd*8 > align(t.used*8, icmPage) {
		c.Fatal("no room for translations")
	}
	for i := range pages {
		off := (at + i) * 8
		for _, piece := range c.host.icm.mtts {
			if off < uint64(len(piece.Bytes)) {
				binary.BigEndian.PutUint64(piece.Bytes[off:], first+i<<shift|1)
				break
			}
			off -= uint64(len(piece.Bytes))
		}
	}
	return at * 8
}

// hugeShift is the page size of regions: smaller pages need more translations than there is room for.
const hugeShift = 21

func (c *context) register(q *abi.RegMR, r *abi.RegMRResp) error {
	b := unsafe.Slice(*(**byte)(unsafe.Pointer(&q.Start)), q.Length)
	off := q.Start & (1<<hugeShift - 1)
	iova := 1<<40 + off // pages of the card are aligned as those of the process
	if err := c.Model.Map(iova, sim.Mapping{Size: q.Length, Bytes: b, Read: true, Write: true}); err != nil {
		return err
	}
	c.Add(func() error { _, err := c.Model.Unmap(iova, q.Length); return err })
	c.regions = append(c.regions, rig.Region{Start: q.Start, Length: q.Length, IOVA: iova})
	index := c.next(c.host.icm.mpt)
	in := make(mailbox, 0x40)
	in.set32(0x00, 0xF<<28|1<<17|1<<11|1<<10|1<<8)
	in.set32(0x08, index)
	in.set32(0x0C, c.pd())
	in.set64(0x10, q.HCAVA)
	in.set64(0x18, q.Length)
	mtt := c.translations(iova-off, (off+q.Length+1<<hugeShift-1)>>hugeShift, hugeShift)
	in.set32(0x2C, uint32(mtt>>32))
	in.set32(0x30, uint32(mtt))
	in.set32(0x38, hugeShift)
	if err := c.host.commands.run(command{op: opSW2HWMPT, modifier: index, in: in}); err != nil {
		return err
	}
	*r = abi.RegMRResp{LKey: index<<8 | index>>24}
	r.MRHandle = c.Add(func() error { return c.host.commands.run(command{op: opHW2SWMPT, opMod: 1, modifier: index}) })
	return nil
}

// place writes the location of a queue's memory to its context.
func (c *context) place(ctx mailbox, at, length uint64) error {
	iova, err := c.regions.Device(at, length)
	if err != nil || iova%icmPage != 0 {
		c.Errorf("%d bytes of a queue at %#x: %v", length, at, err)
		return unix.EFAULT
	}
	mtt := c.translations(iova, (length+icmPage-1)/icmPage, 12)
	ctx.set8(0, 0)
	ctx.set8(3, uint8(mtt>>32))
	ctx.set32(4, uint32(mtt))
	return nil
}

const userUAR = firstUAR + maxQueues

func (c *context) createCQ(attrs []verbs.Attr) error {
	own := rig.As[abi.MLX4IBCreateCQ](rig.Data(attrs, abi.AttrUHWIn))
	entries := uint32(power(uint64(binary.NativeEndian.Uint32(rig.Data(attrs, abi.AttrCreateCQCQE)) + 1)))
	in := make(mailbox, 0x40)
	in.set32(0x0C, log2(entries)<<24|userUAR)
	in.set8(0x17, uint8(c.host.icm.eq))
	record, err := c.regions.Device(own.DBAddr, 8)
	if err != nil {
		return err
	}
	in.set64(0x38, record)
	if err := c.place(in[0x18:], own.BufAddr, uint64(entries)*cqeSize); err != nil {
		return err
	}
	cqn := c.next(c.host.icm.cq + 1)
	if err := c.host.commands.run(command{op: opSW2HWCQ, modifier: cqn, in: in}); err != nil {
		return err
	}
	handle := c.Add(func() error { return c.host.commands.run(command{op: opHW2SWCQ, opMod: 1, modifier: cqn}) })
	c.cqs[handle] = cqn
	rig.CreatedCQ(attrs, handle, entries)
	rig.As[abi.MLX4IBCreateCQResp](rig.Data(attrs, abi.AttrUHWOut)).CQN = cqn
	return nil
}

func (c *context) createQP(q *abi.CreateQP, own *abi.MLX4IBCreateQP, r *abi.CreateQPResp) error {
	switch {
	case c.NoRaw:
		return unix.EPERM
	case q.QPType != verbs.QPTypeRawPacket, q.MaxRecvWR == 0, q.MaxRecvSGE != 1, own.LogSQStride != 6:
		return unix.EINVAL
	}
	blocks, slots := uint32(1)<<own.LogSQBBCount, uint32(power(uint64(q.MaxRecvWR)))
	first := c.host.icm.txQP
	if blocks == 1 {
		first = c.host.icm.rxQP
	}
	u := &userQP{number: c.next(first)}
	in := c.host.qpContext(u.number, c.cqs[q.SendCQHandle], userUAR)
	in.set32(qpcPD, c.pd())
	in.set32(qpcRecvCQ, c.cqs[q.RecvCQHandle])
	in.set8(qpcSQ, sizeStride(blocks, txbb))
	in.set8(qpcRQ, sizeStride(slots, rxWQE))
	record, err := c.regions.Device(own.DBAddr, 4)
	if err != nil {
		return err
	}
	in.set64(qpcRecord, record)
	if err := c.place(in[qpcPlace:], own.BufAddr, uint64(blocks*txbb+slots*rxWQE)); err != nil {
		return err
	}
	u.ctx = in
	handle := c.Add(func() error {
		if u.state == verbs.QPStateReset {
			return nil
		}
		return c.host.resetQP(u.number)
	})
	c.qps[handle] = u
	*r = abi.CreateQPResp{QPHandle: handle, QPN: u.number, MaxRecvWR: slots}
	return nil
}

func (c *context) modify(m *abi.ModifyQP) error {
	u := c.qps[m.QPHandle]
	if u == nil {
		return unix.EINVAL
	}
	if err := c.Allows(m, u.state); err != nil {
		return err
	}
	if u.state = m.QPState; u.state == verbs.QPStateReset {
		return c.host.resetQP(u.number)
	}
	op := map[uint8]opcode{verbs.QPStateInit: opRST2INIT, verbs.QPStateRTR: opINIT2RTR,
		verbs.QPStateRTS: opRTR2RTS}[m.QPState]
	u.ctx.set32(qpcFlags, u.ctx.u32(qpcFlags)&^(15<<28)|uint32(m.QPState)<<28)
	return c.host.commands.run(command{op: op, modifier: u.number, in: u.ctx})
}

// flow translates a rule as mlx4_ib does. Its priority is that of user rules (MLX4_DOMAIN_UVERBS).
func (c *context) flow(b []byte) error {
	q := rig.As[abi.CreateFlow](b)
	u := c.qps[q.QPHandle]
	specs := b[unsafe.Sizeof(*q):]
	switch {
	case c.NoRaw:
		return unix.EPERM
	case u == nil || len(specs) != int(q.FlowAttr.Size):
		return unix.EINVAL
	}
	in := rule(uint32(q.FlowAttr.Port), u.number, 0x1000|q.FlowAttr.Priority, rulePlain)
	for range q.FlowAttr.NumOfSpecs {
		size := binary.NativeEndian.Uint16(specs[4:])
		switch binary.NativeEndian.Uint32(specs) {
		case 0x20:
			s := rig.As[abi.FlowSpecEth](specs)
			if s.Mask.DstMAC != broadcast || s.Mask.EtherType|s.Mask.VLANTag != 0 {
				return unix.EINVAL
			}
			in = append(in, ethRule(0, 0, s.Val.DstMAC)[ruleControl:]...)
		case 0x30:
			s, spec := rig.As[abi.FlowSpecIPv4](specs), make(mailbox, 24)
			if s.Mask.Proto|s.Mask.TOS|s.Mask.TTL|s.Mask.Flags != 0 {
				return unix.EINVAL // as Linux refuses it
			}
			spec.set8(0, 6)
			spec.set16(2, 0xE002)
			copy(spec[0x08:], verbs.Bytes(&s.Val.DstIP))
			copy(spec[0x0C:], verbs.Bytes(&s.Mask.DstIP))
			copy(spec[0x10:], verbs.Bytes(&s.Val.SrcIP))
			copy(spec[0x14:], verbs.Bytes(&s.Mask.SrcIP))
			in = append(in, spec...)
		case 0x41:
			s, spec := rig.As[abi.FlowSpecTCPUDP](specs), make(mailbox, 24)
			spec.set8(0, 6)
			spec.set16(2, 0xE006)
			copy(spec[0x0A:], verbs.Bytes(&s.Val.DstPort))
			copy(spec[0x0E:], verbs.Bytes(&s.Mask.DstPort))
			in = append(in, spec...)
		default:
			return unix.EINVAL
		}
		specs = specs[size:]
	}
	_, id, err := c.host.commands.exec(command{op: opFlowAttach, modifier: uint32(len(in) / 4), in: in})
	if err == nil {
		c.Add(func() error { return c.host.commands.run(command{op: opFlowDetach, param: id}) })
	}
	return err
}

// Map maps the doorbells of the context's page, and its BlueFlame registers.
func (c *context) Map(key uint64, size int, _ bool) ([]byte, error) {
	window, at := c.host.uars, uint64(userUAR*uarPage)
	if key != 0 {
		window, at = c.host.flames, at+uint64(c.host.caps.uars)*uarPage
	}
	if key > uint64(os.Getpagesize()) || size != os.Getpagesize() || c.NoFlame && key != 0 {
		return nil, unix.EINVAL
	}
	p, err := window.Pointer(at, uint64(size))
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}
