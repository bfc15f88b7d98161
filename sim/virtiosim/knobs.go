package virtiosim

import (
	"sync/atomic"
)

// knobs survive resets, except where noted.
type knobs struct {
	needsReset, lie, stall, refuse, refusePairs, picky, forgetControl atomic.Bool
	// the reported link status; 0 for the real one
	link   atomic.Int32
	missed atomic.Uint64
}

// NeedReset sets DEVICE_NEEDS_RESET (§2.1) until the device is reset.
func (m *Model) NeedReset() { m.needsReset.Store(true) }

// Lie makes the next used entry name a buffer that the device does not have.
func (m *Model) Lie() { m.lie.Store(true) }

// Stall stops transmission until the device is reset.
func (m *Model) Stall() { m.stall.Store(true) }

// RefuseMAC makes the control queue refuse MAC addresses.
func (m *Model) RefuseMAC(on bool) { m.refuse.Store(on) }

// RefusePairs makes the control queue refuse several queue pairs: all frames arrive on the first.
func (m *Model) RefusePairs(on bool) { m.refusePairs.Store(on) }

// RefuseFeatures makes the device refuse every set of features.
func (m *Model) RefuseFeatures(on bool) { m.picky.Store(on) }

// IgnoreControl makes the device ignore commands on the control queue.
func (m *Model) IgnoreControl(on bool) { m.forgetControl.Store(on) }

// PretendNoLink makes the status field report that the link is down (§5.1.4). Frames still pass.
func (m *Model) PretendNoLink(on bool) {
	v := int32(0)
	if on {
		v = 1
	}
	m.knobs.link.Store(v)
}

// Missed returns the number of frames that arrived while there was no buffer.
func (m *Model) Missed() uint64 { return m.missed.Load() }

// Forget sets Missed to zero.
func (m *Model) Forget() { m.missed.Store(0) }
