package mlx5

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// This file is the part of the simulated kernel for contexts without DEVX.

func (c *context) openRaw(q *abi.MLX5AllocUcontextReqV2, r *abi.MLX5AllocUcontextResp) (err error) {
	c.td, _, err = c.create(command(opAllocTD, 0, 0x10), opDeallocTD, 23)
	d := c.host
	*r = abi.MLX5AllocUcontextResp{QPTabSize: 1 << 18, BfRegSize: 2 * d.caps.bfHalf, CacheLineSize: 64,
		MaxSQDescSz: uint16(d.caps.maxWQE), MaxRQDescSz: 512,
		MaxSendWQEBB: 1 << d.caps.logMaxWQ, MaxRecvWR: 1 << d.caps.logMaxWQ, NumPorts: 1,
		CQEVersion: min(q.MaxCQEVersion, 1), EthMinInline: uint8(d.minInline + 1)}
	if c.NoWC {
		r.BfRegSize = 0
	}
	if c.Answer != nil {
		c.Answer(r)
	}
	return err
}

// ring adds the pages of a queue's memory to a command.
func (c *context) ring(in message, at, length uint64) (message, error) {
	iova, err := c.regions.Device(at, length)
	if err != nil || iova%4096 != 0 {
		c.Errorf("%d bytes of a queue at %#x: %v", length, at, err)
		return in, unix.EFAULT
	}
	return in.pages(iova, int(length)), nil
}

func power(n uint32) bool { return n&(n-1) == 0 }

func (c *context) createCQ(attrs []verbs.Attr) error {
	own := rig.As[abi.MLX5CreateCQ](rig.Data(attrs, abi.AttrUHWIn))
	entries := binary.NativeEndian.Uint32(rig.Data(attrs, abi.AttrCreateCQCQE)) + 1
	if own.Flags != abi.MLX5CreateCQFlagsUARPageIndex || own.CQESize != 64 || own.CQECompEn != 0 || !power(entries) {
		c.Errorf("a completion queue of %d entries: %+v", entries, own)
		return unix.EINVAL
	}
	in := command(opCreateCQ, 0, 0x110)
	record, err := c.regions.Device(own.DBAddr, 8)
	if err != nil {
		return err
	}
	in.at(0x10).set("log_cq_size", 0x0C, 28, 24, log2(entries)).set("uar_page", 0x0C, 23, 0,
		uint32(own.UARPageIndex)).set("c_eqn", 0x14, 31, 0, c.eqn).set64(0x38, record)
	if in, err = c.ring(in, own.BufAddr, uint64(entries)*64); err != nil {
		return err
	}
	cqn, handle, err := c.create(in, opDestroyCQ, 23)
	if err != nil {
		return err
	}
	c.cqs[handle] = cqn
	rig.CreatedCQ(attrs, handle, entries-c.Shorter)
	rig.As[abi.MLX5CreateCQResp](rig.Data(attrs, abi.AttrUHWOut)).CQN = cqn
	return nil
}

// workQueue creates a send or receive queue of entries of 2^shift bytes, whose other properties are in the command.
func (c *context) workQueue(in message, destroy opcode, cqn, uar, entries, shift uint32, at,
	record uint64) (number uint32, err error) {
	dbr, err := c.regions.Device(record, 8)
	if err != nil {
		return 0, err
	}
	ctx := in.at(0x20).set("cqn", 0x08, 23, 0, cqn)
	ctx.at(0x30).set("wq_type", 0x00, 31, 28, 1).set("pd", 0x08, 23, 0, c.pd).set("uar_page", 0x0C, 23, 0,
		uar).set64(0x10, dbr).
		set("log_wq_stride", 0x20, 19, 16, shift).set("log_wq_sz", 0x20, 4, 0, log2(entries))
	if in, err = c.ring(in, at, uint64(entries)<<shift); err == nil {
		number, _, err = c.create(in, destroy, 23)
	}
	return number, err
}

func (c *context) createQP(q *abi.CreateQP, own *abi.MLX5CreateQP, r *abi.CreateQPResp) error {
	switch {
	case c.NoRaw:
		return unix.EPERM
	case q.QPType != verbs.QPTypeRawPacket, own.Flags != abi.MLX5QPFlagUARPageIndex, own.UIdx >= 1<<24-1,
		!power(own.SQWQECount), !power(own.RQWQECount),
		own.SQWQECount+own.RQWQECount == 0, (q.MaxRecvWR == 0) != (own.RQWQECount == 0), own.RQWQECount == 0 &&
			own.RQWQEShift != 0, c.host.caps.logMaxWQ < log2(max(own.SQWQECount, 1)):
		c.Errorf("create a queue pair: %+v %+v", q, own)
		return unix.EINVAL
	}
	u := &userQP{}
	var err error
	if own.SQWQECount > 0 {
		in := command(opCreateTIS, 0, 0xC0)
		in.at(0x20).set("transport_domain", 0x24, 23, 0, c.td)
		if u.tis, _, err = c.create(in, opDestroyTIS, 23); err != nil {
			return err
		}
		in = command(opCreateSQ, 0, 0x110)
		in.at(0x20).set("flush_in_error_en", 0x00, 28, 28, 1).set("tis_lst_sz", 0x20, 31, 16, 1).set("tis_num_0", 0x2C,
			23, 0, u.tis)
		if u.sqn, err = c.workQueue(in, opDestroySQ, c.cqs[q.SendCQHandle], own.BFRegIndex, own.SQWQECount, 6,
			own.SQBufAddr, own.DBAddr); err != nil {
			return err
		}
	}
	if own.RQWQECount > 0 {
		in := command(opCreateRQ, 0, 0x110)
		// Linux sets the counters when the queue becomes ready.
		in.at(0x20).set("counter_set_id", 0x0C, 31, 24, c.counter).set("vsd", 0x00, 28, 28, 1).set("flush_in_error_en",
			0x00, 18, 18, 1)
		if u.rqn, err = c.workQueue(in, opDestroyRQ, c.cqs[q.RecvCQHandle], 0, own.RQWQECount, own.RQWQEShift,
			own.BufAddr, own.DBAddr); err != nil {
			return err
		}
		in = command(opCreateTIR, 0, 0x110)
		in.at(0x20).set("inline_rqn", 0x1C, 23, 0, u.rqn).set("transport_domain", 0x24, 23, 0, c.td)
		if u.tir, _, err = c.create(in, opDestroyTIR, 23); err != nil {
			return err
		}
	}
	handle := c.Add(func() error { return c.toState(u, verbs.QPStateReset) })
	c.qps[handle] = u
	*r = abi.CreateQPResp{QPHandle: handle, QPN: u.sqn, MaxSendWR: own.SQWQECount, MaxRecvWR: own.RQWQECount}
	if u.sqn == 0 {
		r.QPN = u.rqn
	}
	return nil
}

// toState moves the queues of a queue pair as mlx5_ib does: the receive queue is ready from Init, the send queue from
// Ready to Send.
func (c *context) toState(u *userQP, to uint8) error {
	was := u.state
	u.state = to
	switch {
	case to == verbs.QPStateReset && was == verbs.QPStateReset, to == verbs.QPStateRTR:
		return nil
	case to == verbs.QPStateReset:
		if u.rqn != 0 {
			return c.host.modify(opModifyRQ, u.rqn, stateRDY, stateRST)
		}
		from := u.sqState
		u.sqState = stateRST
		if from == stateRST {
			return nil
		}
		return c.host.modify(opModifySQ, u.sqn, from, stateRST)
	case to == verbs.QPStateInit && u.rqn != 0:
		return c.host.modify(opModifyRQ, u.rqn, stateRST, stateRDY)
	case to == verbs.QPStateRTS && u.sqn != 0:
		u.sqState = stateRDY
		return c.host.modify(opModifySQ, u.sqn, stateRST, stateRDY)
	}
	return nil
}

func (c *context) modifyQP(m *abi.ModifyQP) error {
	u := c.qps[m.QPHandle]
	if u == nil {
		return unix.EINVAL
	}
	if err := c.Allows(m, u.state); err != nil {
		return err
	}
	if err := c.toState(u, m.QPState); err != nil {
		return fmt.Errorf("%w: %w", unix.EINVAL, err)
	}
	return nil
}

// queryQP asks the card for the state of the send queue.
func (c *context) queryQP(q *abi.QueryQP, r *abi.QueryQPResp) error {
	u := c.qps[q.QPHandle]
	if u == nil {
		return unix.EINVAL
	}
	if u.sqn != 0 {
		out, err := c.host.exec(command(opQuerySQ, 0, 0x10).set("sqn", 0x08, 23, 0, u.sqn), 0x110)
		if err != nil {
			return err
		}
		u.sqState = out.get(0x20, 23, 20)
	}
	r.QPState = u.state
	return nil
}
