package mlx5

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
)

func (c *context) of(in message) message { return in.set("uid", 0x00, 15, 0, c.uid) }

// pass executes a command of the context. If the firmware refuses it, the result is EREMOTEIO with the answer, as in
// Linux.
func (c *context) pass(in, answer []byte) error {
	out, err := c.host.commands.send(c.of(append(message{}, in...)), len(answer))
	copy(answer, out)
	if refused(err) {
		return unix.EREMOTEIO
	}
	return err
}

func hugePages(in message, iova, length uint64) message {
	for off := uint64(0); off < length; off += 1 << hugeShift {
		in = binary.BigEndian.AppendUint64(in, iova+off)
	}
	return in
}

func (c *context) devx(method uint16, attrs []verbs.Attr) error {
	in := message(attrs[1].Data)
	if method != abi.MLX5MethodDevXObjCreate {
		o := c.objects[uint32(attrs[0].Value)]
		at, hi := 0x08, 23
		if in.opcode() == opQueryQCounter {
			at, hi = 0x1C, 7
		}
		if o == (object{}) || in.get(at, hi, 0) != o.number {
			c.Errorf("%v of handle %d, which is %+v", in.opcode(), attrs[0].Value, o)
			return unix.EINVAL
		}
		return c.pass(in, attrs[2].Data)
	}
	destroy, hi := opcode(0), 23
	switch in.opcode() { // devx_set_umem_valid, and the command that destroys the object
	case opCreateCQ:
		destroy = opDestroyCQ
		in.set("cq_umem_valid", 0x5C, 31, 31, 1).set("dbr_umem_valid", 0x10, 25, 25, 1)
	case opCreateSQ, opCreateRQ:
		if destroy = opDestroySQ; in.opcode() == opCreateRQ {
			destroy = opDestroyRQ
		}
		in.set("dbr_umem_valid", 0x74, 31, 31, 1).set("wq_umem_valid", 0x74, 30, 30, 1)
	case opCreateTIR:
		destroy = opDestroyTIR
	case opCreateTIS:
		destroy = opDestroyTIS
	case opCreateRQT:
		destroy = opDestroyRQT
	case opAllocTD:
		destroy = opDeallocTD
	case opAllocQCounter:
		destroy, hi = opDeallocQCounter, 7
	default:
		c.Errorf("%v is not for OBJ_CREATE", in.opcode())
		return unix.EINVAL
	}
	if err := c.pass(in, attrs[2].Data); err != nil {
		return err
	}
	n := message(attrs[2].Data).get(0x08, hi, 0)
	attrs[0].Value = int64(c.Add(func() error {
		return c.host.run(c.of(command(destroy, 0, 0x10)).set("number", 0x08, hi, 0, n))
	}))
	c.objects[uint32(attrs[0].Value)] = object{destroy, n}
	return nil
}

// umem registers memory as Linux before 5.12 does: in the largest pages, and without the attribute that limits their
// size.
func (c *context) umem(attrs []verbs.Attr) error {
	if attrs[len(attrs)-1].ID > abi.MLX5AttrDevXUmemRegOutID {
		return unix.EPROTONOSUPPORT
	}
	start, length := binary.NativeEndian.Uint64(attrs[1].Data), binary.NativeEndian.Uint64(attrs[2].Data)
	iova, err := c.pin(start, length)
	if err != nil {
		return err
	}
	off := start & (1<<hugeShift - 1)
	in := c.of(command(0xA08, 0, 0x30)).set("log_page_size", 0x20, 4, 0, hugeShift-12).set("page_offset", 0x24, 31, 0,
		uint32(off)).
		set64(0x28, (off+length+1<<hugeShift-1)>>hugeShift)
	id, handle, err := c.create(hugePages(in, iova-off, off+length), 0xA0A, 23)
	attrs[0].Value = int64(handle)
	binary.NativeEndian.PutUint32(attrs[4].Data, id)
	return err
}

func (c *context) uar(attrs []verbs.Attr) error {
	if c.NoWC && attrs[1].Value == abi.MLX5UAPIUARAllocTypeBF {
		return unix.EOPNOTSUPP
	}
	if c.NoPages || c.NoFlames && attrs[1].Value == abi.MLX5UAPIUARAllocTypeBF {
		return unix.ENOMEM
	}
	n, handle, err := c.create(c.of(command(opAllocUAR, 0, 0x10)), opDeallocUAR, 23)
	if err != nil {
		return err
	}
	p, err := c.host.wc.Pointer(uint64(n)*uarPage, uarPage)
	if err != nil {
		return err
	}
	key := uint64(n) << 12
	c.pages[key] = unsafe.Slice((*byte)(p), uarPage)
	attrs[0].Value = int64(handle)
	binary.NativeEndian.PutUint64(attrs[2].Data, key)
	binary.NativeEndian.PutUint32(attrs[3].Data, uarPage)
	binary.NativeEndian.PutUint32(attrs[4].Data, n)
	return nil
}

// flow inserts a rule into the table before the kernel's, in a separate group.
func (c *context) flow(attrs []verbs.Attr) error {
	if c.NoRaw {
		return unix.EPERM
	}
	matcher := uint32(attrs[3].Value)
	tir := c.objects[uint32(attrs[2].Value)]
	if qp := c.qps[uint32(attrs[2].Value)]; attrs[2].ID == abi.MLX5AttrCreateFlowDestQP && qp != nil && qp.tir != 0 {
		tir = object{opDestroyTIR, qp.tir}
	}
	if c.masks[matcher] == nil || tir.destroy != opDestroyTIR {
		return unix.EINVAL
	}
	at := c.rules % (1 << rootLogSize)
	c.rules++
	in := c.bypass.command(opCreateFlowGroup, 0x400).set("start_flow_index", 0x1C, 31, 0, at).set("end_flow_index",
		0x24, 31, 0, at).
		set("match_criteria_enable", 0x3C, 7, 0, uint32(c.enable[matcher]))
	copy(in[0x40:], c.masks[matcher])
	out, err := c.host.exec(in, 0x10)
	if err != nil {
		return fmt.Errorf("%w: %w", unix.EINVAL, err)
	}
	group := out.get(0x08, 23, 0)
	c.Add(func() error {
		return c.host.run(c.bypass.command(opDestroyFlowGroup, 0x40).set("group_id", 0x18, 31, 0, group))
	})
	in = c.bypass.command(opSetFlowEntry, 0x348).set("flow_index", 0x20, 31, 0, at)
	in.at(0x40).set("group_id", 0x04, 31, 0, group).set("action", 0x0C, 15, 0, forward).set("destination_list_size",
		0x10, 23, 0, 1)
	copy(in[0x80:], attrs[1].Data)
	in.at(0x340).set("destination_type", 0x00, 31, 24, destTIR).set("destination_id", 0x00, 23, 0, tir.number)
	if err := c.host.run(in); err != nil {
		return fmt.Errorf("%w: %w", unix.EINVAL, err)
	}
	c.Add(func() error {
		return c.host.run(c.bypass.command(opDeleteFlowEntry, 0x40).set("flow_index", 0x20, 31, 0, at))
	})
	return nil
}
