package efasim

import (
	"slices"

	"github.com/rebound-nic/rebound/sim/parts"
)

func (m *Model) offered() uint64 {
	f := uint64(1<<featDevice | 1<<featAENQ | 1<<featNetwork | 1<<featQueue1 | 1<<featHints | 1<<featHost |
		1<<featEvents)
	if m.opt.Profile.Inline > 0 {
		f |= 1 << featQueue2
	}
	return f &^ m.opt.Unsupported
}

// getFeature executes efa_admin_get_feature_cmd.
func (m *Model) getFeature(in parts.Msg, r []byte) *refusal {
	id, p := in.U("feature_id"), &m.opt.Profile
	if id >= 64 || m.offered()&(1<<id) == 0 && id != featDevice {
		return &refusal{status: statusUnsupported} // a driver may try
	}
	u16 := func(at int, v uint16) { le.PutUint16(r[at:], v) }
	u32 := func(at int, v uint32) { le.PutUint32(r[at:], v) }
	switch id {
	case featDevice:
		le.PutUint64(r[0:], m.offered())
		le.PutUint64(r[8:], pageSizes)
		u32(20, 1) // admin API version; the firmware's is 0 on every device in public logs
		u32(24, uint32(p.Device))
		u16(28, uint16(m.opt.doorbells))
		r[30], r[31] = byte(m.opt.Width), 64
		u32(32, p.Caps)
		if p.Caps&(CapRDMARead|CapRDMAWrite) != 0 {
			u32(36, p.MaxRDMA)
		}
		if p.GUID {
			copy(r[40:], m.gid[8:]) // as EUI-64
		}
		u16(48, p.LinkGbps)
	case featAENQ:
		u32(0, eventGroups)
		u32(4, m.Groups)
	case featNetwork:
		copy(r, m.gid[:])
		u32(16, mtu)
	case featQueue1:
		for i, v := range []uint32{maxQP, maxSQDepth, inlineMax, maxRQDepth, maxCQ, maxCQDepth} {
			u32(4*i, v)
		}
		for i, v := range []uint16{p.SubCQs, p.MinSQ, maxSendSGE, maxRecvSGE} {
			u16(24+2*i, v)
		}
		for i, v := range []uint32{p.MaxMR, maxMRPages, maxPD, maxAH, maxLLQ} {
			u32(32+4*i, v)
		}
		if p.Caps&(CapRDMARead|CapRDMAWrite) != 0 {
			u16(52, maxRDMASGE)
		}
		u16(54, p.Batch)
	case featHints:
		h := &m.opt.Hints
		for i, v := range []uint16{h.MMIOReadTimeout, h.Watchdog, h.AdminTimeout, h.PollInterval} {
			u16(2*i, v)
		}
	case featEvents:
		for i, v := range []uint32{maxEQ, maxEQDepth, eventMask} {
			u32(4*i, v)
		}
	case featQueue2:
		u16(0, p.Inline)
	default:
		return &refusal{status: statusUnsupported}
	}
	return nil
}

// setFeature executes efa_admin_set_feature_cmd.
func (m *Model) setFeature(in parts.Msg, _ []byte) *refusal {
	id := in.U("feature_id")
	if id >= 64 || m.offered()&(1<<id) == 0 {
		return &refusal{status: statusUnsupported}
	}
	body := in.Bytes("body")
	switch id {
	case featAENQ:
		enabled := le.Uint32(body[4:])
		if enabled&^eventGroups != 0 {
			return illegal("groups %#x, %#x are supported", enabled, eventGroups)
		}
		m.Groups = enabled
		return nil
	case featHost:
		return m.setHost(in)
	}
	return illegal("the feature cannot be set")
}

// hostInfo is the size in bytes of efa_admin_host_info.
const hostInfo = 180

// setHost reads efa_admin_host_info.
func (m *Model) setHost(in parts.Msg) *refusal {
	a, no := m.control(in, hostInfo)
	if no != nil {
		return no
	}
	b := make([]byte, hostInfo)
	if m.Host.DMARead(a, b) != nil {
		return unreachable
	}
	if os := le.Uint32(b[128:]); os != 0 {
		m.Host.Warnf("HOST_INFO: os_type %d: 0 (Linux) is all that the definitions have", os)
	}
	// The published driver has a version outside Linux's tree only, and always reports the kernel's.
	switch version, flags := le.Uint32(b[168:]), le.Uint32(b[176:]); {
	case version == 0 && flags&1 == 0, version != 0 && flags&1 != 0:
		m.Host.Warnf("HOST_INFO: driver version %#x, flags %#x: a driver has a version or is in Linux's tree", version,
			flags)
	case le.Uint32(b[164:]) == 0:
		m.Host.Warnf("HOST_INFO: kernel version 0")
	}
	if spec := le.Uint16(b[174:]); spec>>8 != 2 {
		return illegal("HOST_INFO: spec version %#x, major 2 is expected", spec)
	}
	if slices.Index(b[:128], 0) < 0 || slices.Index(b[132:164], 0) < 0 {
		m.Host.Warnf("HOST_INFO: a string has no end")
	}
	m.count.HostInfo++
	return nil
}
