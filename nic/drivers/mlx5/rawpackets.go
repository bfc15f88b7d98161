package mlx5

import (
	"errors"
	"fmt"
	"math/bits"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/kit/beside"
)

// rawPackets is the maker for firmware without user contexts: the kernel creates queue pairs for raw packets in this
// process's memory. A queue is one that only receives and one that only sends, so that each has its own doorbell
// record, and sends can be reset alone.
type rawPackets struct {
	*shared
	answer abi.MLX5AllocUcontextResp
	device abi.QueryDeviceResp
	cqs    map[uint32]uint32 // the kernel's handles by number
	qps    map[uint32]uint32 // likewise, by the number of the receive or send queue
}

const noContexts = "the firmware has no user contexts (mlxconfig UCTX_EN=1)"

// openRaw opens a context without DEVX.
func (s *shared) openRaw() error {
	answer, err := s.begun(false)
	if err != nil {
		return err
	}
	device, err := s.ctx.QueryDevice(nil)
	if err != nil {
		return s.card.Errorf("query the device: %w", err)
	}
	switch n := s.card.Options.Queues; {
	case device.DeviceCapFlags&abi.DeviceManagedFlowSteering == 0:
		return s.card.Errorf("%w: neither has the firmware user contexts (mlxconfig -d %s set UCTX_EN=1, then mlxfwreset) nor can it chain flow tables: update it, or use driver xdp",
			errors.ErrUnsupported, s.fn.Function.Address)
	case answer.CQEVersion == 0:
		return s.card.Errorf("%w: neither user contexts (mlxconfig -d %s set UCTX_EN=1, then mlxfwreset) nor completions of version 1, which queue pairs for raw packets need: "+
			"use driver xdp", errors.ErrUnsupported, s.fn.Function.Address)
	case n > 1:
		return s.card.Errorf("%w: %d queue pairs: there is one, because %s (cpu.cores: give one)",
			errors.ErrUnsupported, n, noContexts)
	}
	s.raw = &rawPackets{shared: s, answer: answer, device: device, cqs: map[uint32]uint32{}, qps: map[uint32]uint32{}}
	s.make = s.raw
	return nil
}

// learn sets the capabilities that the kernel reports. It does not report whether the parser distinguishes types of
// ICMP.
func (r *rawPackets) learn() error {
	a := &r.answer
	r.caps = capabilities{maxWQE: uint32(a.MaxSQDescSz), bfHalf: a.BfRegSize / 2,
		logMaxCQ: uint32(bits.Len32(r.device.MaxCQE)), logMaxWQ: uint32(max(bits.Len32(a.MaxSendWQEBB), 1) - 1)}
	if n := a.BfRegSize; n != 0 && (n < 128 || n&(n-1) != 0 || uarBF+n > uarPage) {
		return r.card.Errorf("%w: BlueFlame registers of %d bytes", nic.ErrHardware, n)
	}
	return nil
}

// setInline sets the minimum inline mode that the kernel reports; an older kernel does not.
func (r *rawPackets) setInline() error {
	if r.minInline = minInlineL2; r.answer.EthMinInline >= abi.MLX5UserInlineModeNone {
		r.minInline = uint32(r.answer.EthMinInline) - abi.MLX5UserInlineModeNone
	}
	if r.minInline > minInlineTCP {
		return r.card.Errorf("%w: the kernel reports minimum inline mode %d, expected 0 to 3", nic.ErrHardware,
			r.minInline)
	}
	return nil
}

func (r *rawPackets) common() (err error) {
	if r.uar, err = r.allocUAR(); err != nil {
		return err
	}
	if r.uar.number > 0xFFFF {
		return r.card.Errorf("%w: doorbell page %#x, the kernel takes numbers of 16 bits for a completion queue",
			nic.ErrHardware, r.uar.number)
	}
	return nil
}

// completions creates a completion queue. The kernel has one entry more than asked for, and rounds up to a power of
// two.
func (r *rawPackets) completions(b dma.Block, entries uint32, record dma.Block) (uint32, error) {
	ask := abi.MLX5CreateCQ{BufAddr: b.IOVA, DBAddr: record.IOVA, CQESize: cqeSize,
		Flags: abi.MLX5CreateCQFlagsUARPageIndex, UARPageIndex: uint16(r.uar.number)}
	var made abi.MLX5CreateCQResp
	handle, size, err := r.ctx.CreateCQ(entries-1, verbs.Bytes(&ask), verbs.Bytes(&made))
	switch {
	case err != nil:
		return 0, r.card.Errorf("%w", err)
	case size != entries-1:
		return 0, r.card.Errorf("%w: a completion queue of %d entries, expected %d", nic.ErrHardware, size, entries-1)
	}
	r.cqs[made.CQN] = handle
	return made.CQN, nil
}

func (r *rawPackets) sends(q *Queue, b, record dma.Block) (err error) {
	q.sqn, err = r.createQP(abi.CreateQP{MaxSendWR: q.txMask + 1},
		abi.MLX5CreateQP{SQBufAddr: b.IOVA, DBAddr: record.IOVA, SQWQECount: q.txMask + 1}, q)
	return err
}

func (r *rawPackets) receives(q *Queue, b, record dma.Block) (err error) {
	q.rqn, err = r.createQP(abi.CreateQP{MaxRecvWR: q.mask + 1},
		abi.MLX5CreateQP{BufAddr: b.IOVA, DBAddr: record.IOVA, RQWQECount: q.mask + 1, RQWQEShift: log2(rxWQE)}, q)
	return err
}

// createQP creates a queue pair with a send queue or a receive queue, and returns that queue's number.
func (r *rawPackets) createQP(ask abi.CreateQP, own abi.MLX5CreateQP, q *Queue) (uint32, error) {
	ask.QPType, ask.MaxSendSGE, ask.MaxRecvSGE = verbs.QPTypeRawPacket, 1, 1
	ask.SendCQHandle, ask.RecvCQHandle = r.cqs[q.txCQN], r.cqs[q.rxCQN]
	own.Flags, own.BFRegIndex = abi.MLX5QPFlagUARPageIndex, q.uar.number
	made, err := r.ctx.CreateQP(ask, verbs.Bytes(&own), nil)
	switch {
	case errors.Is(err, unix.EPERM):
		return 0, r.card.Errorf("create a queue pair for raw packets: %w: %w (CAP_NET_RAW)", nic.ErrRights, err)
	case err != nil:
		return 0, r.card.Errorf("create a queue pair for raw packets: %w", err)
	}
	r.qps[made.QPN] = made.QPHandle
	return made.QPN, nil
}

// ready makes both queues ready. The kernel starts a receive queue in state Init, and a send queue in state Ready to
// Send.
func (r *rawPackets) ready(q *Queue) error {
	if err := r.startSends(q); err != nil {
		return err
	}
	return r.modify(q.rqn, r.toInit())
}

func (r *rawPackets) toInit() abi.ModifyQP {
	return abi.ModifyQP{AttrMask: verbs.QPMaskState | verbs.QPMaskPort, QPState: verbs.QPStateInit, PortNum: onePort}
}

// onePort is the number of the port of an RDMA device of this kind.
const onePort = 1

func (r *rawPackets) startSends(q *Queue) error {
	return r.modify(q.sqn, r.toInit(), abi.ModifyQP{AttrMask: verbs.QPMaskState, QPState: verbs.QPStateRTR},
		abi.ModifyQP{AttrMask: verbs.QPMaskState, QPState: verbs.QPStateRTS})
}

// stopSends resets the send queue. The kernel does not know of an error before it queries the queue, and would name
// another state to the firmware.
func (r *rawPackets) stopSends(q *Queue) error {
	if _, err := r.ctx.QueryQP(r.qps[q.sqn]); err != nil {
		return r.refused("query", q.sqn, err)
	}
	return r.modify(q.sqn, abi.ModifyQP{AttrMask: verbs.QPMaskState, QPState: verbs.QPStateReset})
}

func (r *rawPackets) modify(number uint32, to ...abi.ModifyQP) error {
	for _, m := range to {
		m.QPHandle = r.qps[number]
		if err := r.ctx.ModifyQP(m); err != nil {
			return r.refused(fmt.Sprintf("state %d", m.QPState), number, err)
		}
	}
	return nil
}

// refused is the error of a call for a queue pair.
func (r *rawPackets) refused(what string, number uint32, err error) error {
	if errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODEV) {
		return r.card.Errorf("queue pair %#x: %s: %w: the kernel took the device away: %w", number, what,
			nic.ErrHardware, err)
	}
	return r.card.Errorf("queue pair %#x: %s: %w", number, what, err)
}

// dropped returns how many frames found no buffer: on the port, for all its RDMA queues.
func (r *rawPackets) dropped() uint64 { return r.outOfBuffer.Read(beside.OutOfBuffer(r.fn, onePort)) }
