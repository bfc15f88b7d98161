package kit_test

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A trial passes each entry on to the device, with a doorbell for each, until enough were timed.
func TestTrial(t *testing.T) {
	defer mmio.PushToMemory()()
	for _, entry := range []uint32{64, 128, 256} {
		const entries = 8
		device, bell := bytes.Repeat([]byte{0xee}, int(entries+1)*int(entry)+64), uint32(0)
		ring := unsafe.Pointer(&device[0])
		ring = unsafe.Add(ring, -uintptr(ring)&63)
		all := unsafe.Slice((*byte)(ring), (entries+1)*entry)
		is := bytes.Clone(all)
		trial := kit.NewTrial(ring, &bell, entries, entry)
		stand, word := trial.Stand()
		for n := uint32(1); ; n++ {
			at := (n - 1) % entries * entry
			want := bytes.Repeat([]byte{byte(n)}, int(entry))
			copy(unsafe.Slice((*byte)(unsafe.Add(stand, at)), entry), want)
			*word = n
			to, db, timing := trial.Forward(n)
			if copy(is[at:], want); !bytes.Equal(all, is) || bell != n {
				t.Fatalf("entry %d of %d bytes: the device has %x, doorbell %d", n, entry, all, bell)
			}
			if (timing != nil) != (n >= 16) {
				t.Fatalf("after %d entries: measured %v", n, timing)
			}
			if timing == nil {
				continue
			}
			if to != ring || db != &bell || timing.Block <= 0 || timing.Store <= 0 {
				t.Errorf("measured %+v, to go on with %p and %p", timing, to, db)
			}
			break
		}
	}
}

func TestMeasured(t *testing.T) {
	defer mmio.PushToMemory()()
	for name, c := range map[string]struct {
		timing *mmio.Timing
		note   string
		falls  bool
	}{
		"not yet":   {nil, "with the first 16 replies", false},
		"combined":  {&mmio.Timing{Block: 110 * time.Nanosecond, Store: 100 * time.Nanosecond}, "BAR 2 combines stores, measured: 64 bytes", false},
		"in pieces": {&mmio.Timing{Block: 700 * time.Nanosecond, Store: 100 * time.Nanosecond}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var m kit.Measured
			if c.timing != nil {
				m.Set(c.timing)
			}
			check.Contains(t, strings.Join(m.Notes(2), " "), c.note)
			var k kit.Card
			must.OK(t, k.Open(toy(t), nic.Options{}, limits, kit.Hooks{
				Open:    func() error { m.Check(&k, 2); m.Check(&k, 2); return nil },
				Check:   func(bool) (*kit.Symptom, error) { return nil, nil },
				Release: func() error { return nil },
			}))
			defer k.Close()
			notes := strings.Join(k.Info("toy", "").Notes, "\n")
			fell := strings.Contains(notes,
				"fell back from write combining in BAR 2 to uncached stores, one bus write for each 8 or 16 bytes: measured: 64 bytes")
			check.Equal(t, fell, c.falls, "fell back: %v")
		})
	}
}
