package verbs

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
)

// DevX has the calls of the mlx5 driver that pass commands to the card's firmware, and those that steer frames to the
// created objects. Doorbell pages and rules do not need DEVX, and can belong to queue pairs for raw packets.
type DevX struct{ *Context }

// Begin opens the context, with DEVX if devx is set. The kernel returns EINVAL if the firmware has no user contexts for
// that. Without CAP_NET_RAW the context cannot create send queues or rules.
func (d DevX) Begin(devx bool) (r abi.MLX5AllocUcontextResp, err error) {
	q := abi.MLX5AllocUcontextReqV2{MaxCQEVersion: 1, LibCaps: abi.MLX5LibCap4KUAR | abi.MLX5LibCapDynUAR}
	if devx {
		q.Flags = abi.MLX5AllocUctxDevX
	}
	return r, d.Context.Begin(Bytes(&q), Bytes(&r))
}

// AllocPD allocates the protection domain and returns its number for commands.
func (d DevX) AllocPD() (uint32, error) {
	var r abi.MLX5AllocPDResp
	err := d.Context.AllocPD(Bytes(&r))
	return r.PDN, err
}

// Query passes a command that is of no object.
func (d DevX) Query(command, answer []byte) error {
	return d.Call(abi.MLX5ObjectDevX, abi.MLX5MethodDevXOther,
		[]Attr{in(abi.MLX5AttrDevXOtherCmdIn, command), out(abi.MLX5AttrDevXOtherCmdOut, answer)})
}

// EQN returns the number of the kernel's event queue of its first completion vector.
func (d DevX) EQN() (eqn uint32, err error) {
	err = d.Call(abi.MLX5ObjectDevX, abi.MLX5MethodDevXQueryEQN,
		[]Attr{number[uint32](abi.MLX5AttrDevXQueryEQNUserVec, 0),
			out(abi.MLX5AttrDevXQueryEQNDevEQN, Bytes(&eqn))})
	return eqn, err
}

// Create passes a command that creates an object, and returns the kernel's handle. The object is destroyed with the
// context.
func (d DevX) Create(command, answer []byte) (handle uint32, err error) {
	attrs := []Attr{{ID: abi.MLX5AttrDevXObjCreateHandle, Kind: Create}, in(abi.MLX5AttrDevXObjCreateCmdIn, command),
		out(abi.MLX5AttrDevXObjCreateCmdOut, answer)}
	err = d.Call(abi.MLX5ObjectDevXObj, abi.MLX5MethodDevXObjCreate, attrs)
	return uint32(attrs[0].Value), err
}

// Modify passes a command that changes an object.
func (d DevX) Modify(handle uint32, command, answer []byte) error {
	return d.object(abi.MLX5MethodDevXObjModify, handle, command, answer)
}

// Ask passes a command that queries an object.
func (d DevX) Ask(handle uint32, command, answer []byte) error {
	return d.object(abi.MLX5MethodDevXObjQuery, handle, command, answer)
}

// object passes a command of an object. The attributes of both methods are the same.
func (d DevX) object(method uint16, handle uint32, command, answer []byte) error {
	return d.Call(abi.MLX5ObjectDevXObj, method, []Attr{{ID: abi.MLX5AttrDevXObjModifyHandle, Kind: Handle,
		Value: int64(handle)},
		in(abi.MLX5AttrDevXObjModifyCmdIn, command), out(abi.MLX5AttrDevXObjModifyCmdOut, answer)})
}

// RegisterUmem registers memory of the process for a ring, which has to begin where it does, or for doorbell records,
// and returns its ID.
func (d DevX) RegisterUmem(base, size uint64) (id uint32, err error) {
	attrs := []Attr{{ID: abi.MLX5AttrDevXUmemRegHandle, Kind: Create}, number(abi.MLX5AttrDevXUmemRegAddr, base),
		number(abi.MLX5AttrDevXUmemRegLen, size),
		number[uint32](abi.MLX5AttrDevXUmemRegAccess, localWrite), out(abi.MLX5AttrDevXUmemRegOutID, Bytes(&id))}
	if err = d.Call(abi.MLX5ObjectDevXUmem, abi.MLX5MethodDevXUmemReg, attrs); err != nil {
		return 0, fmt.Errorf("register %d bytes for queues: %w", size, noMemory(err))
	}
	return id, nil
}

// AllocUAR allocates a page of doorbells and maps it, write-combining or not. number is the firmware's number of the
// page.
func (d DevX) AllocUAR(combining bool) (page []byte, number uint32, err error) {
	kind := int64(abi.MLX5UAPIUARAllocTypeNC)
	if combining {
		kind = abi.MLX5UAPIUARAllocTypeBF
	}
	var offset uint64
	var length uint32
	err = d.Call(abi.MLX5ObjectUAR, abi.MLX5MethodUARObjAlloc, []Attr{{ID: abi.MLX5AttrUARObjAllocHandle, Kind: Create},
		{ID: abi.MLX5AttrUARObjAllocType, Kind: Const, Value: kind},
		out(abi.MLX5AttrUARObjAllocMmapOffset, Bytes(&offset)),
		out(abi.MLX5AttrUARObjAllocMmapLength, Bytes(&length)), out(abi.MLX5AttrUARObjAllocPageID, Bytes(&number))})
	if err != nil {
		return nil, 0, fmt.Errorf("allocate a page of doorbells: %w", err)
	}
	page, err = d.Mapped(offset, int(length), true)
	return page, number, err
}

// Matcher creates a set of rules that match frames by the bits of mask. criteria selects the parts of mask that are
// used (match_criteria_enable). The rules take precedence over all of the kernel's.
func (d DevX) Matcher(mask []byte, criteria uint8, priority uint16) (handle uint32, err error) {
	attrs := []Attr{{ID: abi.MLX5AttrFlowMatcherCreateHandle, Kind: Create}, in(abi.MLX5AttrFlowMatcherMatchMask, mask),
		{ID: abi.MLX5AttrFlowMatcherFlowType, Kind: Enum, Value: abi.MLX5FlowTypeNormal, Data: Bytes(&priority)},
		in(abi.MLX5AttrFlowMatcherMatchCriteria, []byte{criteria})}
	err = d.Call(abi.MLX5ObjectFlowMatcher, abi.MLX5MethodFlowMatcherCreate, attrs)
	return uint32(attrs[0].Value), err
}

// Rule sends frames that match value to an object, a TIR. Frames that match no rule go on to the kernel.
func (d DevX) Rule(matcher uint32, value []byte, to uint32) error {
	return d.rule(matcher, value, abi.MLX5AttrCreateFlowDestDevX, to)
}

// RuleToQP sends frames that match value to a queue pair for raw packets.
func (d DevX) RuleToQP(matcher uint32, value []byte, qp uint32) error {
	return d.rule(matcher, value, abi.MLX5AttrCreateFlowDestQP, qp)
}

func (d DevX) rule(matcher uint32, value []byte, destination uint16, to uint32) error {
	return d.Call(abi.ObjectFlow, abi.MLX5MethodCreateFlow, []Attr{{ID: abi.MLX5AttrCreateFlowHandle, Kind: Create},
		in(abi.MLX5AttrCreateFlowMatchValue, value), {ID: destination, Kind: Handle, Value: int64(to)},
		{ID: abi.MLX5AttrCreateFlowMatcher, Kind: Handle, Value: int64(matcher)}})
}
