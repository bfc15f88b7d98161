package efa

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

// Memory is registered in pages that the device supports, of which a region has only so many.
func TestRegionPages(t *testing.T) {
	for sizes, want := range map[uint64]string{
		1 << 13: "no memory region in pages of 4 KiB (page sizes 0x2000)",
		1 << 12: "messages take 2 pages of 4 KiB, the device has up to 1 in a region",
	} {
		s := rig.NewScript(t)
		d := &Device{queue: queueAttr1{maxMRPages: 1}}
		d.attr.pageSizes, d.card.Fn = sizes, &s
		must.OK(t, d.card.Allocate(1<<20))
		_, _, err := (&admin{d: d}).register(4097)
		check.Fails(t, "register", err, nil, want)
		d.card.Deallocate()
	}
}

func TestAddress(t *testing.T) {
	for name, want := range map[string]uint16{"0000:3b:1f.7": 0x3BFF, "ffff:80:00.0": 0x8000, "model": 0,
		"0000:3b:1f": 0} {
		check.Equal(t, address(name), want, name+" is at %#x")
	}
}

// Sizes are derived from the device's limits; an unsupported device is rejected with its limits in the error.
func TestLimits(t *testing.T) {
	good := queueAttr1{maxQP: 256, maxSQDepth: 4096, inline: 32, maxRQDepth: 32768, maxCQ: 512, maxCQDepth: 32768,
		subCQs: 1, maxLLQ: 1 << 18}
	for _, c := range []struct {
		name         string
		set          func(d *Device)
		depth, entry uint32
		inline       uint32
		want         string
	}{
		{"as EFA1 is", func(d *Device) {}, 256, 64, 32, ""},
		{"wide inline data", func(d *Device) { d.inline = 80 }, 256, 128, 80, ""},
		{"wider than an entry", func(d *Device) { d.inline = 500 }, 256, 128, 96, ""},
		{"little LLQ memory", func(d *Device) { d.queue.maxLLQ = 64 * 100 }, 64, 64, 32, ""},
		{"little LLQ memory, wide", func(d *Device) { d.inline, d.queue.maxLLQ = 80, 64*100 }, 32, 128, 80, ""},
		{"shallow send queues", func(d *Device) { d.queue.maxSQDepth = 100 }, 64, 64, 32, ""},
		{"deep send queues", func(d *Device) { d.queue.minSQDepth = 1000 }, 1024, 64, 32, ""},
		{"deep send queues without memory", func(d *Device) { d.queue.minSQDepth, d.queue.maxLLQ = 1000, 1<<15 }, 0, 0, 0, "send queues of 1000 to 4096 entries in 32768 bytes"},
		{"no send queue", func(d *Device) { d.queue.maxSQDepth = 0 }, 0, 0, 0, "send queues of 0 to 0 entries"},
		{"no LLQ", func(d *Device) { d.inline, d.queue.inline, d.queue.maxLLQ = 0, 0, 0 }, 0, 0, 0, "no low-latency queues"},
		{"no rings", func(d *Device) { d.queue.subCQs = 0 }, 0, 0, 0, "completion queues of 0 rings"},
		{"few queue pairs", func(d *Device) { d.queue.maxQP = 1 }, 0, 0, 0, "the device has 1 and 512"},
		{"short receive queues", func(d *Device) { d.queue.maxRQDepth = 128 }, 0, 0, 0, "ring size 256, the device takes up to 128"},
		{"short completion queues", func(d *Device) { d.queue.maxCQDepth = 256 }, 0, 0, 0, "needs a completion queue of 512 entries"},
	} {
		d := &Device{own: Options{Services: []nic.Service{nic.EchoUD, nic.EchoSRD}}, ring: 256, queue: good, inline: 32}
		d.card.Options.Queues = 1
		c.set(d)
		err := d.limits()
		switch {
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		case c.want == "" && (err != nil || d.sqDepth != c.depth || d.entry != c.entry || d.inline != c.inline):
			t.Errorf("%s: %d entries of %d, %d inline, %v", c.name, d.sqDepth, d.entry, d.inline, err)
		}
	}
}
