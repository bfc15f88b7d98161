package efasim

import "github.com/rebound-nic/rebound/sim/parts"

// Counters are the device's counters since power-on.
type Counters struct {
	traffic

	RetransBytes, RetransPackets, RetransTimeouts, Unresponsive, Impaired uint64 // network statistics

	Duplicates uint64 // SRD frames that had arrived before
	Stale      uint64 // SRD frames from before a reset of their sender, or too old to tell
	LateAcks   uint64 // acknowledgements of frames that were given up
	NotOurs    uint64 // frames for another GID
	Foreign    uint64 // frames of another protocol, or received during a reset

	RxDescReads                     uint64 // DMA reads of receive descriptors
	AdminCommands, Events, HostInfo uint64
}

// getStats executes efa_admin_aq_get_stats_cmd.
func (m *Model) getStats(in parts.Msg, r []byte) *refusal {
	k, t := &m.count, &m.count.traffic
	switch scope := in.U("scope"); {
	case scope > 1:
		return illegal("scope %d: 0 (all) or 1 (queue) is expected", scope)
	case scope == 0 && in.U("scope_modifier") != 0:
		m.Host.Warnf("GET_STATS: scope_modifier %#x with scope 0", in.U("scope_modifier"))
	case scope == 1:
		q := m.numbered(uint16(in.U("scope_modifier")))
		if q == nil {
			return illegal("there is no QP %#x", in.U("scope_modifier"))
		}
		t = &q.count
	}
	caps := m.opt.Profile.Caps
	var v []uint64
	switch typ := in.U("type"); {
	case typ == statsBasic:
		v = []uint64{t.TxBytes, t.TxPackets, t.RxBytes, t.RxPackets, t.RxDrops, t.QKeyViolations}
	case typ == statsMessages:
		v = []uint64{t.SendBytes, t.SendWRs, t.RecvBytes, t.RecvWRs}
	case typ == statsRead && caps&CapRDMARead != 0:
		v = []uint64{t.ReadWRs, t.ReadBytes, t.ReadErrors, t.ReadResponseBytes}
	case typ == statsWrite && caps&CapRDMAWrite != 0:
		v = []uint64{t.WriteWRs, t.WriteBytes, t.WriteErrors, t.WriteRecvBytes}
	case typ == statsNetwork && in.U("scope") == 0:
		v = []uint64{k.RetransBytes, k.RetransPackets, k.RetransTimeouts, k.Unresponsive, k.Impaired}
	default:
		return &refusal{status: statusUnsupported}
	}
	for i, x := range v {
		le.PutUint64(r[8*i:], x)
	}
	return nil
}
