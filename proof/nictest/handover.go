package nictest

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/vfiouser"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// checkHandOver: another process takes over the device; this process plays both ends. One that gives up changes nothing. With
// Harness.Continues no request is lost, neither those that wait in the ring nor those whose replies are being sent, and the next
// process can restart the device. Otherwise, or with other settings, the device is started again.
func checkHandOver(x *rig) {
	if x.h.Beside != nil {
		x.Skip("the function stays with the kernel's driver")
	}
	x.open(x.h.Queues)
	if heritable(x.dev) == nil {
		x.Skip("the driver does not hand over")
	}
	before := held(x)
	for round := range 3 {
		x.traffic(3*x.h.Ring/2 + round) // more than a ring
		given := x.successor(nil, x.h.Ring)
		if !given.afresh {
			must.Close(x, given.dev)
			x.exchange(x.requests(x.h.Ring/2, 100))
			given = x.successor(nil, x.h.Ring)
		}
		x.takeOver(given, x.h.Continues)
	}
	x.holdsNoMore(before)
	x.takeOver(x.successor(nil, 2*x.h.Ring), false)
	before = held(x)
	x.takeOver(x.successor(nil, 2*x.h.Ring), x.h.Continues)
	x.holdsNoMore(before)
	x.resetWhileServing()
	x.close()
	if n := x.port.Mappings(); n != 0 || x.port.BusMaster() {
		x.Errorf("%d DMA mappings are left, bus mastering is %v", n, x.port.BusMaster())
	}
}

// OtherVersions checks that a device that another version of its driver describes is started again. One driver's test runs it for all.
func OtherVersions(t *testing.T, h Harness) {
	h.VFIOUser = true
	for name, alter := range map[string]func(device map[string]any){
		"layout":  func(device map[string]any) { device["Layout"] = 1 << 20 },
		"no keep": func(device map[string]any) { delete(device, "Own") },
		"memory":  func(device map[string]any) { device["Arena"].(map[string]any)["Blocks"] = nil },
		"files":   func(device map[string]any) { device["Arena"].(map[string]any)["Mappings"] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, h)
			x.open(1)
			before := held(x)
			x.exchange(x.requests(h.Ring/2, 100))
			x.takeOver(x.successor(alter, h.Ring), false)
			x.holdsNoMore(before)
			x.close()
		})
	}
}

// OtherPositions checks that a process does not continue at a position that does not fit what it knows of the device, and that it can then
// close the device. One driver's test runs it for all.
func OtherPositions(t *testing.T, h Harness) {
	h.VFIOUser = true
	for name, alter := range map[string]func(position map[string]any){
		"memory":   func(position map[string]any) { position["Blocks"] = 1 },
		"restarts": func(position map[string]any) { position["Restarts"] = 1 },
		"queues":   func(position map[string]any) { position["Place"] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, h)
			x.open(1)
			s := x.successor(nil, h.Ring)
			var all map[string]any
			x.busy("hand-over", func() {
				must.OK(t, json.Unmarshal(must.Get(heritable(x.dev).Position())(t), &all))
				alter(all)
				check.Fails(t, "Continue", heritable(s.dev).Continue(must.Get(json.Marshal(all))(t)), nil)
			})
			must.Close(t, x.dev)
			x.dev, x.fn = s.dev, s.fn
			x.close()
			if n := x.port.Mappings(); n != 0 || x.port.BusMaster() {
				t.Errorf("%d DMA mappings are left, bus mastering is %v", n, x.port.BusMaster())
			}
		})
	}
}

// traffic has n requests answered, half a ring at a time: a virtio ring lacks buffers where one would cross the end of a mapping.
func (x *rig) traffic(n int) {
	x.Helper()
	for ; n > 0; n -= x.h.Ring / 2 {
		x.exchange(x.requests(min(n, x.h.Ring/2), 100))
	}
}

// heritable returns a driver's side of the hand-over, nil if it has none.
func heritable(d nic.Device) nic.Heritable {
	if h, ok := d.(interface{ Heritable() nic.Heritable }); ok {
		return h.Heritable()
	}
	return nil
}

// successor is the device as the next process has it.
type successor struct {
	dev    nic.Device
	fn     *vfiouser.Function
	afresh bool // the device was stopped and started again
}

// successor opens the device in the next process, which gets a description of the running device that alter has changed.
func (x *rig) successor(alter func(device map[string]any), ring int) (s successor) {
	x.Helper()
	old := heritable(x.dev)
	in := must.Get(old.Bequest())(x)
	for i, fd := range in.Files {
		in.Files[i] = must.Get(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(x)
	}
	if alter != nil {
		var all map[string]any
		must.OK(x, json.Unmarshal(in.State, &all))
		if device, ok := all["Device"].(map[string]any); ok {
			alter(device)
		}
		in.State = must.Get(json.Marshal(all))(x)
	}
	in.Afresh = func() error {
		s.afresh = true
		return old.(nic.Yielder).Yield()
	}
	s.fn = must.Get(vfiouser.Inherit(must.Get(kit.InheritedFunction(&in))(x)))(x)
	o := nic.Options{Device: "sim:test", Queues: len(x.resp), RingSize: ring, MTU: x.mtu, MAC: ourMAC, Log: slog.New(slog.DiscardHandler), Inherited: &in}
	var err error
	x.busy("Open of the next process", func() { s.dev, err = x.h.Open(s.fn, o) })
	must.OK(x, err)
	return s
}

// takeOver ends the driver that runs, under traffic, and continues with s.
func (x *rig) takeOver(s successor, continues bool) {
	x.Helper()
	if s.afresh == continues {
		x.Fatalf("the device was started again: %v", s.afresh)
	}
	var reqs [][]byte
	if continues {
		reqs = x.requests(x.h.Ring/2, 100)
		x.send(reqs...)
		x.port.Settle(100000)
		x.poll() // some are answered, and wait to be sent; others are not
	}
	var position []byte
	var err error
	before, info := x.numbers(), x.dev.Info()
	var was nic.Stats
	if continues {
		was = x.stats()
	}
	x.busy("end of the process that ran", func() {
		if continues {
			var s nic.Stats
			must.OK(x, x.dev.ReadStats(&s)) // the last: what comes then is the next process's
			position, err = heritable(x.dev).Position()
		}
		if closed := x.dev.Close(); err == nil {
			err = closed
		}
	})
	must.OK(x, err)
	x.dev, x.fn = s.dev, s.fn
	x.busy("start of the next process", func() { err = heritable(x.dev).Continue(position) })
	must.OK(x, err)
	if continues {
		for name, n := range x.numbers() {
			if n != before[name] {
				x.Errorf("%s is %d, and was %d", name, n, before[name])
			}
		}
		if now := x.dev.Info(); !reflect.DeepEqual(now, info) {
			x.Errorf("the next process describes the device as\n%+v, and the one before as\n%+v", now, info)
		}
		is := x.stats()
		if was, is := was.Extra["firmware_pages"], is.Extra["firmware_pages"]; is != was {
			x.Errorf("the next process says that the firmware has %d pages, and the one before said %d", is, was)
		}
		for name := range was.Extra {
			if _, ok := is.Extra[name]; !ok {
				x.Errorf("the next process does not count %s", name)
			}
		}
	}
	x.settle()
	if n := x.match(reqs); n != len(reqs) {
		x.Fatalf("%d of %d requests were answered", n, len(reqs))
	}
	x.traffic(x.h.Ring)
	if got, want := x.dev.Info().MAC, fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", ourMAC[0], ourMAC[1], ourMAC[2], ourMAC[3], ourMAC[4], ourMAC[5]); got != want {
		x.Errorf("Info().MAC is %s, want %s", got, want)
	}
	if l := x.link(); !l.Up {
		x.Errorf("the link is %+v", l)
	}
	if n := x.stats().RxFrames; n < uint64(x.h.Ring) || n > uint64(len(reqs)+x.h.Ring) {
		x.Errorf("%d frames were received, want %d to %d", n, x.h.Ring, len(reqs)+x.h.Ring)
	}
}

// numbers are the numbers in the queues, such as positions in rings, without counters and those that are private to a process.
func (x *rig) numbers() map[string]uint64 {
	all := map[string]uint64{}
	var walk func(queue int, prefix string, v reflect.Value)
	walk = func(queue int, prefix string, v reflect.Value) {
		for i := range v.NumField() {
			f, name := v.Field(i), prefix+v.Type().Field(i).Name
			switch {
			case slices.Contains(x.h.Private, name) || f.Type() == reflect.TypeFor[polling.Counter]():
			case f.Kind() == reflect.Struct:
				walk(queue, name+".", f)
			case f.Kind() == reflect.Bool && f.Bool():
				all[fmt.Sprintf("queue %d %s", queue, name)] = 1
			case f.CanInt():
				all[fmt.Sprintf("queue %d %s", queue, name)] = uint64(f.Int())
			case f.CanUint():
				all[fmt.Sprintf("queue %d %s", queue, name)] = f.Uint()
			}
		}
	}
	if x.h.Queue != nil {
		for q := range x.resp {
			walk(q, "", reflect.ValueOf(x.h.Queue(x.dev, q)).Elem())
		}
	}
	return all
}
