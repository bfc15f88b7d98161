package efasim

import "github.com/rebound-nic/rebound/sim/parts"

// pd is a protection domain.
type pd struct {
	live  bool
	users int                 // QPs, MRs and AHs in it
	ahs   map[[16]byte]uint16 // by destination
}

func (m *Model) allocPD(_ parts.Msg, r []byte) *refusal {
	for i := range m.pds {
		if !m.pds[i].live {
			m.pds[i] = pd{live: true, ahs: map[[16]byte]uint16{}}
			le.PutUint16(r, uint16(i))
			return nil
		}
	}
	return full
}

// domain returns the PD that a command names.
func (m *Model) domain(in parts.Msg) (*pd, *refusal) {
	if n := in.I("pd"); n < len(m.pds) && m.pds[n].live {
		return &m.pds[n], nil
	}
	return nil, illegal("there is no PD %d", in.I("pd"))
}

func (m *Model) deallocPD(in parts.Msg, _ []byte) *refusal {
	d, no := m.domain(in)
	switch {
	case no != nil:
		return no
	case d.users > 0:
		return busy("PD %d before the %d objects in it", in.I("pd"), d.users)
	}
	*d = pd{}
	return nil
}

// uar is a page of doorbells.
type uar struct {
	live  bool
	users int // QPs and CQs with doorbells in it
}

func (m *Model) allocUAR(_ parts.Msg, r []byte) *refusal {
	for i := range m.uars {
		if !m.uars[i].live {
			m.uars[i] = uar{live: true}
			clear(m.Host.Shadow(m.opt.doorbells)[m.page(i):][:uarSize])
			le.PutUint16(r, uint16(i))
			return nil
		}
	}
	return full
}

// page returns the offset of a UAR's page in the doorbell BAR.
func (m *Model) page(uar int) uint64 { return m.uarBase() + uint64(uar)*uarSize }

func (m *Model) userPage(in parts.Msg) (*uar, *refusal) {
	if n := in.I("uar"); n < len(m.uars) && m.uars[n].live {
		return &m.uars[n], nil
	}
	return nil, illegal("there is no UAR %d", in.I("uar"))
}

func (m *Model) deallocUAR(in parts.Msg, _ []byte) *refusal {
	u, no := m.userPage(in)
	switch {
	case no != nil:
		return no
	case u.users > 0:
		return busy("UAR %d before the %d queues that ring in it", in.I("uar"), u.users)
	}
	*u = uar{}
	return nil
}

// ah is an address handle: a destination, in a PD.
type ah struct {
	live bool
	pd   uint16
	gid  [16]byte
	uses int // number of CREATE_AHs; a DESTROY_AH undoes one
}

// createAH returns the same number for the same destination in a PD, however often it is requested. The definitions
// forbid a second request, and drivers from before 2026 make one.
func (m *Model) createAH(in parts.Msg, r []byte) *refusal {
	d, no := m.domain(in)
	if no != nil {
		return no
	}
	gid := [16]byte(in.Bytes("dest_addr"))
	if n, there := d.ahs[gid]; there {
		m.Host.Warnf("CREATE_AH: PD %d has handle %d for the destination: must not be called more than once for it",
			in.I("pd"), n)
		m.ahs[n].uses++
		le.PutUint16(r, n)
		return nil
	}
	if gid == [16]byte{} || gid[0] == 0xff {
		return illegal("dest_addr %x is not a unicast address", gid)
	}
	for i := range m.ahs {
		if !m.ahs[i].live {
			m.ahs[i] = ah{live: true, pd: uint16(in.U("pd")), gid: gid, uses: 1}
			d.ahs[gid] = uint16(i)
			d.users++
			le.PutUint16(r, uint16(i))
			return nil
		}
	}
	return full
}

func (m *Model) destroyAH(in parts.Msg, _ []byte) *refusal {
	d, no := m.domain(in)
	n := in.I("ah")
	switch {
	case no != nil:
		return no
	case n >= len(m.ahs) || !m.ahs[n].live || int(m.ahs[n].pd) != in.I("pd"):
		return illegal("PD %d has no AH %d", in.I("pd"), n)
	}
	h := &m.ahs[n]
	if h.uses--; h.uses > 0 {
		return nil
	}
	m.takeRung(h.pd) // whose errors are not the driver's fault
	gid := h.gid
	delete(d.ahs, gid)
	d.users--
	*h = ah{}
	m.abandon(func(o *op) bool { return int(o.ah) == n }, compFlushed)
	return nil
}
