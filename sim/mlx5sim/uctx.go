package mlx5sim

// uctx is a user context, which owns the objects that a process creates through the driver (capability log_max_uctx;
// Linux, mlx5_ifc.h, "uctx").
type uctx struct {
	object
	cap uint32
}

const (
	logMaxUCTX = 10
	uctxRawTX  = 1 << 0 // capability of a context: it may have send queues

	// sharedUID is the context of objects that the driver creates for use by all contexts, such as its event queues
	// (Linux, MLX5_SHARED_RESOURCE_UID).
	sharedUID = 0xffff
)

// Commands for user contexts.
func uctxCommands() map[uint16]*command {
	return map[uint16]*command{
		0xa04: {name: "CREATE_UCTX", in: lay(64, "00.31:16 opcode 04.15:0 op_mod 10.31:0 cap"), out: lay(16, "08.15:0 uid"), from: hcaReady, run: (*Model).createUCTX},
		0xa06: {name: "DESTROY_UCTX", in: lay(16, "00.31:16 opcode 04.15:0 op_mod 08.15:0 uid"), out: plainOut, from: hcaReady, run: (*Model).destroyUCTX},
	}
}

// enterUCTX sets the user context of a command.
func (m *Model) enterUCTX(c *call) *refusal {
	m.uid = 0
	uid := uint32(be.Uint16(c.in.B[2:])) // in other commands these bits are reserved, which was already reported
	switch {
	case uid == 0 || !c.command.in.Has("uid"):
		return nil
	case uid == sharedUID && !m.opt.uctx():
		return refuse(stBadParam, "uid is %#x without capability log_max_uctx", uid)
	case uid != sharedUID && m.obj.uctxs.m[uid] == nil:
		return refuse(stBadRes, "user context %d does not exist", uid)
	}
	m.uid = uid
	return nil
}

func (m *Model) createUCTX(c *call) *refusal {
	if !m.opt.uctx() {
		return refuse(stBadOp, "capability log_max_uctx is 0")
	}
	u := &uctx{cap: c.in.U32("cap")}
	if u.cap&^uctxRawTX != 0 {
		return refuse(stBadParam, "cap is %#x, capability uctx_cap is %#x", u.cap, uctxRawTX)
	}
	if r := m.obj.uctxs.add(m, u); r != nil {
		return r
	}
	c.out.Set("uid", uint64(u.id))
	return nil
}

func (m *Model) destroyUCTX(c *call) *refusal {
	uid := c.in.U32("uid")
	if n := m.obj.of(uid) + m.flow.of(uid); n > 0 && m.obj.uctxs.m[uid] != nil {
		return refuse(stBadResState, "user context %d has %d objects", uid, n)
	}
	_, r := m.obj.uctxs.remove(m, uid)
	return r
}

// rawTX checks that a user context may have send queues.
func (m *Model) rawTX() *refusal {
	if u := m.obj.uctxs.m[m.uid]; u != nil && u.cap&uctxRawTX == 0 {
		return refuse(stBadParam, "user context %d was created without RAW_TX", m.uid)
	}
	return nil
}

// of counts the objects of a user context, except flow tables.
func (o *objects) of(uid uint32) int {
	return owned(&o.uars, uid) + owned(&o.pds, uid) + owned(&o.tds, uid) + owned(&o.counters, uid) + owned(&o.cqs,
		uid) + owned(&o.mkeys, uid) +
		owned(&o.sqs, uid) + owned(&o.rqs, uid) + owned(&o.tiss, uid) + owned(&o.tirs, uid) + owned(&o.rqts,
		uid) + owned(&o.qps, uid) +
		owned(&o.srqs, uid) + owned(&o.xrcds, uid) + owned(&o.umems, uid) + owned(&o.flowCounters, uid)
}

func owned[T interface{ base() *object }](s *set[T], uid uint32) (n int) {
	for _, o := range s.m {
		if o.base().uid == uid {
			n++
		}
	}
	return n
}

// Objects returns how many objects there are, of whichever user.
func (m *Model) Objects() (n int) {
	for uid := range m.obj.uctxs.m {
		n += m.obj.of(uid) + m.flow.of(uid)
	}
	return n + m.obj.of(0)
}

// UserObjects returns how many user contexts there are, and how many objects belong to them.
func (m *Model) UserObjects() (contexts, objects int) {
	for uid := range m.obj.uctxs.m {
		objects += m.obj.of(uid) + m.flow.of(uid)
	}
	return len(m.obj.uctxs.m), objects
}

// Queues returns how many send queues, receive queues and targets of rules (TIRs) there are, of whichever user.
func (m *Model) Queues() int { return len(m.obj.sqs.m) + len(m.obj.rqs.m) + len(m.obj.tirs.m) }
