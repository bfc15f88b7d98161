package mlx5sim

// umem is memory that a driver registered, and refers to in the contexts of queues instead of page addresses
// (capability umem_uid_0; Linux, mlx5_ifc.h, "umem").
type umem struct {
	object
	buffer
	bytes uint64
}

// Commands for umems.
func umemCommands() map[uint16]*command {
	return map[uint16]*command{
		0xa08: {name: "CREATE_UMEM",
			in: lay(48, head+"20.31 ats 20.4:0 log_page_size 24.31:0 page_offset 28*2 num_of_mtt"), tail: true,
			out:  newID("umem_id"),
			from: hcaReady, run: (*Model).createUMEM},
		// libmlx5 sends it with the length of CREATE_UMEM's input.
		0xa0a: {name: "DESTROY_UMEM", in: byID("umem_id"), tail: true, out: plainOut, from: hcaReady, run: (*Model).destroyUMEM},
	}
}

func (m *Model) createUMEM(c *call) *refusal {
	if !m.prof.umem && m.uid == 0 {
		return refuse(stBadOp, "capability umem_uid_0 is not there")
	}
	in := c.in
	logPage, n, list := 12+in.I("log_page_size"), in.U("num_of_mtt"), in.B[min(len(in.B), 0x30):]
	switch {
	case n == 0 || uint64(len(list)) < 8*n:
		return refuse(stInLen, "num_of_mtt is %d, the input has %d addresses", n, len(list)/8)
	case uint64(in.U32("page_offset")) >= 1<<logPage:
		return refuse(stBadParam, "page_offset is %d, a page has %d bytes", in.U("page_offset"), 1<<logPage)
	}
	u := &umem{buffer: buffer{logPage: logPage, offset: in.U("page_offset")}, bytes: n<<logPage - in.U("page_offset")}
	for i := range n {
		u.pages = append(u.pages, be.Uint64(list[8*i:])&^0xfff)
	}
	if r := m.obj.umems.add(m, u); r != nil {
		return r
	}
	c.out.Set("umem_id", uint64(u.id))
	return nil
}

func (m *Model) destroyUMEM(c *call) *refusal {
	_, r := m.obj.umems.remove(m, c.in.U32("umem_id"))
	return r
}

// within finds n bytes of a umem.
func (m *Model) within(id uint32, off uint64, n int) (*umem, *refusal) {
	u, r := m.obj.umems.get(id)
	if r == nil && (off > u.bytes || uint64(n) > u.bytes-off) {
		r = refuse(stBadParam, "umem %#x has %d bytes, %d at %#x are beyond", id, u.bytes, n, off)
	}
	return u, r
}

// ring is a queue's memory of n bytes: in a umem, if the context refers to one, otherwise at the page addresses after
// it.
func (m *Model) ring(in msg, prefix string, logPage, pageOffset, n int) (buffer, *refusal) {
	if !in.Is(prefix + "_umem_valid") {
		return m.pageList(in.B[min(len(in.B), 0x110):], logPage, pageOffset, n)
	}
	off := in.U(prefix + "_umem_offset")
	u, r := m.within(in.U32(prefix+"_umem_id"), off, n)
	if r != nil {
		return buffer{}, r
	}
	// The page size limits where objects begin (Linux mlx5_ib, devx_umem_reg_cmd_alloc).
	if off&(1<<u.logPage-1) != 0 {
		return buffer{}, refuse(stBadParam, "offset %#x in a umem with pages of %#x", off, 1<<u.logPage)
	}
	return buffer{pages: u.pages, logPage: u.logPage, offset: u.offset + off, umem: u}, nil
}

// hold counts a queue as a user of its memory.
func (b *buffer) hold(by int) {
	if b.umem != nil {
		b.umem.held += by
	}
}

// record is the address of a doorbell record.
func (m *Model) record(in msg) (uint64, *refusal) {
	at := in.U("dbr_addr")
	if in.Is("dbr_umem_valid") {
		u, r := m.within(in.U32("dbr_umem_id"), at, 8)
		if r != nil {
			return 0, r
		}
		at += u.offset
		at = u.pages[at>>u.logPage] + at&(1<<u.logPage-1)
	}
	if at == 0 || at%8 != 0 {
		return 0, refuse(stBadParam, "dbr_addr is %#x: a doorbell record has 8 bytes and is aligned to them", at)
	}
	return at, nil
}
