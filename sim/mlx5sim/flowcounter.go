package mlx5sim

// flowCounter counts the frames that match the entries of flow tables that name it (Linux, mlx5_ifc.h:
// alloc_flow_counter, query_flow_counter, traffic_counter; capability flow_counter of the table type).
type flowCounter struct {
	object
	packets, octets uint64
}

const (
	actionCount = 1 << 3

	opAllocFlowCounter, opQueryFlowCounter = 0x939, 0x93b
)

// Commands for flow counters. Counters in bulk and dumps to memory have capabilities of their own, which are not
// reported.
func flowCounterCommands() map[uint16]*command {
	return map[uint16]*command{
		opAllocFlowCounter: {name: "ALLOC_FLOW_COUNTER", in: lay(16,
			head+"0c.12:8 flow_counter_bulk_log_size 0c.7:0 flow_counter_bulk"),
			out: lay(16, "08.31:0 flow_counter_id"), from: hcaReady, run: (*Model).allocFlowCounter},
		0x93a: {name: "DEALLOC_FLOW_COUNTER", in: lay(16, head+"08.31:0 flow_counter_id"), out: plainOut, from: hcaReady, run: (*Model).deallocFlowCounter},
		opQueryFlowCounter: {name: "QUERY_FLOW_COUNTER", in: lay(32,
			head+"18.31 clear 18.30 dump_to_memory 18.29:0 num_of_counters 1c.31:0 flow_counter_id"),
			out: lay(32, "10.31:0 packets_hi 14.31:0 packets_lo 18.31:0 octets_hi 1c.31:0 octets_lo"), from: hcaReady,
			run: (*Model).queryFlowCounter},
	}
}

func (m *Model) allocFlowCounter(c *call) *refusal {
	switch {
	case !m.prof.later:
		return refuse(stBadOp, "capability flow_counter is not there")
	case c.in.Is("flow_counter_bulk"), c.in.Is("flow_counter_bulk_log_size"):
		return refuse(stBadParam, "counters in bulk without capability flow_counter_bulk_alloc")
	}
	o := &flowCounter{}
	if r := m.obj.flowCounters.add(m, o); r != nil {
		return r
	}
	c.out.Set("flow_counter_id", uint64(o.id))
	return nil
}

func (m *Model) deallocFlowCounter(c *call) *refusal {
	_, r := m.obj.flowCounters.remove(m, c.in.U32("flow_counter_id"))
	return r
}

func (m *Model) queryFlowCounter(c *call) *refusal {
	o, r := m.obj.flowCounters.get(c.in.U32("flow_counter_id"))
	switch n := c.in.U32("num_of_counters"); {
	case r != nil:
		return r
	case n > 1 || c.in.Is("dump_to_memory"):
		return refuse(stBadParam, "num_of_counters is %d, dump_to_memory %v: the model reads one counter", n,
			c.in.Is("dump_to_memory"))
	}
	c.out.Set("packets_hi", o.packets>>32)
	c.out.Set("packets_lo", o.packets&0xffffffff)
	c.out.Set("octets_hi", o.octets>>32)
	c.out.Set("octets_lo", o.octets&0xffffffff)
	if c.in.Is("clear") {
		o.packets, o.octets = 0, 0
	}
	return nil
}

// counters reads the counters of an entry, which follow its n destinations, and references them.
func (m *Model) counters(e *flowEntry, in msg, n int) *refusal {
	size := in.I("flow_counter_list_size")
	list := in.B[min(len(in.B), 0x340+8*n):]
	switch {
	case (e.action&actionCount != 0) != (size > 0):
		return refuse(stBadParam, "action %#x with %d flow counters", e.action, size)
	case size > 0 && !m.prof.later:
		return refuse(stBadParam, "flow counters without capability flow_counter")
	case len(list) < 8*size:
		return refuse(stInLen, "%d flow counters in %d bytes", size, len(list))
	}
	var all []*flowCounter
	for i := range size {
		o, r := m.obj.flowCounters.get(be.Uint32(list[8*i:]))
		if r != nil {
			return r
		}
		all = append(all, o)
	}
	for _, o := range all {
		o.held++
	}
	e.counters = all
	return nil
}
