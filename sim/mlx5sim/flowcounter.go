package mlx5sim

// flowCounter counts the frames that match the entries of flow tables that name it (Linux, mlx5_ifc.h:
// alloc_flow_counter, query_flow_counter, traffic_counter; capability flow_counter of the table type). A bulk has
// several counters with consecutive ids.
type flowCounter struct {
	object
	counts []traffic
}

const (
	bulkUnit = 128 // counters, of which flow_counter_bulk is a multiple

	// bulkAlloc is capability flow_counter_bulk_alloc: 128, 256 and 512 counters in any combination. DPDK requires 512,
	// and Linux requests all of them together. No card's value is known.
	bulkAlloc = 7

	// logBulkQuery is capability log_max_flow_counter_bulk. Linux reads up to 2^15 counters at a time.
	logBulkQuery = 10

	// queryAlign is the alignment of the first counter and of the number of counters of a query of several (Linux,
	// mlx5_fc_stats_query).
	queryAlign = 4
)

const (
	actionCount = 1 << 3

	opAllocFlowCounter, opQueryFlowCounter = 0x939, 0x93b
)

// Commands for flow counters. Dumps to memory, and bulks of a power of two of counters, have capabilities of their own,
// which are not reported.
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
	case c.in.Is("flow_counter_bulk_log_size"):
		return refuse(stBadParam, "flow_counter_bulk_log_size is %d without capability flow_counter_bulk_log_max_alloc",
			c.in.U("flow_counter_bulk_log_size"))
	case c.in.U("flow_counter_bulk")&^bulkAlloc != 0:
		return refuse(stBadParam, "flow_counter_bulk is %#x, capability flow_counter_bulk_alloc is %#x",
			c.in.U("flow_counter_bulk"), bulkAlloc)
	}
	n := max(c.in.U32("flow_counter_bulk")*bulkUnit, 1)
	o := &flowCounter{object: object{more: n - 1}, counts: make([]traffic, n)}
	if r := m.obj.flowCounters.add(m, o); r != nil {
		return r
	}
	if n > 1 {
		m.count.counterBulks++
	}
	c.out.Set("flow_counter_id", uint64(o.id))
	return nil
}

func (m *Model) deallocFlowCounter(c *call) *refusal {
	_, r := m.obj.flowCounters.remove(m, c.in.U32("flow_counter_id"))
	return r
}

func (m *Model) queryFlowCounter(c *call) *refusal {
	id, n := c.in.U32("flow_counter_id"), c.in.U32("num_of_counters")
	switch {
	case c.in.Is("dump_to_memory"):
		return refuse(stBadParam, "dump_to_memory without capability flow_counters_dump")
	case n > 1<<logBulkQuery:
		return refuse(stBadParam, "num_of_counters is %d, capability log_max_flow_counter_bulk is %d", n, logBulkQuery)
	case n > 1 && (id%queryAlign != 0 || n%queryAlign != 0):
		return refuse(stBadParam, "%d counters from %#x on: both have to be multiples of %d", n, id, queryAlign)
	case len(c.out.B) < 16+16*int(n):
		return refuse(stOutLen, "%d counters in %d bytes", n, len(c.out.B))
	}
	found := 0
	var missing *refusal
	for i := range max(n, 1) {
		o, r := m.obj.flowCounters.get(id + i)
		if r != nil { // others of the range need not exist
			missing = r
			continue
		}
		found++
		t, out := &o.counts[id+i-o.id], c.out.B[16+16*i:]
		be.PutUint64(out, t.frames)
		be.PutUint64(out[8:], t.bytes)
		if c.in.Is("clear") {
			*t = traffic{}
		}
	}
	if found == 0 {
		return missing
	}
	if n > 1 {
		m.count.counterReads++
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
	var counts []*traffic
	for i := range size {
		id := be.Uint32(list[8*i:])
		o, r := m.obj.flowCounters.get(id)
		if r != nil {
			return r
		}
		all, counts = append(all, o), append(counts, &o.counts[id-o.id])
	}
	for _, o := range all {
		o.held++
	}
	e.counters, e.counts = all, counts
	return nil
}
