package mlx5sim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/parts"
)

// Layout of BAR 0.
const (
	isegSize = 0x4000 // initialization segment; includes the MSI-X table at 2000h and its pending bits at 3000h
	uarSize  = 0x1000
	firstUAR = 0x10 // the initialization segment is before it; the recorded card has the same value
	uars     = 64   // number of UAR pages of this function
	vectors  = 64
)

// Initialization segment, PRM "Initialization Segment".
const (
	isegFWRev        = 0x0000 // fw_rev_minor 31:16, fw_rev_major 15:0
	isegCmdIfRev     = 0x0004 // cmd_interface_rev 31:16, fw_rev_subminor 15:0
	isegCmdqHigh     = 0x0010 // cmdq_phy_addr 63:32
	isegCmdqLow      = 0x0014 // cmdq_phy_addr 31:12, nic_interface 10:8, log_cmdq_size 7:4, log_cmdq_stride 3:0
	isegDoorbell     = 0x0018 // command_doorbell_vector
	isegInitializing = 0x01fc // initializing 31, nic_interface_supported 26:24
	isegHealth       = 0x0200 // health_buffer, 40h bytes
	isegCmdTimeout   = 0x0ff8 // command execution timeout
	isegInitTimeout  = 0x0ffc
	isegTimerHigh    = 0x1000 // internal_timer_h
	isegTimerLow     = 0x1004
	isegClearInt     = 0x100c
	isegHealthCount  = 0x1010 // health_syndrome 31:24, health_counter 23:0
	isegRealTimeHigh = 0x1040 // real_time_h: seconds
	isegRealTimeLow  = 0x1044 // real_time_l: nanoseconds
	isegClockType    = 0x2008

	cmdInterfaceRev = 5
	logCmdqSize     = 5 // 32 entries
	logCmdqStride   = 6 // of 64 bytes
)

// isegTable has the registers of the initialization segment. The others read zero.
var isegTable = parts.NewTable(isegSize, "PRM, Initialization Segment", []parts.Register[uint32]{
	parts.One[uint32](isegFWRev, "fw_rev", parts.RO, 0, 0),
	parts.One[uint32](isegCmdIfRev, "cmd_interface_rev", parts.RO, 0, 0),
	parts.One[uint32](isegCmdqHigh, "cmdq_phy_addr_h", parts.RW, 0xffffffff, 0),
	parts.One[uint32](isegCmdqLow, "cmdq_phy_addr_l", parts.RW, 0xfffff700, 0),
	parts.One[uint32](isegDoorbell, "command_doorbell_vector", parts.Eff, 0xffffffff, 0),
	parts.One[uint32](isegInitializing, "initializing", parts.RO, 0, 0),
	parts.Row[uint32](isegHealth, 16, 4, "health_buffer", parts.RO, 0, 0),
	parts.One[uint32](isegCmdTimeout, "cmd_timeout", parts.RO, 0, 0),
	parts.One[uint32](isegInitTimeout, "init_timeout", parts.RO, 0, 0),
	parts.One[uint32](isegTimerHigh, "internal_timer_h", parts.RO, 0, 0),
	parts.One[uint32](isegTimerLow, "internal_timer_l", parts.RO, 0, 0),
	parts.One[uint32](isegClearInt, "clear_int", parts.Eff, 0xffffffff, 0),
	parts.One[uint32](isegHealthCount, "health_counter", parts.RO, 0, 0),
	parts.One[uint32](isegRealTimeHigh, "real_time_h", parts.RO, 0, 0),
	parts.One[uint32](isegRealTimeLow, "real_time_l", parts.RO, 0, 0),
	parts.One[uint32](isegClockType, "clock_type", parts.RO, 0, 0),
})

type iseg struct {
	booting    int // reads until "initializing" clears; negative for never
	cmdqHigh   uint32
	addressed  bool // the low half was written: the queue is at cmdqAddr
	nicIf      uint8
	health     healthState
	clockLatch uint32
	lost       bool // reset by software: doorbells of earlier objects are not violations
}

type healthState struct {
	counter  uint32 // 24 bits
	syndrome uint8
	ext      uint16
}

func (m *Model) readISeg(off uint64, p []byte) error {
	if len(p) < 4 { // health buffer fields are bytes and words
		var d [4]byte
		be.PutUint32(d[:], m.isegDword(off&^3))
		copy(p, d[off&3:])
		return nil
	}
	for i := 0; i < len(p); i += 4 {
		be.PutUint32(p[i:], m.isegDword(off+uint64(i)))
	}
	return nil
}

func (m *Model) isegDword(off uint64) uint32 {
	v := m.prof.fw
	if m.opt.Firmware != [3]uint16{} {
		v = m.opt.Firmware
	}
	switch off {
	case isegFWRev:
		return uint32(v[1])<<16 | uint32(v[0])
	case isegCmdIfRev:
		return uint32(m.opt.InterfaceRev)<<16 | uint32(v[2])
	case isegCmdqHigh:
		return m.cmdqHigh
	case isegCmdqLow:
		return uint32(m.cmdq.base)&^0xfff | uint32(m.nicIf)<<8 | logCmdqSize<<4 | logCmdqStride
	case isegInitializing:
		if m.booting != 0 {
			if m.booting > 0 {
				m.booting--
			}
			return 1 << 31
		}
		if m.opt.EmbeddedCPU {
			return 1<<30 | 1<<24 | 1<<23
		}
		return 1<<30 | 1<<24 // software reset supported; nic_interface_supported: full driver
	case isegTimerHigh:
		ns := m.clock()
		m.clockLatch = uint32(ns)
		return uint32(ns >> 32)
	case isegTimerLow:
		return uint32(m.clock())
	case isegRealTimeHigh:
		if m.stamps() != FreeRunning {
			return uint32(m.realTime() >> 32)
		}
	case isegRealTimeLow:
		if m.stamps() != FreeRunning {
			return uint32(m.realTime())
		}
	case isegHealthCount:
		return uint32(m.health.syndrome)<<24 | m.health.counter&0xffffff
	case isegHealth + 0x30:
		major := uint32(v[0]) << 24
		if v[0] < 16 { // the ConnectX-4 generation (observed: 14.26.226 as e01a00e2h)
			major <<= 4
		}
		return major | uint32(v[1])<<16 | uint32(v[2])
	case isegHealth + 0x34:
		return m.prof.hwID
	case isegHealth + 0x38:
		if m.health.syndrome != 0 {
			return 1<<31 | 1<<27 | 2<<24 // rfr: only a reset helps; valid; severity critical
		}
	case isegHealth + 0x3c:
		return uint32(m.health.syndrome)<<16 | uint32(m.health.ext)
	}
	return 0
}

func (m *Model) writeISeg(off uint64, p []byte) error {
	if len(p) != 4 {
		return fmt.Errorf("initialization segment %03xh: write of %d bytes, its fields are dwords", off, len(p))
	}
	v := be.Uint32(p)
	at := uint32(off)
	if _, _, err := isegTable.Write(m.host, at, v, 0, isegTable.Bits(at), logCmdqSize<<4|logCmdqStride); err != nil {
		return sim.AsWarning(err) // cards tolerate it without effect
	}
	var early error
	if (off == isegCmdqHigh || off == isegCmdqLow) && m.booting != 0 {
		early = fmt.Errorf("initialization segment %02xh: written while initializing is set", off)
	}
	switch off {
	case isegCmdqHigh:
		m.cmdqHigh = v
		return sim.AsWarning(early)
	case isegCmdqLow:
		m.setInterface(uint8(v >> 8 & 7))
		if m.nicIf == 0 {
			m.cmdq.base = uint64(m.cmdqHigh)<<32 | uint64(v&^0xfff)
			m.addressed = true
		}
		return sim.AsWarning(early)
	case isegDoorbell:
		return m.ringCommand(v)
	}
	return nil
}

// setInterface handles nic_interface: 0 full driver, 1 disabled, 7 software reset, after which it reads as disabled.
// The command queue keeps its address: a driver may set the address first and reset then.
func (m *Model) setInterface(v uint8) {
	switch v {
	case 0:
		m.nicIf = 0
	default:
		wire, high, base, addressed := m.port.wire, m.cmdqHigh, m.cmdq.base, m.addressed
		m.Reset()
		m.port.wire, m.cmdqHigh, m.cmdq.base, m.addressed = wire, high, base, addressed
		m.nicIf, m.lost = 1, true
	}
}
