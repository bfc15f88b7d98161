package mlx5sim

import "sort"

// Flow table types.
const (
	tableNICReceive = 0

	missDefault = 0
	missForward = 1

	actionAllow   = 1 << 0
	actionDrop    = 1 << 1
	actionForward = 1 << 2

	destTable = 1
	destTIR   = 2

	matchSize = 512
)

type steering struct {
	tables    map[uint32]*flowTable
	nextTable uint32
	root      uint32 // 0 for none
}

func newSteering() steering { return steering{tables: map[uint32]*flowTable{}, nextTable: 1} }

// flowTable is a table of entries by index, in groups that share a mask.
type flowTable struct {
	object
	level, logSize int
	miss           uint32 // table for frames that match nothing; 0 for none
	groups         map[uint32]*flowGroup
	nextGroup      uint32
	entries        []*flowEntry // by index
}

type flowGroup struct {
	slot       slot
	start, end uint32
	enable     uint64
	mask       [matchSize]byte
	n          int
}

type flowEntry struct {
	index  uint32
	group  uint32
	value  [matchSize]byte
	action uint64
	tag    uint32
	dest   []destination

	counters []*flowCounter
	counts   []*traffic // of these counters
}

type destination struct {
	kind uint8
	id   uint32
}

// Commands for flow tables, groups and entries.
func steeringCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	const table = "00.31:16 opcode 00.15:0 uid 04.15:0 op_mod 08.31 other_vport 08.15:0 vport_number 10.31:24 table_type 14.23:0 table_id "
	const context = "18.31 reformat_en 18.30 decap_en 18.27:24 table_miss_action 18.23:16 level 18.7:0 log_size 1c.23:0 table_miss_id"
	return map[uint16]*command{
		0x930: ready(command{name: "CREATE_FLOW_TABLE", in: lay(64,
			"00.31:16 opcode 00.15:0 uid 04.15:0 op_mod 08.31 other_vport 08.15:0 vport_number 10.31:24 table_type "+
				context),
			out: newID("table_id"), run: (*Model).createTable}),
		0x931: ready(command{name: "DESTROY_FLOW_TABLE", in: lay(64, table), out: plainOut,
			run: (*Model).destroyTable}),
		0x933: ready(command{name: "CREATE_FLOW_GROUP", in: lay(1024,
			table+"10.19:16 group_type 1c.31:0 start_flow_index 24.31:0 end_flow_index 3c.7:0 match_criteria_enable 40*128 match_criteria"),
			out: newID("group_id"), run: (*Model).createGroup}),
		0x934: ready(command{name: "DESTROY_FLOW_GROUP", in: lay(64, table+"18.31:0 group_id"), out: plainOut,
			run: (*Model).destroyGroup}),
		0x936: ready(command{name: "SET_FLOW_TABLE_ENTRY", in: lay(0x340, table+`18.7:0 modify_enable_mask 20.31:0 flow_index 44.31:0 group_id 48.23:0 flow_tag 4c.15:0 action
			50.23:0 destination_list_size 54.23:0 flow_counter_list_size 80*128 match_value`), tail: true, out: plainOut, run: (*Model).setEntry}),
		0x938: ready(command{name: "DELETE_FLOW_TABLE_ENTRY", in: lay(64, table+"20.31:0 flow_index"), out: plainOut,
			run: (*Model).deleteEntry}),
		0x92f: ready(command{name: "SET_FLOW_TABLE_ROOT", in: lay(64,
			"00.31:16 opcode 04.15:0 op_mod 08.31 other_vport 08.15:0 vport_number 10.31:24 table_type 14.23:0 table_id 18.23:0 underlay_qpn"),
			out: plainOut, run: (*Model).setRoot}),
		0x93c: ready(command{name: "MODIFY_FLOW_TABLE", in: lay(64, table+"0c.15:0 modify_field_select "+context),
			out: plainOut, run: (*Model).modifyTable}),
	}
}

func (s *steering) table(c *call) (*flowTable, *refusal) {
	if k := c.in.U("table_type"); k != tableNICReceive {
		return nil, refuse(stBadParam, "table_type is %d, the model has 0 (NIC receive)", k)
	}
	if r := own(c); r != nil {
		return nil, r
	}
	id := c.in.U32("table_id")
	t, ok := s.tables[id]
	if !ok {
		return nil, refuse(stBadRes, "flow table %#x does not exist", id)
	}
	if uid := uint32(be.Uint16(c.in.B[2:])); uid != 0 && t.uid != uid {
		return nil, refuse(stBadRes, "flow table %#x belongs to user context %d, the command is of %d", id, t.uid, uid)
	}
	return t, nil
}

// of counts the flow tables of a user context.
func (s *steering) of(uid uint32) (n int) {
	for _, t := range s.tables {
		if t.uid == uid {
			n++
		}
	}
	return n
}

// reaches reports whether frames may go from a table to the next: a user context's stay in its own.
func (t *flowTable) reaches(next *flowTable) bool { return t.uid == 0 || t.uid == next.uid }

func (m *Model) createTable(c *call) *refusal {
	in, s := c.in, &m.flow
	t := &flowTable{level: in.I("level"), logSize: in.I("log_size"), groups: map[uint32]*flowGroup{}, nextGroup: 1}
	switch {
	case in.U("table_type") != tableNICReceive:
		return refuse(stBadParam, "table_type is %d, the model has 0 (NIC receive)", in.U("table_type"))
	case in.Is("reformat_en"), in.Is("decap_en"):
		return refuse(stBadParam, "reformat_en and decap_en are set without the capability")
	case t.logSize > 16:
		return refuse(stBadParam, "log_size is %d, capability log_max_ft_size is 16", t.logSize)
	}
	if r := own(c); r != nil {
		return r
	}
	t.uid = m.uid
	if r := s.missOf(t, in); r != nil {
		return r
	}
	t.id = s.nextTable
	sl, r := m.keep(kindTable, t.id)
	if r != nil {
		if t.miss != 0 {
			s.tables[t.miss].held--
		}
		return r
	}
	s.nextTable++
	t.slot = sl
	s.tables[t.id] = t
	c.out.Set("table_id", uint64(t.id))
	return nil
}

// missOf sets the miss table from a table context.
func (s *steering) missOf(t *flowTable, in msg) *refusal {
	switch a := in.U("table_miss_action"); a {
	case missDefault:
		if old := s.tables[t.miss]; old != nil {
			old.held--
		}
		t.miss = 0
		return nil
	case missForward:
		return s.setMiss(t, in.U32("table_miss_id"))
	default:
		return refuse(stBadParam, "table_miss_action is %d, expected 0 (default) or 1 (forward)", a)
	}
}

func (s *steering) setMiss(t *flowTable, id uint32) *refusal {
	next, ok := s.tables[id]
	switch {
	case !ok || !t.reaches(next):
		return refuse(stBadRes, "table_miss_id: flow table %#x does not exist, or belongs to another", id)
	case next.level <= t.level:
		return refuse(stBadParam, "table_miss_id: flow table %#x has level %d, this one %d: frames go upwards", id,
			next.level, t.level)
	}
	next.held++
	if old := s.tables[t.miss]; old != nil {
		old.held--
	}
	t.miss = id
	return nil
}

// modifyTable changes the miss table (modify_field_select bit 0).
func (m *Model) modifyTable(c *call) *refusal {
	if !m.prof.later {
		return refuse(stBadOp, "capability flow_table_modify is not there")
	}
	t, r := m.flow.table(c)
	if r != nil {
		return r
	}
	if sel := c.in.U("modify_field_select"); sel != 1 {
		return refuse(stBadParam, "modify_field_select is %#x, the model changes the miss table (bit 0)", sel)
	}
	return m.flow.missOf(t, c.in)
}

func (m *Model) destroyTable(c *call) *refusal {
	s := &m.flow
	t, r := s.table(c)
	switch {
	case r != nil:
		return r
	case t.held > 0 || s.root == t.id && len(s.tables) > 1 && t.held > 0:
		return refuse(stBadResState, "flow table %#x is in use by %d others", t.id, t.held)
	case len(t.groups) > 0:
		return refuse(stBadResState, "flow table %#x has %d groups", t.id, len(t.groups))
	}
	if t.miss != 0 {
		s.tables[t.miss].held--
	}
	if s.root == t.id {
		s.root = 0
	}
	m.drop(t.slot, kindTable, t.id)
	delete(s.tables, t.id)
	return nil
}

// setRoot sets the table that frames enter first: op_mod 0 to connect it, 1 to have none.
func (m *Model) setRoot(c *call) *refusal {
	t, r := m.flow.table(c)
	switch {
	case r != nil:
		return r
	case c.in.U("op_mod") == 0:
		m.flow.root = t.id
	case c.in.U("op_mod") == 1:
		m.flow.root = 0
	default:
		return refuse(stBadParam, "op_mod is %d, expected 0 or 1", c.in.U("op_mod"))
	}
	return nil
}

func (m *Model) createGroup(c *call) *refusal {
	t, r := m.flow.table(c)
	if r != nil {
		return r
	}
	in := c.in
	g := &flowGroup{start: in.U32("start_flow_index"), end: in.U32("end_flow_index"),
		enable: in.U("match_criteria_enable")}
	copy(g.mask[:], in.Bytes("match_criteria"))
	switch {
	case g.end < g.start || g.end >= 1<<t.logSize:
		return refuse(stBadParam, "flow indices %d to %d, the table has %d", g.start, g.end, 1<<t.logSize)
	case g.enable&^(enableOuter|enableMisc|enableMisc3) != 0:
		return refuse(stBadParam,
			"match_criteria_enable is %#x, the model has outer headers (1), misc (2) and misc_3 (10h)", g.enable)
	case g.enable&enableMisc3 != 0 && !m.opt.ICMP:
		return refuse(stBadParam, "match_criteria_enable is %#x: misc_3 without flex_parser_protocols", g.enable)
	case g.mask[0x12]&0x1e != 0 && be.Uint32(m.caps.cur[capFlowTable][outerIPVersion.Off:])&outerIPVersion.Mask() == 0:
		return refuse(stBadParam, "match_criteria has ip_version, capability ft_field_support.outer_ip_version is 0")
	case in.U("group_type") != 0:
		return refuse(stBadParam, "group_type is %d", in.U("group_type"))
	}
	for _, o := range t.groups {
		if g.start <= o.end && o.start <= g.end {
			return refuse(stBadParam, "flow indices %d to %d overlap with a group of %d to %d", g.start, g.end, o.start,
				o.end)
		}
	}
	if off, set, found := matchable(g.enable).Stray(g.mask[:]); found {
		return refuse(stBadParam, "match_criteria at %02xh: %08x is not enabled or cannot be matched", off, set)
	}
	id := t.nextGroup
	sl, r := m.keep(kindGroup, t.id<<8|id)
	if r != nil {
		return r
	}
	t.nextGroup++
	g.slot = sl
	t.groups[id] = g
	c.out.Set("group_id", uint64(id))
	return nil
}

func (m *Model) destroyGroup(c *call) *refusal {
	t, r := m.flow.table(c)
	if r != nil {
		return r
	}
	id := c.in.U32("group_id")
	g, ok := t.groups[id]
	switch {
	case !ok:
		return refuse(stBadRes, "flow group %#x does not exist in table %#x", id, t.id)
	case g.n > 0:
		return refuse(stBadResState, "flow group %#x has %d entries", id, g.n)
	}
	m.drop(g.slot, kindGroup, t.id<<8|id)
	delete(t.groups, id)
	return nil
}

// Bits of modify_enable_mask in SET_FLOW_TABLE_ENTRY.
const (
	modifyAction       = 1 << 0
	modifyTag          = 1 << 1
	modifyDestinations = 1 << 2
)

// setEntry creates an entry or, with op_mod 1 and capability flow_modify_en, changes one.
func (m *Model) setEntry(c *call) *refusal {
	t, r := m.flow.table(c)
	if r != nil {
		return r
	}
	in := c.in
	e := &flowEntry{index: in.U32("flow_index"), group: in.U32("group_id"), action: in.U("action"),
		tag: in.U32("flow_tag")}
	copy(e.value[:], in.Bytes("match_value"))
	g, ok := t.groups[e.group]
	old := t.find(e.index)
	switch op := in.U("op_mod"); {
	case op > 1, op == 1 && !m.prof.later:
		return refuse(stBadParam, "op_mod is %d: capability flow_modify_en is not there", op)
	case !ok:
		return refuse(stBadRes, "flow group %#x does not exist in table %#x", e.group, t.id)
	case e.index < g.start || e.index > g.end:
		return refuse(stBadIndex, "flow_index %d is outside of its group, %d to %d", e.index, g.start, g.end)
	case op == 1 && (old == nil || old.group != e.group || old.value != e.value):
		return refuse(stBadResState, "flow_index %d is not set to be changed, or of another group or value", e.index)
	case op == 0 && old != nil:
		return refuse(stBadResState, "flow_index %d is set already", e.index)
	case e.action&^(actionAllow|actionDrop|actionForward|actionCount) != 0:
		return refuse(stBadParam, "action is %#x: the model has allow (1), drop (2), forward (4) and count (8)",
			e.action)
	}
	if old != nil {
		return m.changeEntry(t, old, e, in)
	}
	for off := range e.value {
		if e.value[off]&^g.mask[off] != 0 {
			return refuse(stBadParam, "match_value at %02xh: %02x, the group's mask is %02x", off, e.value[off],
				g.mask[off])
		}
	}
	if r := m.counters(e, in, in.I("destination_list_size")); r != nil {
		return r
	}
	if r := m.destinations(t, e, in); r != nil {
		for _, o := range e.counters {
			o.held--
		}
		return r
	}
	g.n++
	i := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].index > e.index })
	t.entries = append(t.entries, nil)
	copy(t.entries[i+1:], t.entries[i:])
	t.entries[i] = e
	return nil
}

// changeEntry copies the parts selected by modify_enable_mask from e.
func (m *Model) changeEntry(t *flowTable, old, e *flowEntry, in msg) *refusal {
	mask := in.U("modify_enable_mask")
	if mask == 0 || mask&^(modifyAction|modifyTag|modifyDestinations) != 0 {
		return refuse(stBadParam,
			"modify_enable_mask is %#x: the model changes action (bit 0), flow tag (1) and destinations (2)", mask)
	}
	if mask&modifyAction == 0 {
		e.action = old.action
	} else if (e.action^old.action)&actionCount != 0 {
		return refuse(stBadParam, "action is %#x, before it was %#x: the model keeps an entry's flow counters",
			e.action, old.action)
	}
	if mask&modifyDestinations != 0 {
		if r := m.destinations(t, e, in); r != nil {
			return r
		}
		for _, d := range old.dest {
			m.holdDestination(d, -1)
		}
		old.dest = e.dest
	}
	old.action = e.action
	if mask&modifyTag != 0 {
		old.tag = e.tag
	}
	return nil
}

// destinations reads an entry's list, and references the objects in it.
func (m *Model) destinations(t *flowTable, e *flowEntry, in msg) *refusal {
	n := in.I("destination_list_size")
	list := in.B[min(len(in.B), 0x340):]
	switch {
	case len(list) < 8*n-4:
		return refuse(stInLen, "%d destinations in %d bytes", n, len(list))
	case (e.action&actionForward != 0) != (n > 0):
		return refuse(stBadParam, "action %#x with %d destinations", e.action, n)
	}
	if len(list) < 8*n {
		m.host.Warnf("SET_FLOW_TABLE_ENTRY (936h): %d destinations in %d bytes: the last has one dword of its two", n,
			len(list))
	}
	for i := range n {
		w := be.Uint32(list[8*i:])
		e.dest = append(e.dest, destination{uint8(w >> 24), w & 0xffffff})
	}
	return m.holdDestinations(t, e.dest)
}

func (m *Model) holdDestinations(t *flowTable, dest []destination) *refusal {
	for _, d := range dest {
		switch d.kind {
		case destTIR:
			if _, r := m.obj.tirs.get(d.id); r != nil {
				return r
			}
		case destTable:
			next, ok := m.flow.tables[d.id]
			if !ok || !t.reaches(next) {
				return refuse(stBadRes, "destination: flow table %#x does not exist, or belongs to another", d.id)
			}
			if next.level <= t.level {
				return refuse(stBadParam, "destination: flow table %#x has level %d, this one %d: frames go upwards",
					d.id, next.level, t.level)
			}
		default:
			return refuse(stBadParam, "destination_type is %d, the model has 1 (flow table) and 2 (TIR)", d.kind)
		}
	}
	for _, d := range dest {
		m.holdDestination(d, 1)
	}
	return nil
}

func (m *Model) holdDestination(d destination, by int) {
	if d.kind == destTIR {
		m.obj.tirs.m[d.id].held += by
	} else {
		m.flow.tables[d.id].held += by
	}
}

func (t *flowTable) find(index uint32) *flowEntry {
	i := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].index >= index })
	if i < len(t.entries) && t.entries[i].index == index {
		return t.entries[i]
	}
	return nil
}

func (m *Model) deleteEntry(c *call) *refusal {
	t, r := m.flow.table(c)
	if r != nil {
		return r
	}
	e := t.find(c.in.U32("flow_index"))
	if e == nil {
		return refuse(stBadIndex, "flow_index %d is not set", c.in.U("flow_index"))
	}
	for _, d := range e.dest {
		m.holdDestination(d, -1)
	}
	for _, o := range e.counters {
		o.held--
	}
	t.groups[e.group].n--
	i := sort.Search(len(t.entries), func(i int) bool { return t.entries[i].index >= e.index })
	t.entries = append(t.entries[:i], t.entries[i+1:]...)
	return nil
}
