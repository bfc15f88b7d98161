package mlx5

import (
	"encoding/binary"
	"fmt"
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

// Kernel simulates the relevant part of Linux's mlx5_core and mlx5_ib: it drives the function with this package's
// driver, forwards the commands of user contexts as DEVX does, makes queue pairs for raw packets for contexts without
// it, and inserts the rules of contexts before its own. It fails the test for commands that Linux refuses.
type Kernel struct {
	rig.Kernel
	NoRaw    bool                             // the process has no CAP_NET_RAW
	NoWC     bool                             // the write-combining test failed
	NoFlames bool                             // all pages for write-combining are in use
	NoPages  bool                             // all pages of doorbells are in use
	NoChains bool                             // the firmware cannot chain flow tables
	Shorter  uint32                           // entries that completion queues lack
	Answer   func(*abi.MLX5AllocUcontextResp) // changes the answer for a context without DEVX, if it is not nil
	host     *Device
	bypass   table
	eqn      uint32
	counter  uint32 // set of RDMA queues
	rules    uint32 // in bypass
}

// context is an open uverbs file.
type context struct {
	*Kernel
	rig.Process
	uid     uint32
	pd      uint32
	objects map[uint32]object
	masks   map[uint32][]byte // matchers
	enable  map[uint32]uint8
	pages   map[uint64][]byte // mappable pages

	// Without DEVX.
	td      uint32
	regions rig.Regions
	cqs     map[uint32]uint32 // numbers by handle
	qps     map[uint32]*userQP
}

// userQP is a queue pair for raw packets. The kernel believes that its send queue is in sqState.
type userQP struct {
	sqn, rqn, tir, tis uint32
	state              uint8
	sqState            uint32
}

// NewKernel opens the model's function for the kernel, while the model runs.
func NewKernel(t testing.TB, port *sim.Port, mac [6]byte, mtu int) *Kernel {
	k := &Kernel{}
	k.Start(t, port, beside.Interface{Link: nic.Link{Up: true, Speed: 100000}, MAC: mac, MTU: mtu, Number: 1}, k.load)
	beside.OutOfBuffer = func(*verbs.Function, int) uint32 {
		k.Mu.Lock()
		defer k.Mu.Unlock()
		out, err := k.host.exec(command(opQueryQCounter, 0, 0x20).set("counter_set_id", 0x1C, 7, 0, k.counter), 0x100)
		if err != nil {
			return 0
		}
		return out.get(0x30, 31, 0)
	}
	return k
}

// load starts the kernel's driver.
func (k *Kernel) load(fn pci.Function, o nic.Options) nic.Device {
	k.host = must.Get(Open(fn, o, Options{}))(k)
	// The kernel's rules again, in a table after that for user contexts.
	own := must.Get(k.host.createTable(1, rootLogSize))(k)
	g := must.Get(own.group(0, rootGroupBit-1, maskMAC))(k)
	for i, mac := range [][6]byte{k.Port.MAC, broadcast} {
		must.OK(k, own.set(uint32(i), g, match{mac: mac}, destTIR, k.host.queues[0].tir))
	}
	g = must.Get(own.group(rootGroupBit, rootGroupBit, match{mac: groupBit}))(k)
	must.OK(k, own.set(rootGroupBit, g, match{mac: groupBit}, destTIR, k.host.queues[0].tir))
	k.eqn = k.host.events.eqn
	k.counter = must.Get(k.host.create(command(opAllocQCounter, 0, 0x10), opDeallocQCounter, 7))(k)
	if k.host.caps.userContexts { // an event queue that user contexts may use
		b := must.Get(k.host.card.Block(eqEntries*eqeSize, 4096))(k)
		for i := eqeOwner; i < len(b.Bytes); i += eqeSize {
			b.Bytes[i] = 1
		}
		in := command(opCreateEQ, 0, 0x110).set("uid", 0x00, 15, 0, sharedUID)
		in.at(0x10).set("log_eq_size", 0x0C, 28, 24, log2(eqEntries)).set("uar_page", 0x0C, 23, 0, k.host.uar.number)
		k.eqn = must.Get(k.host.create(in.pages(b.IOVA, len(b.Bytes)), opDestroyEQ, 7))(k)
	}
	k.bypass = must.Get(k.host.createTable(0, rootLogSize))(k)
	must.OK(k, k.host.run(k.bypass.command(opModifyFlowTable, 0x40).set("modify_field_select", 0x0C, 15, 0, 1).
		set("table_miss_action", 0x18, 27, 24, 1).set("table_miss_id", 0x1C, 23, 0, own.id)))
	must.OK(k, k.host.run(k.bypass.command(opSetFlowRoot, 0x40)))
	return k.host
}

const (
	opModifyFlowTable opcode = 0x93C

	sharedUID = 0xFFFF // of objects that all user contexts may name
)

// Function is the function as passed to a driver beside the kernel's.
func (k *Kernel) Function() pci.Function {
	found := verbs.Found{Name: "mlx5_0", ABI: 1, Function: pci.Found{Driver: "mlx5_core", Interfaces: []string{"eth1"}}}
	return k.Beside(found, "16.35.2000", func() verbs.Kernel {
		c := &context{Kernel: k, objects: map[uint32]object{}, masks: map[uint32][]byte{}, enable: map[uint32]uint8{},
			pages: map[uint64][]byte{}, cqs: map[uint32]uint32{}, qps: map[uint32]*userQP{}}
		c.Process = k.Open(c)
		return c
	})
}

// Method implements rig.Calls.
func (c *context) Method(object, method uint16, attrs []verbs.Attr) error {
	switch object {
	case abi.ObjectDevice:
		return c.open(attrs)
	case abi.ObjectCQ:
		return c.createCQ(attrs)
	case abi.MLX5ObjectDevX, abi.MLX5ObjectDevXObj, abi.MLX5ObjectDevXUmem:
		if c.uid == 0 {
			c.Errorf("DEVX without a user context: object %#x, method %#x", object, method)
			return unix.EINVAL
		}
	}
	switch object {
	case abi.MLX5ObjectDevX:
		if method == abi.MLX5MethodDevXQueryEQN {
			binary.NativeEndian.PutUint32(attrs[1].Data, c.eqn)
			return nil
		}
		return c.pass(attrs[0].Data, attrs[1].Data)
	case abi.MLX5ObjectDevXObj:
		return c.devx(method, attrs)
	case abi.MLX5ObjectDevXUmem:
		return c.umem(attrs)
	case abi.MLX5ObjectUAR:
		return c.uar(attrs)
	case abi.MLX5ObjectFlowMatcher:
		attrs[0].Value = int64(c.Add(func() error { return nil }))
		c.masks[uint32(attrs[0].Value)], c.enable[uint32(attrs[0].Value)] = append([]byte{}, attrs[1].Data...),
			attrs[3].Data[0]
		return nil
	case abi.ObjectFlow:
		return c.flow(attrs)
	}
	return unix.EPROTONOSUPPORT
}

func (c *context) open(attrs []verbs.Attr) error {
	q := rig.As[abi.MLX5AllocUcontextReqV2](rig.Data(attrs, abi.AttrUHWIn))
	switch {
	case q.Flags&^abi.MLX5AllocUctxDevX != 0 || q.LibCaps != abi.MLX5LibCap4KUAR|abi.MLX5LibCapDynUAR:
		return unix.EOPNOTSUPP
	case q.Flags == 0:
		return c.openRaw(q, rig.As[abi.MLX5AllocUcontextResp](rig.Data(attrs, abi.AttrUHWOut)))
	case !c.host.caps.userContexts:
		return unix.EINVAL
	}
	in := command(0xA04, 0, 0x40)
	if !c.NoRaw {
		in.set("cap", 0x10, 31, 0, 1)
	}
	var err error
	c.uid, _, err = c.create(in, 0xA06, 15)
	return err
}

// create executes a command that creates an object, and returns its number and its handle. The number has bits hi to 0.
func (c *context) create(in message, destroy opcode, hi int) (number, handle uint32, err error) {
	out, err := c.host.exec(in, 0x10)
	if err != nil {
		return 0, 0, fmt.Errorf("%w: %w", unix.EINVAL, err)
	}
	number = out.get(0x08, hi, 0)
	undo := command(destroy, 0, 0x10).set("uid", 0x00, 15, 0, in.get(0x00, 15, 0)).set("number", 0x08, hi, 0, number)
	return number, c.Add(func() error { return c.host.run(undo) }), nil
}

// Write implements rig.Calls.
func (c *context) Write(number uint32, in, out, own, answer []byte) (err error) {
	switch number {
	case abi.CmdAllocPD:
		c.pd, rig.As[abi.AllocPDResp](out).PDHandle, err = c.create(c.of(command(opAllocPD, 0, 0x10)), opDeallocPD, 23)
		rig.As[abi.MLX5AllocPDResp](answer).PDN = c.pd
		return err
	case abi.CmdRegMR:
		q := rig.As[abi.RegMR](in)
		iova, err := c.pin(q.Start, q.Length)
		if err != nil {
			return err
		}
		c.regions = append(c.regions, rig.Region{Start: q.Start, Length: q.Length, IOVA: iova})
		off := q.Start & (1<<hugeShift - 1)
		pages := (off + q.Length + 1<<hugeShift - 1) >> hugeShift
		m := command(opCreateMKey, 0, 0x110).set("translations_octword_actual_size", 0x60, 31, 0, uint32(pages+1)/2)
		m.at(0x10).set("lw", 0x00, 11, 11, 1).set("lr", 0x00, 10, 10, 1).set("access_mode", 0x00, 9, 8, 1).set("qpn",
			0x04, 31, 8, 0xFFFFFF).
			set("pd", 0x0C, 23, 0, c.pd).set64(0x10, q.HCAVA).set64(0x18, q.Length).set("translations_octword_size",
			0x34, 31, 0, uint32(pages+1)/2).set("log_page_size", 0x38, 5, 0, hugeShift)
		key, handle, err := c.create(hugePages(m, iova-off, off+q.Length), opDestroyMKey, 23)
		*rig.As[abi.RegMRResp](out) = abi.RegMRResp{MRHandle: handle, LKey: key << 8}
		return err
	case abi.CmdDeregMR:
		return c.Destroy(binary.NativeEndian.Uint32(in))
	case abi.CmdQueryDevice | abi.CmdFlagExtended:
		r := &rig.As[abi.ExQueryDeviceResp](out).Base
		if r.MaxCQE = 1<<c.host.caps.logMaxCQ - 1; !c.NoChains {
			r.DeviceCapFlags = abi.DeviceManagedFlowSteering
		}
		return nil
	case abi.CmdCreateQP:
		return c.createQP(rig.As[abi.CreateQP](in), rig.As[abi.MLX5CreateQP](own), rig.As[abi.CreateQPResp](out))
	case abi.CmdModifyQP:
		return c.modifyQP(rig.As[abi.ModifyQP](in))
	case abi.CmdQueryQP:
		return c.queryQP(rig.As[abi.QueryQP](in), rig.As[abi.QueryQPResp](out))
	}
	return unix.EOPNOTSUPP
}

// hugeShift is the page size in the lists for the card: with smaller pages, the lists would not fit into a command of
// this package.
const hugeShift = 21

// pin makes memory of the process accessible to the card until the context is closed.
func (c *context) pin(start, length uint64) (uint64, error) {
	b := unsafe.Slice(*(**byte)(unsafe.Pointer(&start)), length)
	iova, err := c.Model.MapAnywhere(sim.Mapping{Size: length, Bytes: b, Read: true, Write: true})
	c.Add(func() error { _, err := c.Model.Unmap(iova, length); return err })
	return iova, err
}

func (c *context) Map(key uint64, size int, _ bool) ([]byte, error) {
	if b := c.pages[key]; len(b) == size {
		return b, nil
	}
	return nil, unix.EINVAL
}
