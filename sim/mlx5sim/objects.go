package mlx5sim

import (
	"fmt"
	"slices"
	"strings"
)

// Types of objects, as contexts in the firmware's pages identify them.
const (
	kindUAR = iota + 1
	kindPD
	kindTD
	kindQCounter
	kindEQ
	kindCQ
	kindMkey
	kindSQ
	kindRQ
	kindTIS
	kindTIR
	kindRQT
	kindTable
	kindGroup
	kindXRCD
	kindSRQ
	kindQP
	kindUMEM
	kindUCTX
	kindFlowCounter
)

// object is the common part of all objects: an id, the user context that it belongs to (0 for the driver), the number
// of objects that reference it, and a context in the firmware's memory.
type object struct {
	id   uint32
	more uint32 // ids after id that belong to it, too: it is a bulk
	uid  uint32
	held int
	slot slot
}

func (o *object) base() *object { return o }

// set has all objects of a type. Ids are not reused until the range is exhausted, so that a destroyed object is not
// mistaken for the next.
type set[T interface{ base() *object }] struct {
	name        string
	kind        uint32
	first, last uint32
	next        uint32
	m           map[uint32]T
	bulks       map[uint32]uint32 // more of those that have it, by id
	by          *uint32           // the user context of the current command
}

func newSet[T interface{ base() *object }](by *uint32, name string, kind, first, last uint32) set[T] {
	return set[T]{name: name, kind: kind, first: first, last: last, next: first, m: map[uint32]T{},
		bulks: map[uint32]uint32{}, by: by}
}

// add assigns the object an id and a context.
func (s *set[T]) add(m *Model, o T) *refusal {
	more := o.base().more
	for range s.last - s.first + 1 {
		id := s.next
		if more > 0 {
			id = (id + bulkAlign - 1) &^ (bulkAlign - 1)
		}
		if s.next = id + more + 1; s.next > s.last {
			s.next = s.first
		}
		if id+more > s.last || s.overlap(id, more) {
			continue
		}
		sl, r := m.keep(s.kind, id)
		if r != nil {
			return r
		}
		b := o.base()
		b.id, b.uid, b.slot = id, *s.by, sl
		s.m[id] = o
		if more > 0 {
			s.bulks[id] = more
		}
		return nil
	}
	return refuse(stNoRes, "all %d %ss are in use", s.last-s.first+1, s.name)
}

// bulkAlign is the alignment of a bulk's first id: queries of several counters begin at a multiple of 4.
const bulkAlign = 4

// overlap reports whether one of the ids from id to id+more is assigned.
func (s *set[T]) overlap(id, more uint32) bool {
	for i := id; i <= id+more; i++ {
		if _, ok := s.find(i); ok {
			return true
		}
	}
	return false
}

// find returns the object that an id belongs to.
func (s *set[T]) find(id uint32) (T, bool) {
	o, ok := s.m[id]
	for first, more := range s.bulks {
		if ok {
			break
		}
		if id > first && id-first <= more {
			o, ok = s.m[first], true
		}
	}
	return o, ok
}

// used reports whether id was assigned since the ids last began at the first.
func (s *set[T]) used(id uint32) bool { return id >= s.first && id < s.next }

func (s *set[T]) get(id uint32) (T, *refusal) {
	o, ok := s.find(id)
	if !ok {
		return o, refuse(stBadRes, "%s %#x does not exist", s.name, id)
	}
	// a user context can access only its own objects
	if by := *s.by; by != 0 && by != sharedUID && o.base().uid != by && o.base().uid != sharedUID {
		return o, refuse(stBadRes, "%s %#x belongs to user context %d, the command is of %d", s.name, id, o.base().uid,
			by)
	}
	return o, nil
}

// remove destroys an object that no other object references.
func (s *set[T]) remove(m *Model, id uint32) (T, *refusal) {
	o, r := s.get(id)
	if r != nil {
		return o, r
	}
	if first := o.base().id; first != id {
		return o, refuse(stBadRes, "%s %#x is one of the bulk that begins at %#x", s.name, id, first)
	}
	if n := o.base().held; n > 0 {
		return o, refuse(stBadResState, "%s %#x is in use by %d objects", s.name, id, n)
	}
	m.drop(o.base().slot, s.kind, id)
	delete(s.m, id)
	delete(s.bulks, id)
	return o, nil
}

func (s *set[T]) left() string {
	if len(s.m) == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %s", len(s.m), s.name)
}

// plain is an object with no state.
type plain struct{ object }

type qCounter struct {
	object
	counts map[string]uint32 // by the fields of QUERY_Q_COUNTER
}

type objects struct {
	uars     set[*uar]
	pds      set[*plain]
	tds      set[*plain]
	counters set[*qCounter]
	eqs      set[*eq]
	cqs      set[*cq]
	mkeys    set[*mkey]
	sqs      set[*sq]
	rqs      set[*rq]
	ownTD    plain // transport domain 0
	tiss     set[*tis]
	tirs     set[*tir]
	rqts     set[*rqt]
	xrcds    set[*plain]
	srqs     set[*srq]
	qps      set[*qp]
	umems    set[*umem]
	uctxs    set[*uctx]

	flowCounters set[*flowCounter]
}

func newObjects(uars uint32, by *uint32) objects {
	return objects{
		uars:     newSet[*uar](by, "UAR", kindUAR, firstUAR, firstUAR+uars-1),
		pds:      newSet[*plain](by, "PD", kindPD, 1, 0xffff),
		tds:      newSet[*plain](by, "transport domain", kindTD, 1, 0xffff),
		counters: newSet[*qCounter](by, "queue counter set", kindQCounter, 1, 0xff),
		eqs:      newSet[*eq](by, "EQ", kindEQ, 0x10, 0xff),
		cqs:      newSet[*cq](by, "CQ", kindCQ, 0x400, 0xffffff),
		mkeys:    newSet[*mkey](by, "memory key", kindMkey, 0x18, 0xffffff),
		sqs:      newSet[*sq](by, "SQ", kindSQ, 0x100, 0x3ffff),
		rqs:      newSet[*rq](by, "RQ", kindRQ, 0x800100, 0xffffff),
		tiss:     newSet[*tis](by, "TIS", kindTIS, 1, 0xffff),
		tirs:     newSet[*tir](by, "TIR", kindTIR, 1, 0xffff),
		rqts:     newSet[*rqt](by, "RQT", kindRQT, 1, 0xffff),
		xrcds:    newSet[*plain](by, "XRC domain", kindXRCD, 1, 0xffff),
		srqs:     newSet[*srq](by, "shared receive queue", kindSRQ, 0x100, 0x7fffff),
		qps:      newSet[*qp](by, "QP", kindQP, 0x40000, 0x7fffff),
		umems:    newSet[*umem](by, "umem", kindUMEM, 1, 0xffff),
		uctxs:    newSet[*uctx](by, "user context", kindUCTX, 1, 1<<logMaxUCTX),

		flowCounters: newSet[*flowCounter](by, "flow counter", kindFlowCounter, 1, 0xffffff),
	}
}

// left describes the objects that still exist.
func (o *objects) left() string {
	return joined(o.uars.left(), o.pds.left(), o.tds.left(), o.counters.left(), o.eqs.left(), o.cqs.left(),
		o.mkeys.left(),
		o.sqs.left(), o.rqs.left(), o.tiss.left(), o.tirs.left(), o.rqts.left(), o.xrcds.left(), o.srqs.left(),
		o.qps.left(), o.umems.left(), o.uctxs.left(), o.flowCounters.left())
}

// joined lists the texts that are not empty.
func joined(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), ", ")
}

// Commands for UARs, protection and transport domains, queue counters, EQs, CQs and memory keys.
func resourceCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	return map[uint16]*command{
		0x802: ready(command{name: "ALLOC_UAR", in: plainIn, out: newID("uar"), run: (*Model).allocUAR}),
		0x803: ready(command{name: "DEALLOC_UAR", in: byID("uar"), out: plainOut, run: (*Model).deallocUAR}),
		0x800: ready(command{name: "ALLOC_PD", in: plainIn, out: newID("pd"), run: (*Model).allocPD}),
		0x801: ready(command{name: "DEALLOC_PD", in: byID("pd"), out: plainOut, run: (*Model).deallocPD}),
		0x816: ready(command{name: "ALLOC_TRANSPORT_DOMAIN", in: plainIn, out: newID("transport_domain"),
			run: (*Model).allocTD}),
		0x817: ready(command{name: "DEALLOC_TRANSPORT_DOMAIN", in: byID("transport_domain"), out: plainOut,
			run: (*Model).deallocTD}),
		0x771: ready(command{name: "ALLOC_Q_COUNTER", in: plainIn, out: lay(16, "08.7:0 counter_set_id"),
			run: (*Model).allocQCounter}),
		0x772: ready(command{name: "DEALLOC_Q_COUNTER", in: lay(16, head+"08.7:0 counter_set_id"), out: plainOut,
			run: (*Model).deallocQCounter}),
		0x773: ready(command{name: "QUERY_Q_COUNTER", in: lay(32, head+"18.31 clear 1c.7:0 counter_set_id"),
			out: lay(256, qCounts), run: (*Model).queryQCounter}),
		0x203: ready(command{name: "QUERY_SPECIAL_CONTEXTS", in: plainIn, out: lay(16, "0c.31:0 resd_lkey"),
			run: (*Model).querySpecial}),
		0x301: ready(command{name: "CREATE_EQ", in: lay(272, head+"58*8 event_bitmask").With(0x10, eqContext),
			tail: true,
			out:  lay(16, "08.7:0 eq_number"), run: (*Model).createEQ}),
		0x302: ready(command{name: "DESTROY_EQ", in: lay(16, head+"08.7:0 eq_number"), out: plainOut,
			run: (*Model).destroyEQ}),
		0x400: ready(command{name: "CREATE_CQ", in: lay(272,
			head+"50*2 cq_umem_offset 58.31:0 cq_umem_id 5c.31 cq_umem_valid").With(0x10, cqContext), tail: true,
			out: newID("cqn"), run: (*Model).createCQ}),
		0x401: ready(command{name: "DESTROY_CQ", in: byID("cqn"), out: plainOut, run: (*Model).destroyCQ}),
		0x402: ready(command{name: "QUERY_CQ", in: byID("cqn"), out: lay(272, "").With(0x10, cqContext),
			run: (*Model).queryCQ}),
		0x403: ready(command{name: "MODIFY_CQ", in: lay(272, head+"08.23:0 cqn 0c.31:0 field_select").With(0x10,
			cqContext), tail: true,
			out: plainOut, run: (*Model).modifyCQ}),
		0x200: ready(command{name: "CREATE_MKEY", in: lay(272,
			head+"0c.31 pg_access 60.31:0 translations_octword_actual_size").With(0x10, mkeyContext),
			tail: true, out: newID("mkey_index"), run: (*Model).createMkey}),
		0x202: ready(command{name: "DESTROY_MKEY", in: byID("mkey_index"), out: plainOut, run: (*Model).destroyMkey}),
	}
}

// qCounts are the queue counters that the model implements (PRM, QUERY_Q_COUNTER).
const qCounts = `10.31:0 rx_write_requests 18.31:0 rx_read_requests 30.31:0 out_of_buffer 38.31:0 out_of_sequence 40.31:0 duplicate_request
	48.31:0 rnr_nak_retry_err 50.31:0 packet_seq_err 60.31:0 local_ack_timeout_err`

// resdLkey is the reserved LKey: untranslated host memory, for queues with rlky set.
const resdLkey = 0x00001500

func (m *Model) querySpecial(c *call) *refusal {
	c.out.Set("resd_lkey", resdLkey)
	return nil
}

func (m *Model) allocPD(c *call) *refusal {
	o := new(plain)
	if r := m.obj.pds.add(m, o); r != nil {
		return r
	}
	c.out.Set("pd", uint64(o.id))
	return nil
}

func (m *Model) deallocPD(c *call) *refusal {
	_, r := m.obj.pds.remove(m, c.in.U32("pd"))
	return r
}

func (m *Model) allocTD(c *call) *refusal {
	o := new(plain)
	if r := m.obj.tds.add(m, o); r != nil {
		return r
	}
	c.out.Set("transport_domain", uint64(o.id))
	return nil
}

func (m *Model) deallocTD(c *call) *refusal {
	_, r := m.obj.tds.remove(m, c.in.U32("transport_domain"))
	return r
}

func (m *Model) allocQCounter(c *call) *refusal {
	o := &qCounter{counts: map[string]uint32{}}
	if r := m.obj.counters.add(m, o); r != nil {
		return r
	}
	c.out.Set("counter_set_id", uint64(o.id))
	return nil
}

func (m *Model) deallocQCounter(c *call) *refusal {
	_, r := m.obj.counters.remove(m, c.in.U32("counter_set_id"))
	return r
}

func (m *Model) queryQCounter(c *call) *refusal {
	o, r := m.obj.counters.get(c.in.U32("counter_set_id"))
	if r != nil {
		return r
	}
	for name, n := range o.counts {
		c.out.Set(name, uint64(n))
	}
	if c.in.Is("clear") {
		clear(o.counts)
	}
	return nil
}

// countQ increments a counter in a set of queue counters; set 0 means none.
func (m *Model) countQ(set uint32, name string) {
	if c := m.obj.counters.m[set]; c != nil {
		c.counts[name]++
	}
}
