package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
)

// Context is this process's use of a device. The objects created in it are destroyed with it.
type Context struct {
	Kernel
	opened bool
	pd     uint32
	hasPD  bool
	events int // file of asynchronous events
	mapped [][]byte
}

// Call makes a call. The kernel's driver has the time limit of commands to the device.
func (c *Context) Call(object, method uint16, attrs []Attr) error {
	err := c.Kernel.Call(object, method, attrs)
	if errors.Is(err, unix.ETIMEDOUT) {
		return fmt.Errorf("%w: %w", bus.ErrTimeout, err)
	}
	return tooOld(err)
}

// in, out are attributes with data, number one with a number.
func in(id uint16, data []byte) Attr  { return Attr{ID: id, Kind: In, Data: data} }
func out(id uint16, data []byte) Attr { return Attr{ID: id, Kind: Out, Data: data} }

func number[T uint32 | uint64](id uint16, v T) Attr { return in(id, Bytes(&v)) }

// driverData appends the driver's part of a call. Either may be nil.
func driverData(attrs []Attr, request, response []byte) []Attr {
	if request != nil {
		attrs = append(attrs, in(abi.AttrUHWIn, request))
	}
	if response != nil {
		attrs = append(attrs, out(abi.AttrUHWOut, response))
	}
	return attrs
}

// Begin opens the context with the driver's own request and response, and enables asynchronous events.
func (c *Context) Begin(request, response []byte) error {
	var vectors uint32
	var support uint64
	attrs := driverData([]Attr{out(abi.AttrGetContextNumCompVectors, Bytes(&vectors)),
		out(abi.AttrGetContextCoreSupport, Bytes(&support))}, request, response)
	if err := c.Call(abi.ObjectDevice, abi.MethodGetContext, attrs); err != nil {
		return fmt.Errorf("open a context: %w", err)
	}
	events := []Attr{{ID: abi.AttrAsyncEventAllocFDHandle, Kind: NewFD}}
	if err := c.Call(abi.ObjectAsyncEvent, abi.MethodAsyncEventAlloc, events); err != nil {
		return fmt.Errorf("open the event file: %w", err)
	}
	c.opened, c.events = true, int(events[0].Value)
	return unix.SetNonblock(c.events, true)
}

// Write makes a call of the older interface. Any of the last four may be nil.
func (c *Context) Write(command uint32, core, answer, request, response []byte) error {
	attrs := []Attr{{ID: abi.AttrWriteCmd, Kind: Const, Value: int64(command)}}
	if core != nil {
		attrs = append(attrs, in(abi.AttrCoreIn, core))
	}
	if answer != nil {
		attrs = append(attrs, out(abi.AttrCoreOut, answer))
	}
	return c.Call(abi.ObjectDevice, abi.MethodInvokeWrite, driverData(attrs, request, response))
}

// AllocPD allocates the protection domain of everything on this context.
func (c *Context) AllocPD(response []byte) error {
	var r abi.AllocPDResp
	if err := c.Write(abi.CmdAllocPD, Bytes(&abi.AllocPD{}), Bytes(&r), nil, response); err != nil {
		return fmt.Errorf("allocate a protection domain: %w", err)
	}
	c.pd, c.hasPD = r.PDHandle, true
	return nil
}

const localWrite = 1 << 0 // IB_ACCESS_LOCAL_WRITE

func (c *Context) register(b []byte) (region, error) {
	if !c.hasPD {
		return region{}, errors.New("no protection domain")
	}
	base := uint64(uintptr(unsafe.Pointer(&b[0])))
	q := abi.RegMR{Start: base, Length: uint64(len(b)), HCAVA: base, PDHandle: c.pd, AccessFlags: localWrite}
	var r abi.RegMRResp
	err := c.Write(abi.CmdRegMR, Bytes(&q), Bytes(&r), nil, nil)
	return region{base, uint64(len(b)), r.MRHandle, r.LKey}, err
}

func (c *Context) deregister(handle uint32) error {
	return c.Write(abi.CmdDeregMR, Bytes(&abi.DeregMR{MRHandle: handle}), nil, nil, nil)
}

// CreateCQ creates a completion queue of at least entries entries, without interrupts, and returns its handle and size.
// It uses the ioctl method, because the older call fails (EOPNOTSUPP) on Linux 7.3 for drivers that can use the
// process's memory for the queue, such as efa.
func (c *Context) CreateCQ(entries uint32, request, response []byte) (handle, size uint32, err error) {
	attrs := driverData([]Attr{
		{ID: abi.AttrCreateCQHandle, Kind: Create},
		number(abi.AttrCreateCQCQE, entries), number[uint64](abi.AttrCreateCQUserHandle, 0),
		number[uint32](abi.AttrCreateCQCompVector, 0),
		out(abi.AttrCreateCQRespCQE, Bytes(&size)), {ID: abi.AttrCreateCQEventFD, Kind: FD, Value: int64(c.events)},
	}, request, response)
	if err := c.Call(abi.ObjectCQ, abi.MethodCQCreate, attrs); err != nil {
		return 0, 0, fmt.Errorf("create a completion queue of %d entries: %w", entries, noMemory(err))
	}
	return uint32(attrs[0].Value), size, nil
}

// CreateAH makes an address handle for a GID of port 1.
func (c *Context) CreateAH(gid netip.Addr, response []byte) (handle uint32, err error) {
	q := abi.CreateAH{PDHandle: c.pd, Attr: abi.AHAttr{GRH: abi.GlobalRoute{DGID: gid.As16()}, IsGlobal: 1, PortNum: 1}}
	var r abi.CreateAHResp
	err = c.Write(abi.CmdCreateAH, Bytes(&q), Bytes(&r), nil, response)
	return r.AHHandle, err
}

// DestroyAH undoes CreateAH.
func (c *Context) DestroyAH(handle uint32) error {
	return c.Write(abi.CmdDestroyAH, Bytes(&abi.DestroyAH{AHHandle: handle}), nil, nil, nil)
}

// Mapped maps the memory for a key in a response, up to the end of its last page. Close unmaps it.
func (c *Context) Mapped(key uint64, size int, write bool) ([]byte, error) {
	page := os.Getpagesize()
	b, err := c.Map(key, (size+page-1)&^(page-1), write)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of the device: %w", size, err)
	}
	c.mapped = append(c.mapped, b)
	return b, nil
}

// Queue pairs: types, states, and the attributes of ModifyQP (ib_qp_type, ib_qp_state, ib_qp_attr_mask).
const (
	QPTypeUD        = 4
	QPTypeRawPacket = 8
	QPTypeDriver    = 0xFF

	QPStateReset = 0
	QPStateInit  = 1
	QPStateRTR   = 2
	QPStateRTS   = 3

	QPMaskState     = 1 << 0
	QPMaskPKeyIndex = 1 << 4
	QPMaskPort      = 1 << 5
	QPMaskQKey      = 1 << 6
	QPMaskRNRRetry  = 1 << 11
	QPMaskSQPSN     = 1 << 16
)

// CreateQP creates a queue pair in this context's protection domain.
func (c *Context) CreateQP(q abi.CreateQP, request, response []byte) (r abi.CreateQPResp, err error) {
	q.PDHandle = c.pd
	return r, noMemory(c.Write(abi.CmdCreateQP, Bytes(&q), Bytes(&r), request, response))
}

// ModifyQP changes a queue pair.
func (c *Context) ModifyQP(q abi.ModifyQP) error {
	return c.Write(abi.CmdModifyQP, Bytes(&q), nil, nil, nil)
}

// QueryQP returns the state of a queue pair. The kernel asks the card for it.
func (c *Context) QueryQP(handle uint32) (r abi.QueryQPResp, err error) {
	return r, c.Write(abi.CmdQueryQP, Bytes(&abi.QueryQP{QPHandle: handle, AttrMask: QPMaskState}), Bytes(&r), nil, nil)
}

// QueryDevice returns the device's limits. response receives the driver's part.
func (c *Context) QueryDevice(response []byte) (abi.QueryDeviceResp, error) {
	var r abi.ExQueryDeviceResp
	err := c.Write(abi.CmdQueryDevice|abi.CmdFlagExtended, Bytes(&abi.ExQueryDevice{}), Bytes(&r), nil, response)
	return r.Base, err
}

// QueryPort returns the state of a port.
func (c *Context) QueryPort(port uint8) (r abi.QueryPortResp, err error) {
	return r, c.Write(abi.CmdQueryPort, Bytes(&abi.QueryPort{PortNum: port}), Bytes(&r), nil, nil)
}

// Events that end a context.
const (
	EventQPFatal     = 1
	EventDeviceFatal = 8
)

// Event returns the next asynchronous event, false if there is none.
func (c *Context) Event() (abi.AsyncEventDesc, bool) {
	var e abi.AsyncEventDesc
	if !c.opened {
		return e, false
	}
	n, err := unix.Read(c.events, Bytes(&e))
	return e, err == nil && n == int(unsafe.Sizeof(e))
}

func (c *Context) close() error {
	var errs []error
	if c.opened {
		errs = append(errs, unix.Close(c.events))
	}
	for _, b := range c.mapped { // a mapping keeps the device open
		errs = append(errs, c.Unmap(b))
	}
	errs = append(errs, c.Kernel.Close())
	return errors.Join(errs...)
}
