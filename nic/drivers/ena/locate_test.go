package ena

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
	"github.com/rebound-nic/rebound/proof/check"
)

// Doorbells and LLQ entries are where the device says, if that is aligned and within the BAR.
func TestLocate(t *testing.T) {
	bar, mem := make([]byte, 0x100), make([]byte, 0x3000)
	d := &Device{bar: mmio.Mapped(bar, false), mem: mmio.Mapped(mem, true), txRing: 64, maxInline: 96,
		llq: &llqFeature{accel: accelLimitTxBurst, maxBurst: 256}}
	for _, c := range []struct {
		at    registers
		burst uint16
		says  string
	}{
		{registers{rxDB: 0, txDB: 0xfc, llq: 0x1000}, 256, ""},
		{registers{rxDB: 4, txDB: 8, llq: 0, rxHead: 12, txHead: 0xfc}, 128, ""},
		{registers{rxDB: 0x100, txDB: 8}, 256, "doorbell at 0x100, BAR 0 has 0x100 bytes"},
		{registers{rxDB: 0xfe, txDB: 8}, 256, "doorbell at 0xfe"},
		{registers{rxDB: 4, txDB: 2}, 256, "doorbell at 0x2"},
		{registers{rxDB: 4, txDB: 8, rxHead: 0x100}, 256, "doorbell at 0x100"},
		{registers{rxDB: 4, txDB: 8, txHead: 0xfffffffc}, 256, "doorbell at 0xfffffffc"},
		{registers{rxDB: 4, txDB: 8, llq: 0x1040}, 256, "LLQ at 0x1040 of 0x2000 bytes, BAR 2 has 0x3000"},
		{registers{rxDB: 4, txDB: 8, llq: 0x20}, 256, "LLQ at 0x20"},
		{registers{rxDB: 4, txDB: 8, llq: 0xffffffc0}, 256, "LLQ at 0xffffffc0"},
		{registers{rxDB: 4, txDB: 8}, 127, "bursts of 127 bytes hold no entry of 128"},
	} {
		d.llq.maxBurst = c.burst
		q := &Queue{rxHeadDB: new(uint32), txHeadDB: new(uint32)}
		err := d.locate(q, c.at)
		if c.says != "" {
			check.Fails(t, fmt.Sprintf("%+v", c.at), err, amazonadmin.ErrDevice, c.says)
			continue
		}
		check.OK(t, err)
		at := func(p *uint32, off uint32, optional bool) bool {
			if off == 0 && optional {
				return p == nil
			}
			return unsafe.Pointer(p) == unsafe.Pointer(&bar[off])
		}
		if !at(q.rxDB, c.at.rxDB, false) || !at(q.txDB, c.at.txDB, false) || !at(q.rxHeadDB, c.at.rxHead, true) ||
			!at(q.txHeadDB, c.at.txHead, true) || unsafe.Pointer(q.llq) != unsafe.Pointer(&mem[c.at.llq]) ||
			q.entry != 128 || q.maxInline != 96 || q.burst != uint32(c.burst)/128 {
			t.Errorf("%+v: %+v", c.at, q)
		}
	}
}
