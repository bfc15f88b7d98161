package mlx4

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// The longest frame that goes whole into its WQE is limited by the WQE, half a BlueFlame register and the setting.
func TestPushMax(t *testing.T) {
	for _, c := range []struct {
		own    Options
		caps   capabilities
		subnet *subnet
		want   string
	}{
		{want: "224 4 []"},
		{own: Options{Push: "off", MaxInline: 98}, want: "0 0 []"},
		{caps: capabilities{bfHalf: 64, maxWQE: 1008}, want: "44 1 []"},
		{caps: capabilities{bfHalf: 256, maxWQE: 128}, want: "104 2 []"},
		{caps: capabilities{bfHalf: 512, maxWQE: 64}, want: "44 1 []"},
		{subnet: new(subnet), want: "190 4 []"},
		{own: Options{Push: "full", MaxInline: 98}, want: "98 4 []"},
		{own: Options{MaxInline: 224}, want: "224 4 []"},
		{own: Options{MaxInline: 225}, want: "224 4 [frames are pushed whole up to 224 bytes, 225 were asked for]"},
	} {
		d := &Device{own: c.own, caps: c.caps, subnet: c.subnet}
		if d.choosePush(); fmt.Sprint(d.inlineMax, d.pushBlocks, d.lacks) != c.want {
			t.Errorf("%+v: %d of %d blocks %q", c, d.inlineMax, d.pushBlocks, d.lacks)
		}
	}
}

// hardware is a script that does not say that it is one.
type hardware struct{ *script }

func (hardware) Simulated() bool { return false }

// A queue uses BlueFlame if the device has it, the mapping combines writes, it is not switched off, and it worked.
func TestDoorbell(t *testing.T) {
	defer mmio.PushToMemory()() // MOVDIR64B needs no write combining
	for _, c := range []struct {
		push   string
		flames uint64 // bytes of the register that are memory
		change func(d *Device)
		want   string // whether the doorbell and BlueFlame are in the pages, the error, and why there is no BlueFlame
	}{
		{"", 512, func(*Device) {}, "true true <nil> "},
		{"off", 512, func(*Device) {}, "true false <nil> "},
		{"", 512, func(d *Device) { d.flames = nil }, "true false <nil> the device has none"},
		{"", 512, func(d *Device) { d.flameless = true }, "true false <nil> " + nothingSent},
		{"", 512, func(d *Device) { d.card.Fn = hardware{} }, "true false <nil> BAR 2 is not mapped write-combining"},
		{"", 511, func(*Device) {}, "true false mmio: registers 0x6000 to 0x61ff are trapped"},
		{"", 512, func(d *Device) { d.uars = d.flames }, "false false mmio: registers 0x2014 to 0x2017 are trapped"},
	} {
		var log bytes.Buffer
		bells, flames := make([]byte, 3*uarPage), make([]byte, 7*uarPage)
		d, q := new(Device), &Queue{uar: 2, number: benchQPN << 8}
		d.card.Fn, d.card.Log = newScript(t), slog.New(slog.NewTextHandler(&log, nil))
		d.own.Push, d.caps.uars, d.caps.bfHalf = c.push, 4, 256
		d.uars = mmio.Mapped(bells, false)
		d.flames = mmio.Trapped(uint64(len(flames)), nil, flames,
			func(off, n uint64) bool { return off >= 6*uarPage && off+n <= 6*uarPage+c.flames })
		c.change(d)
		err := d.doorbell(q)
		_, why, _ := strings.Cut(log.String(), "reason=")
		got := fmt.Sprintln(unsafe.Pointer(q.db) == unsafe.Pointer(&bells[2*uarPage+uarSend]),
			q.bf == unsafe.Pointer(&flames[6*uarPage]), err, strings.Trim(why, "\"\n"))
		if !strings.HasPrefix(got, c.want) || (q.bf != nil) != (q.indexes != 0) || q.db != nil && q.bfHalf != 256 {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
