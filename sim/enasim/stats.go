package enasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/amazon"
)

// Counters are the adapter's counters since power-on. TxBytes excludes the padding of short frames.
type Counters struct {
	RxFrames, RxBytes, RxDrops, RxOverruns, RxTooLong uint64
	TxFrames, TxBytes, TxDrops, TxPadding             uint64
	RxQueue, TxQueue                                  [maxQueues]uint64

	TxDescReads, TxPayloadReads, RxDescReads uint64 // DMA reads by purpose
	AdminCommands, Events                    uint64
	Allowance                                Allowance
}

// Allowance has EC2's traffic shaping counters, ena_admin_eni_stats and ena_admin_customer_metrics_id.
type Allowance struct {
	BandwidthIn, BandwidthOut, Packets, Conntrack, LinkLocal uint64
	ConntrackAvailable                                       uint64
}

func (a *Allowance) list() [6]uint64 {
	return [6]uint64{a.BandwidthIn, a.BandwidthOut, a.Packets, a.Conntrack, a.LinkLocal, a.ConntrackAvailable}
}

// Statistics types, ena_admin_get_stats_type.
const (
	statsBasic   = 0
	statsENI     = 2
	statsMetrics = 4

	ownDevice = 0xffff
)

// basic is ena_admin_basic_stats.
func (m *Model) basic() [7]uint64 {
	k, s := &m.count, &m.since
	return [7]uint64{k.TxBytes - s.TxBytes, k.TxFrames - s.TxFrames, k.RxBytes - s.RxBytes, k.RxFrames - s.RxFrames,
		k.RxDrops - s.RxDrops,
		k.TxDrops - s.TxDrops, k.RxOverruns - s.RxOverruns}
}

// getStats is ena_admin_aq_get_stats_cmd.
func (m *Model) getStats(c *amazon.Message, r []byte) (byte, error) {
	k := &m.count
	if le.Uint16(c[18:]) != 0 {
		return statusMalformed, fmt.Errorf("GET_STATS: reserved bits set")
	}
	if queue, device := le.Uint16(c[20:]), le.Uint16(c[22:]); queue != 0 {
		m.Host.Warnf("GET_STATS: queue_idx is accepted, and the counters are those of all queues in this model")
	} else if device != 0 && device != ownDevice {
		m.Host.Warnf("GET_STATS: device_id is accepted, and the counters are those of this device")
	}
	switch typ, scope := c[16], c[17]; typ {
	case statsBasic:
		if scope > 1 {
			return statusIllegal, fmt.Errorf("GET_STATS: scope %d", scope)
		}
		for i, v := range m.basic() {
			le.PutUint64(r[8*i:], v)
		}
	case statsENI:
		for i, v := range k.Allowance.list() {
			if i < 5 {
				le.PutUint64(r[8*i:], v)
			}
		}
	case statsMetrics:
		if m.opt.NoMetrics {
			return statusUnsupported, nil
		}
		want := le.Uint64(c[24:])
		if want == 0 || want&^0x3f != 0 {
			return statusIllegal, fmt.Errorf("GET_STATS: requested_metrics %#x, 0x3f are supported", want)
		}
		var b []byte
		for i, v := range k.Allowance.list() {
			if want>>i&1 != 0 {
				b = le.AppendUint64(b, v)
			}
		}
		le.PutUint64(r[0:], want)
		if le.Uint32(c[4:]) == 0 {
			break // Linux first queries without a buffer, to learn which exist
		}
		a, err := m.control(c, "GET_STATS", len(b))
		if err != nil {
			return statusIllegal, err
		}
		m.Host.DMAWrite(a, b)
	default:
		return statusUnsupported, nil
	}
	return statusOK, nil
}
