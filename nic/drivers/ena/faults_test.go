package ena_test

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/ena"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/enasim"
)

// live is a device that runs freely, and a driver that serves if start opened it.
type live struct {
	testing.TB
	m    *enasim.Model
	port *sim.Port
	far  *sim.Cable
	fn   *sim.Function
	dev  *ena.Device
	log  devrig.Log

	asked uint64 // requests sent
}

func device(t testing.TB, o enasim.Options) *live {
	t.Helper()
	o.MAC = mac
	x := &live{TB: t, m: enasim.New(o)}
	x.port = must.Get(sim.New(x.m, sim.Options{Name: "ena"}))(t)
	var near *sim.Cable
	near, x.far = sim.Pair()
	x.port.Connect(near)
	x.port.Start()
	t.Cleanup(func() {
		x.port.Stop()
		for _, v := range x.port.Violations() {
			// A restart turns bus mastering off first, even if the device is about to write: a frame may have just
			// arrived.
			if len(x.m.Resets()) > 1 && strings.Contains(v, "DMA while bus mastering is off") {
				continue
			}
			t.Error("violation: ", v)
		}
		x.port.Close()
	})
	x.fn = must.Get(x.port.Function())(t)
	return x
}

func start(t testing.TB, o enasim.Options) *live {
	t.Helper()
	x := device(t, o)
	x.dev = must.Get(ena.Open(x.fn, nic.Options{RingSize: 64, Log: slog.New(slog.NewTextHandler(&x.log, nil))},
		ena.Options{}))(t)
	stop := devrig.Serving(x.dev, nictest.NewResponder(t))
	t.Cleanup(func() {
		check.OK(t, stop())
		must.Close(t, x.dev)
	})
	x.until("echo", x.echo)
	return x
}

// until waits for a condition that must become true.
func (x *live) until(what string, ok func() bool) {
	x.Helper()
	await.Until(x, what, ok, x.log.String)
}

func (x *live) ask() {
	x.far.Send(0, nictest.EchoRequest(98))
	x.asked++
}

func (x *live) echo() bool {
	for x.far.Recv(0) != nil {
	}
	x.ask()
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		if f := x.far.Recv(0); len(f) == 98 {
			return true
		}
	}
	return false
}

func (x *live) resets(reason int) func() bool {
	return func() bool { return slices.Contains(x.m.Resets(), reason) }
}

func (x *live) stats() nic.Stats {
	x.Helper()
	var s nic.Stats
	must.OK(x, x.dev.ReadStats(&s))
	return s
}

// TestRecovers breaks the device in one way at a time: the driver resets it for the right reason, counts that, and
// answers again.
func TestRecovers(t *testing.T) {
	for _, c := range []struct {
		name   string
		reason int
		extra  string
		broken func(x *live)
		repair func(x *live)
	}{
		{"keep-alive withheld", 1, "resets_keep_alive",
			func(x *live) { x.m.WithholdKeepAlive(true) }, func(x *live) { x.m.WithholdKeepAlive(false) }},
		{"admin queue stalled", 2, "resets_admin_timeout", func(x *live) {
			x.m.StallAdmin(true)
			check.Fails(x, "statistics", x.dev.ReadStats(new(nic.Stats)), nic.ErrTimeout)
			x.m.StallAdmin(false)
		}, nil},
		{"transmit stuck", 3, "resets_missed_tx_completion", func(x *live) { x.m.HoldCompletions(true); x.echo() },
			func(x *live) { x.m.HoldCompletions(false) }},
		{"receive request ID", 4, "resets_invalid_rx_req_id", func(x *live) {
			x.m.TamperCompletion(false, func(b []byte) { binary.LittleEndian.PutUint16(b[6:], 0xfff0) })
			x.echo()
		}, nil},
		{"receive completion twice", 4, "resets_invalid_rx_req_id",
			func(x *live) { x.m.DuplicateCompletion(false, 1); x.echo() }, nil},
		{"transmit request ID", 5, "resets_invalid_tx_req_id", func(x *live) {
			x.m.TamperCompletion(true, func(b []byte) { binary.LittleEndian.PutUint16(b, 0xfff0) })
			x.echo()
		}, nil},
		{"transmit completion twice", 5, "resets_invalid_tx_req_id",
			func(x *live) { x.m.DuplicateCompletion(true, 1); x.echo() }, nil},
		{"suspended permanently", 13, "resets_suspended", func(x *live) {
			x.m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: enasim.NotifySuspend})
		}, nil},
		{"fatal error", 13, "resets_fatal_error", func(x *live) { x.m.Fail() }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			switch c.name {
			case "keep-alive withheld", "admin queue stalled", "transmit stuck", "suspended permanently": // for seconds
				needs.Long(t)
			}
			t.Parallel()
			// Short timeouts only for the fault under test. A reset after a missed keep-alive would end the fault on a
			// busy host.
			hints := enasim.Hints{Watchdog: 60000}
			switch c.reason {
			case 1:
				hints.Watchdog = 1500
			case 3:
				hints.MissingTx = 300
			}
			x := start(t, enasim.Options{Hints: hints})
			before := x.stats()
			c.broken(x)
			x.until("reset", x.resets(c.reason))
			if c.repair != nil {
				c.repair(x)
			}
			x.until("echo after the reset", x.echo)
			if s := x.stats(); s.Resets == 0 || s.Extra[c.extra] == 0 || s.RxFrames < before.RxFrames {
				t.Errorf("statistics: %+v", s)
			}
		})
	}
}

// TestFloodOfCompletions: more completions than the ring holds overwrite each other. A driver that polls after the last
// one finds no entry of the expected round; one that polls earlier finds a transmit that completed twice.
func TestFloodOfCompletions(t *testing.T) {
	x := start(t, enasim.Options{Hints: enasim.Hints{MissingTx: 300}})
	x.m.DuplicateCompletion(true, 100)
	x.echo()
	missed, twice := x.resets(3), x.resets(5)
	x.until("reset", func() bool { return missed() || twice() })
	x.until("echo after the reset", x.echo)
	if s := x.stats(); s.Extra["resets_missed_tx_completion"]+s.Extra["resets_invalid_tx_req_id"] == 0 {
		t.Errorf("statistics: %+v", s)
	}
}

func TestEvents(t *testing.T) {
	x := start(t, enasim.Options{})
	x.m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: enasim.NotifySuspend})
	x.until("no echo while suspended", func() bool { return !x.echo() })
	x.m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: enasim.NotifyResume})
	x.until("echo after resume", x.echo)
	x.m.Post(amazon.Event{Group: amazon.GroupWarning})
	x.m.Post(amazon.Event{Group: 9})
	x.m.Post(amazon.Event{Group: amazon.GroupNotification, Syndrome: 77})
	x.until("warning", func() bool { return strings.Contains(x.log.String(), "the device warns") })
	x.until("unknown events", func() bool { return x.stats().Extra["unknown_events"] == 2 })
	x.far.SetUp(false)
	link := func(up bool) func() bool {
		return func() bool { l, err := x.dev.Link(); return err == nil && l.Up == up }
	}
	x.until("link down", link(false))
	x.far.SetUp(true)
	x.until("link up", link(true))
	hints := amazon.Event{Group: amazon.GroupNotification, Syndrome: enasim.NotifyUpdateHints}
	binary.LittleEndian.PutUint16(hints.Data[4:], 200) // missing transmit completion, ms
	// Link reads them while the watchdog handles their content, under the race detector
	for range 20 {
		x.m.Post(hints)
		must.Get(x.dev.Link())(t)
	}
	x.m.HoldCompletions(true)
	x.until("reset by the new hint", func() bool { x.echo(); return x.resets(3)() })
	x.m.HoldCompletions(false)
	x.until("echo", x.echo)
}

func TestBadCompletions(t *testing.T) {
	x := start(t, enasim.Options{})
	for _, edit := range []func([]byte){
		func(b []byte) { binary.LittleEndian.PutUint16(b[4:], 0xffff) }, // longer than its buffer
		func(b []byte) { binary.LittleEndian.PutUint16(b[4:], 3) },
		func(b []byte) { b[3] &^= 1 << 3 }, // not last
	} {
		taken := func() bool { s := x.stats(); return s.TxFrames+s.RxErrors == x.asked }
		x.until("every request to be answered", taken) // on a busy machine some are pending
		before := x.stats()
		x.m.TamperCompletion(false, edit)
		x.ask()
		x.until("the bad frame to be taken", taken)
		if s := x.stats(); s.RxErrors != before.RxErrors+1 || s.TxFrames != before.TxFrames {
			t.Errorf("%d bad frames counted, %d answered", s.RxErrors-before.RxErrors, s.TxFrames-before.TxFrames)
		}
		x.until("echo", x.echo)
	}
	check.Equal(t, len(x.m.Resets()), 1, "%d resets")
}

func TestAllowances(t *testing.T) {
	for _, o := range []enasim.Options{{}, {NoMetrics: true}} {
		x := start(t, o)
		x.m.SetAllowance(enasim.Allowance{BandwidthIn: 1, BandwidthOut: 2, Packets: 3, Conntrack: 4, LinkLocal: 5,
			ConntrackAvailable: 6})
		s := x.stats().Extra
		for name, want := range map[string]uint64{"bw_in_allowance_exceeded": 1, "bw_out_allowance_exceeded": 2,
			"pps_allowance_exceeded": 3, "conntrack_allowance_exceeded": 4, "linklocal_allowance_exceeded": 5} {
			check.Equal(t, s[name], want, name+": %d")
		}
		made := 0
		x = device(t, o)
		x.m.FailAdmin(func(command string) (status uint8) { // the statistics after the basic ones
			if command == "GET_STATS" {
				made++
				status = []uint8{3, 0}[made%2]
			}
			return status
		})
		x.dev = must.Get(ena.Open(x.fn, nic.Options{Log: slog.New(slog.DiscardHandler)}, ena.Options{}))(t)
		if n, ok := x.stats().Extra["bw_in_allowance_exceeded"]; ok {
			t.Errorf("%d allowances exceeded of a device that refuses to say", n)
		}
		must.Close(t, x.dev)
	}
}

// TestOpenRefuses lists unsupported devices, each with what the error must name.
func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		o    enasim.Options
		open nic.Options
		own  ena.Options
		text string
	}{
		{enasim.Options{NotReady: true}, nic.Options{}, ena.Options{}, "not ready"},
		{enasim.Options{Version: 0x300}, nic.Options{}, ena.Options{}, "interface version 3.0"},
		{enasim.Options{Controller: 0x01000000}, nic.Options{}, ena.Options{}, "controller version"},
		{enasim.Options{Width: 31}, nic.Options{}, ena.Options{}, "31 address bits"},
		{enasim.Options{NoMemBAR: true}, nic.Options{}, ena.Options{Push: "llq"}, "BAR 2"},
		{enasim.Options{NoLLQ: true}, nic.Options{}, ena.Options{Push: "llq"}, "the device has none"},
		{enasim.Options{LLQSizes: 2 | 8}, nic.Options{}, ena.Options{Push: "llq"}, "entry sizes 0xa"},
		{enasim.Options{}, nic.Options{MTU: 10000}, ena.Options{}, "MTU"},
		{enasim.Options{}, nic.Options{Queues: 9}, ena.Options{}, "9"},
		{enasim.Options{}, nic.Options{}, ena.Options{Push: "header"}, `push mode "header": want one of auto, llq, off`},
		{enasim.Options{}, nic.Options{}, ena.Options{MaxInline: -1}, "-1 bytes"},
		{enasim.Options{Unsupported: 1<<2 | 1<<7}, nic.Options{}, ena.Options{}, "queue"},
	} {
		x := device(t, c.o)
		check.Fails(t, fmt.Sprintf("%+v, %+v", c.o, c.open), check.Err(ena.Open(x.fn, c.open, c.own)), nil, c.text)
		if c.o.Width != 0 {
			x.port.ForgetViolations() // the answer address must be set before the width can be read
		}
		if n := x.port.Mappings(); n != 0 || x.port.BusMaster() {
			t.Errorf("%+v: %d mappings and bus master %v are left", c.o, n, x.port.BusMaster())
		}
	}
	x := device(t, enasim.Options{})
	x.m.Mute(true)
	check.Fails(t, "a device that answers no register read", check.Err(ena.Open(x.fn, nic.Options{}, ena.Options{})),
		nic.ErrTimeout, "register")
	x = device(t, enasim.Options{})
	x.m.TamperAdmin(func(b []byte) { b[0]++ })
	check.Fails(t, "an admin completion for a command that was never sent",
		check.Err(ena.Open(x.fn, nic.Options{}, ena.Options{})), nil)
}

// TestCommandFails has what Open says if the device refuses one command.
func TestCommandFails(t *testing.T) {
	golden.Equal(t, "testdata/fails.txt", devrig.Refusals(func(n int) (refused string, err error) {
		x := device(t, enasim.Options{})
		refused = devrig.RefusedCommand(x.m, n, func() {
			x.dev, err = ena.Open(x.fn, nic.Options{Queues: 2, Log: slog.New(slog.DiscardHandler)}, ena.Options{})
		})
		if err == nil && refused != "" {
			refused += devrig.FellBack(x.dev.Info().Notes)
		}
		if err == nil {
			must.Close(t, x.dev)
		}
		if refused == "SET_FEATURE HOST_ATTR_CONFIG" {
			x.port.ForgetViolations() // the device creates no queue for a driver that it does not know
		}
		if m := x.port.Mappings(); m != 0 || x.port.BusMaster() {
			t.Errorf("%s: %d mappings and bus master %v are left", refused, m, x.port.BusMaster())
		}
		return refused, err
	}))
}

func TestFallsBack(t *testing.T) {
	for _, c := range []struct {
		o    enasim.Options
		push string
		note string
	}{
		{enasim.Options{}, "llq 256", "frames up to 224 bytes are pushed whole"},
		{enasim.Options{LLQSizes: 1}, "llq 128", "frames up to 96 bytes are pushed whole"},
		{enasim.Options{NoMemBAR: true}, "host descriptors", "BAR 2"},
		{enasim.Options{NoLLQ: true}, "host descriptors", "the device has none"},
		{enasim.Options{LLQSizes: 2 | 8}, "host descriptors", "entry sizes 0xa"},
		{enasim.Options{Unsupported: 1<<3 | 1<<10 | 1<<18 | 1<<20}, "llq 256", ""},
		{enasim.Options{BasicQueues: true}, "llq 256", ""},
		{enasim.Options{WideDepth: 32}, "llq 128", "32 entries of 256 bytes are too few"},
	} {
		t.Run(c.push+" "+c.note, func(t *testing.T) {
			x := start(t, c.o)
			if i := x.dev.Info(); i.Push != c.push || !strings.Contains(strings.Join(i.Notes, "\n"), c.note) {
				t.Errorf("%+v: push %q, notes %q", c.o, i.Push, i.Notes)
			}
		})
	}
}

// TestPartsOfRing: a device that loses a frame if the part of the receive ring that its hash chooses is empty loses
// none while the driver leaves less than an eighth of the ring without buffers.
func TestPartsOfRing(t *testing.T) {
	for _, ring := range []int{64, 128, 256, 512} {
		x := device(t, enasim.Options{Parts: 8})
		x.dev = must.Get(ena.Open(x.fn, nic.Options{RingSize: ring, Log: slog.New(slog.DiscardHandler)},
			ena.Options{}))(t)
		x.port.Stop() // the model moves in step with the loop
		r, q := nictest.NewResponder(t), x.dev.Queue(0)
		lost := 0
		for i := range 8 * ring {
			f := nictest.EchoRequest(98)
			f[41] += byte(i % 128) // the sequence number, and the checksum with it
			binary.BigEndian.PutUint16(f[36:], binary.BigEndian.Uint16(f[36:])-uint16(i%128))
			x.far.Send(0, f)
			for x.port.Step() {
			}
			q.Poll(r)
			for x.port.Step() {
			}
			if x.far.Recv(0) == nil {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("ring of %d: %d of %d requests lost", ring, lost, 8*ring)
		}
		x.port.Start()
		must.Close(t, x.dev)
	}
}

// TestAnswersOfSizes: the device decides how long its queues are. A completion queue may be shorter than requested, and
// a queue of wide entries shorter than half of one of narrow entries (amzn-drivers#368).
func TestAnswersOfSizes(t *testing.T) {
	open := func(o enasim.Options, ring int) (*live, error) {
		x := device(t, o)
		dev, err := ena.Open(x.fn, nic.Options{RingSize: ring, Log: slog.New(slog.NewTextHandler(&x.log, nil))},
			ena.Options{})
		x.dev = dev
		return x, err
	}
	x, err := open(enasim.Options{ShortCQ: 256}, 0)
	must.OK(t, err)
	if n := x.dev.Queue(0).Entries(); n != 256 {
		t.Errorf("a ring of %d entries, 256 expected", n)
	}
	must.Close(t, x.dev)
	_, err = open(enasim.Options{ShortCQ: 256}, 1024)
	check.Fails(t, "a ring that the device shortens", err, nil, "up to 256")

	x, err = open(enasim.Options{WideDepth: 128}, 0)
	must.OK(t, err)
	if i := x.dev.Info(); i.Push != "llq 256" || len(x.m.Resets()) > 1 {
		t.Errorf("push %q after %d resets, the entries of 256 bytes are refused: %s", i.Push, len(x.m.Resets()),
			x.log.String())
	}
	must.Close(t, x.dev)
}

// TestRecommended: a note says so if the entries are not of the size that the device recommends.
func TestRecommended(t *testing.T) {
	for _, c := range []struct {
		wide bool
		most int
		says string
	}{
		{false, 0, "recommends LLQ entries of 128 bytes"},
		{false, 96, ""},
		{true, 0, ""},
		{true, 96, "recommends LLQ entries of 256 bytes, 128 are used: nic.push_max is 96"},
	} {
		x := device(t, enasim.Options{PreferWide: c.wide})
		x.dev = must.Get(ena.Open(x.fn, nic.Options{Log: slog.New(slog.DiscardHandler)},
			ena.Options{MaxInline: c.most}))(t)
		notes := strings.Join(x.dev.Info().Notes, "\n")
		if strings.Contains(notes, "recommends") != (c.says != "") || !strings.Contains(notes, c.says) {
			t.Errorf("%+v: notes %q", c, notes)
		}
		must.OK(t, x.dev.Close())
	}
}

// TestMeasuredPush: where the memory type of BAR 2 is unknown, the first replies are timed. They reach the wire as all
// others do.
func TestMeasuredPush(t *testing.T) {
	needs.Long(t)
	was := kit.MeasurePush
	t.Cleanup(func() { kit.MeasurePush = was }) // after the loops have ended
	t.Cleanup(mmio.PushToMemory())
	kit.MeasurePush = func(pci.Function) bool { return true }
	for _, o := range []enasim.Options{{}, {LLQSizes: 1}, {Burst: 512}} {
		x := start(t, o)
		for range 40 {
			x.until("echo", x.echo)
		}
		x.until("a result", func() bool {
			return strings.Contains(strings.Join(x.dev.Info().Notes, " "),
				"measured: 64 bytes")
		})
		x.m.Fail()
		x.until("reset", x.resets(13))
		for range 20 {
			x.until("echo after the reset", x.echo)
		}
	}
}
