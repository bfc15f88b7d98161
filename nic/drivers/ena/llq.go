package ena

import (
	"cmp"
	"fmt"
	"math/bits"

	"github.com/rebound-nic/rebound/nic/kit"
)

// setLLQ chooses how frames reach the device: by the smallest LLQ entry that takes MaxInline bytes, or the largest that
// the device has; by a smaller one if it refuses that; or from host memory.
func (d *Device) setLLQ() error {
	d.llq, d.maxInline, d.noLLQ = nil, 0, "turned off"
	if d.own.Push == "off" {
		return nil
	}
	l, why, err := d.readLLQ()
	if err != nil {
		return err
	}
	if why == "" {
		for _, entry := range d.entrySizes(l) {
			if why, err = d.configureLLQ(l, entry); err != nil || why == "" {
				return err
			}
			if entry == wideEntry && l.entryHave&llqEntry128 != 0 {
				d.withoutWide(why)
			}
		}
	}
	return d.withoutLLQ(why)
}

// readLLQ reads the device's low-latency queue feature, and returns the reason if it cannot be used.
func (d *Device) readLLQ() (l llqFeature, why string, err error) {
	switch {
	case d.refusedLLQ != "":
		return l, d.refusedLLQ, nil
	case !d.has(featLLQ):
		return l, "the device has none", nil
	}
	r, err := d.get("LLQ", featLLQ, llqVersion, 0)
	if err != nil {
		return l, "", err
	}
	l = as[llqFeature](&r)
	if why := l.unknown(d.card.Options.Queues); why != "" {
		return l, why, nil
	}
	if d.mem, err = d.card.Fn.BARWC(2); err != nil {
		return l, fmt.Sprintf("memory BAR 2: %v", err), nil
	}
	return l, "", nil
}

// unknown returns why the driver cannot use what the device offers, "" if it can.
func (l *llqFeature) unknown(queues int) string {
	switch {
	case l.num < uint32(queues):
		return fmt.Sprintf("the device has %d", l.num)
	case l.headerHave&llqInline == 0 || l.strideHave&llqMultipleDescs == 0 || l.beforeHave&llqTwoBefore == 0:
		return fmt.Sprintf("offered in a form that this driver does not know: header %#x, stride %#x, descriptors before the header %#x",
			l.headerHave, l.strideHave, l.beforeHave)
	case l.entryHave&(llqEntry128|llqEntry256) == 0:
		return fmt.Sprintf("entry sizes %#x are none that this driver knows (128, 256 bytes)", l.entryHave)
	}
	return ""
}

// entrySizes returns the entry sizes to try, in order.
func (d *Device) entrySizes(l llqFeature) (sizes []int) {
	wanted := d.own.MaxInline == 0 || d.own.MaxInline > normalEntry-room || l.entryHave&llqEntry128 == 0
	if wanted && l.entryHave&llqEntry256 != 0 && d.refusedWide == "" {
		sizes = append(sizes, wideEntry)
	}
	if l.entryHave&llqEntry128 != 0 {
		sizes = append(sizes, normalEntry)
	}
	return sizes
}

// configureLLQ sets up low-latency queues with entries of a size, and returns why the device does not have them.
func (d *Device) configureLLQ(l llqFeature, entry int) (why string, err error) {
	depth := l.depth
	l.entrySet = llqEntry128
	if entry == wideEntry {
		l.entrySet = llqEntry256
		depth /= 2 // the size of the device memory for entries is fixed
		if l.wideDepth != 0 {
			depth = uint32(l.wideDepth)
		}
	}
	if depth < uint32(limits.MinRing) {
		return fmt.Sprintf("%d entries of %d bytes are too few", depth, entry), nil
	}
	l.headerSet, l.strideSet, l.beforeSet = llqInline, llqMultipleDescs, llqTwoBefore
	// Only the fields that enable something are set.
	enable := llqFeature{headerSet: l.headerSet, entrySet: l.entrySet, beforeSet: l.beforeSet, strideSet: l.strideSet,
		accel: l.accel & (accelNoMetaCache | accelLimitTxBurst)}
	if err := set(d, "LLQ", featLLQ, 0, &enable); refused(err) {
		return fmt.Sprintf("the device refuses the configuration: %v", err), nil
	} else if err != nil {
		return "", err
	}
	d.llq = &l
	d.maxInline = entry - room
	d.txRing = min(d.txRing, 1<<(bits.Len32(depth)-1))
	if !kit.MeasurePush(d.card.Fn) {
		d.card.FallBackToUncached(2, d.mem)
	}
	return "", nil
}

func (d *Device) withoutWide(why string) {
	d.card.FallBack("LLQ entries of 256 bytes", "entries of 128", "%s", why)
}

// withoutLLQ uses host memory, or fails if the user demands low-latency queues.
func (d *Device) withoutLLQ(why string) error {
	if d.own.Push == "llq" {
		return d.card.Errorf("low-latency queues were asked for: %s", why)
	}
	d.noLLQ = why
	d.card.FallBack("low-latency queues", "descriptors in host memory, which newer devices do not take", "%s", why)
	return nil
}

// notRecommended is a note if the entries are not of the size that the device recommends: throughput may be the reason
// for a small size, and a frame that is pushed whole the reason for the large one.
func (d *Device) notRecommended() []string {
	switch {
	case d.llq.recommended == llqEntry128 && d.llq.entrySet == llqEntry256 && d.llq.entryHave&llqEntry128 != 0:
		return []string{fmt.Sprintf(
			"the device recommends LLQ entries of %d bytes, %d are used: they take frames up to %d bytes whole (nic.push_max = %d: as recommended)",
			normalEntry, wideEntry, wideEntry-room, normalEntry-room)}
	case d.llq.recommended == llqEntry256 && d.llq.entrySet == llqEntry128:
		why := d.refusedWide
		if d.own.MaxInline > 0 && d.own.MaxInline <= normalEntry-room {
			why = fmt.Sprintf("nic.push_max is %d", d.own.MaxInline)
		}
		return []string{fmt.Sprintf("the device recommends LLQ entries of %d bytes, %d are used: %s", wideEntry,
			normalEntry, cmp.Or(why, "it does not take a ring of them"))}
	}
	return nil
}
