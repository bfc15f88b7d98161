package mlx5

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// The longest frame that goes whole into its WQE is limited by the WQE, half a BlueFlame register and the setting, and
// is not shorter than the headers that the vport demands.
func TestPushMax(t *testing.T) {
	for _, c := range []struct {
		own       Options
		caps      capabilities
		minInline uint32
		want      string
	}{
		{want: "226 []"},
		{own: Options{Push: "auto"}, caps: capabilities{bfHalf: 128, maxWQE: 192}, want: "98 []"},
		{own: Options{Push: "full"}, caps: capabilities{bfHalf: 256, maxWQE: 192}, want: "162 []"},
		{own: Options{Push: "header"}, minInline: minInlineIP, want: "62 []"},
		{own: Options{Push: "off"}, want: "0 []"},
		{own: Options{MaxInline: 226}, want: "226 []"},
		{own: Options{MaxInline: 1}, minInline: minInlineTCP, want: "82 []"},
		{own: Options{MaxInline: 227}, want: "226 [frames are pushed whole up to 226 bytes, 227 were asked for]"},
	} {
		d := &Device{own: c.own, caps: c.caps, minInline: c.minInline}
		if d.choosePush(); fmt.Sprint(d.maxInline, d.lacks) != c.want {
			t.Errorf("%+v: %d %q", c, d.maxInline, d.lacks)
		}
	}
}

// hardware is a script that does not say that it is one.
type hardware struct{ *scripted }

func (hardware) Simulated() bool { return false }

// A queue uses BlueFlame if the device has it, the mapping combines writes, and it is not switched off.
func TestDoorbell(t *testing.T) {
	defer mmio.PushToMemory()() // MOVDIR64B needs no write combining
	for _, c := range []struct {
		push   string
		bfHalf uint32
		mapped uint64 // bytes of the page that are memory
		real   bool
		want   string // whether the doorbell and BlueFlame are in the page, the error, and why there is no BlueFlame
	}{
		{"", 256, 0x1000, false, "true true <nil> "},
		{"off", 256, 0x1000, false, "true false <nil> "},
		{"", 0, 0x1000, false, "true false <nil> the device has none"},
		{"", 256, 0x1000, true, "true false <nil> BAR 0 is not mapped write-combining"},
		{"", 256, 0x800, false, "false false mmio: registers 0x800 to 0x807 are trapped"},
		{"", 256, 0x808, false, "true false mmio: registers 0x800 to 0x9ff are trapped"},
	} {
		f := newFirmware(t)
		d, log, page := f.device(), bytes.Buffer{}, make([]byte, 0x1000)
		d.card.Log, d.own.Push, d.caps.bfHalf = slog.New(slog.NewTextHandler(&log, nil)), c.push, c.bfHalf
		if c.real {
			d.card.Fn = hardware{f}
		}
		inside := func(off, n uint64) bool { return off+n <= c.mapped }
		q := &Queue{uar: uar{window: mmio.Trapped(0x1000, f, page, inside)}}
		err := d.doorbell(q)
		at := unsafe.Pointer(&page[uarBF])
		_, why, _ := strings.Cut(log.String(), "reason=")
		got := fmt.Sprintln(unsafe.Pointer(q.db) == at, q.bf == at, err, strings.Trim(why, "\"\n"))
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
