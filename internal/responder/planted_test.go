package responder

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/enasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// plant is a card's model with its fault injection.
type plant struct {
	name    string
	model   sim.Model
	near    sim.Model     // of the bench; an ixgbe if nil
	service string        // of messages
	dropped func() uint64 // for lack of a buffer, as the model counts it
	hold    func(on bool) // pauses the transmitter, or its completions
	fail    func()        // the next send
	reset   func()        // makes the device fail, so that it must be restarted; nil: reset the function
}

var plantMAC, benchMAC = [6]byte{2, 0, 0, 0, 7, 2}, [6]byte{2, 0, 0, 0, 7, 1}

func plants() []plant {
	i := ixgbesim.New(ixgbesim.Options{MAC: plantMAC})
	five := mlx5sim.New(mlx5sim.Options{MAC: plantMAC, Profile: mlx5sim.ConnectX4})
	four := mlx4sim.New(mlx4sim.Options{MAC: plantMAC})
	na, over := enasim.New(enasim.Options{MAC: plantMAC}), enasim.New(
		enasim.Options{MAC: plantMAC, Overruns: true, Lasting: true})
	fa := efasim.New(efasim.Options{MAC: plantMAC})
	v := virtiosim.New(virtiosim.Options{MAC: plantMAC})
	return []plant{
		{name: "ixgbe", model: i, hold: i.Pause, dropped: func() uint64 { c := i.Counters(); return c.RxMissed + c.RxNoDesc }},
		{name: "mlx5", model: five, hold: five.Pause, fail: func() { five.FailNextSend(4) }, reset: func() { five.Fatal(1) },
			dropped: func() uint64 { return five.Counters().OutOfBuffer }},
		{name: "mlx4", model: four, hold: four.Pause, fail: func() { four.FailNextSend(4) }, reset: func() { four.Catastrophe(0xBAD) },
			dropped: func() uint64 { return four.Counters().Overflow }},
		{name: "ena", model: na, hold: na.HoldCompletions, dropped: func() uint64 { return na.Counters().RxDrops }},
		{name: "ena overruns", model: over, hold: over.HoldCompletions, dropped: func() uint64 { return over.Counters().RxOverruns }},
		{name: "efa", model: fa, near: efasim.New(efasim.Options{MAC: benchMAC}), service: "ud", dropped: func() uint64 { return fa.Counters().RxDrops }},
		{name: "virtio", model: v, hold: v.Pause, dropped: v.Missed},
	}
}

// tap is the responder's end of the wire. It passes as many probes as allowed, and drops one in a hundred.
type tap struct {
	*sim.Cable
	message bool

	mu                    sync.Mutex
	allowed, passed, lost int
	replies, others       int       // to probes, and to anything else
	next                  []byte    // not allowed yet
	began                 time.Time // when the bench's first probe came
	inject                []byte
	pinged                bool // a reply to an injected frame arrived
}

func (w *tap) probe(f []byte, port int) bool {
	return w.message || len(f) > 38 && f[12] == 8 && f[13] == 0 && f[23] == 17 && int(f[port])<<8|int(f[port+1]) == 7
}

func (w *tap) Recv(now time.Duration) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.inject; f != nil {
		w.inject = nil
		return f
	}
	for {
		f := w.next
		if w.next = nil; f == nil {
			if f = w.Cable.Recv(now); f == nil {
				return nil
			}
		}
		if !w.probe(f, 36) {
			return f
		}
		if w.began.IsZero() {
			w.began = time.Now()
		}
		if w.passed >= w.allowed {
			w.next = f
			return nil
		}
		if w.passed++; w.passed%100 != 11 {
			return f
		}
		w.lost++
	}
}

// age returns the time since the first probe, and ends the measurement.
func (w *tap) age() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.began = time.Time{} }()
	return time.Since(w.began)
}

func (w *tap) Send(now time.Duration, f []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.probe(f, 34):
		w.replies++
	case f[12] == 8 && f[13] == 0 && f[23] == 1:
		w.others++
		w.pinged = true
		return
	default:
		w.others++
	}
	w.Cable.Send(now, f)
}

// planted is a bench that probes a responder over a wire between two models.
type planted struct {
	plant
	t      *testing.T
	port   *sim.Port
	wire   *tap
	far    *child
	url    string // of the responder's metrics
	args   []string
	folder string // of the responder's report
	before uint64 // frames missed that a reset of the model cleared

	running context.Context  // ends with the bench
	said    *programs.Output // by the bench
}

func newPlanted(t *testing.T, c plant) *planted {
	x := &planted{plant: c, t: t, folder: filepath.Join(t.TempDir(), "responder")}
	driver := "ixgbe"
	if c.near != nil {
		driver = "efa"
	} else {
		c.near = ixgbesim.New(ixgbesim.Options{MAC: benchMAC})
	}
	_, cable, near := served(t, c.near)
	x.wire = &tap{Cable: cable, message: c.service != ""}
	port, _, device := served(t, c.model)
	x.port = port
	x.port.Connect(x.wire)
	sets := []string{"stats.listen=127.0.0.1:0", "stats.report=" + x.folder, "guard.rate=0", "nic.ring_size=128"}
	x.args = []string{"run", "-driver", driver, "-iface", near, "-ring-size", "1024", "-warmup", "0s", "-runs", "1",
		"-self-test", "0s",
		"-rate", "2000"}
	if c.service == "" {
		x.far = startOn(t, device, append(sets, "respond.addresses=10.0.0.2/24", "respond.udp_ports=[7]")...)
		x.args = append(x.args, "-source", "10.0.0.3", "-target", "10.0.0.2", "-proto", "udp", "-port", "7")
	} else {
		x.far = startOn(t, device, append(sets, "respond.handover=127.0.0.1:0")...)
		x.args = append(x.args, "-target", "127.0.0.1", "-proto", c.service, "-port", x.far.port(t, c.service))
	}
	x.url = x.far.metricsURL(t)
	x.args = append(x.args, "-responder-metrics", x.url)
	return x
}

// complaints reports what the driver did wrong in the model's eyes.
func complaints(t testing.TB, p *sim.Port) {
	t.Helper()
	for _, v := range p.Violations() {
		t.Error(v)
	}
	p.ForgetViolations()
}

// metrics reads the responder's counters of device errors and of frames by direction.
func (x *planted) metrics() map[string]uint64 {
	x.t.Helper()
	var page string
	if !await.Holds(func() bool { // the page limits its rate
		r, err := http.Get(x.url)
		if err != nil {
			return false
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		page = string(b)
		return err == nil && r.StatusCode == http.StatusOK && strings.Contains(page, "rebound_device_trouble_total")
	}) {
		x.t.Fatalf("no metrics:\n%s", x.far.Log)
	}
	out := map[string]uint64{}
	for _, m := range regexp.MustCompile(
		`(?m)^rebound_(device_frames_total|device_trouble_total|device_own_total|refused_total|answered_total)\{.*?(?:kind|counter|reason|direction)="(\w+)".*\} (\S+)$`).FindAllStringSubmatch(page, -1) {
		n := must.Get(strconv.ParseFloat(m[3], 64))(x.t)
		name := m[2]
		if m[1] == "device_frames_total" {
			name += "_frames"
		}
		out[name] += uint64(n)
		out[m[1]] += uint64(n)
	}
	return out
}

// missed returns how many frames the card dropped for lack of a buffer, as counted by the model.
func (x *planted) missed() (n uint64) {
	x.port.Hold(func() { n = x.dropped() })
	return x.before + n
}

// admit lets n more probes through, and waits until the responder's card has received them.
func (x *planted) admit(n int) {
	x.t.Helper()
	x.wire.mu.Lock()
	x.wire.allowed += n
	want := x.wire.allowed
	x.wire.mu.Unlock()
	await.Until(x.t, fmt.Sprintf("probe %d", want), func() bool {
		x.wire.mu.Lock()
		defer x.wire.mu.Unlock()
		if x.wire.passed < want && x.running.Err() != nil {
			x.t.Fatalf("the bench ended before probe %d\n%s", want, x.said)
		}
		return x.wire.passed >= want
	}, x.far.Log.String, x.said.String)
}

// quiet waits until the responder has processed all that its card received and did not drop.
func (x *planted) quiet() {
	x.t.Helper()
	await.Until(x.t, "the responder", func() bool {
		if k := x.truth(); k.dropped() == int64(k.missed) { // all others were answered
			return true
		}
		m := x.metrics()
		k := x.truth()
		return int(m["answered_total"]+m["refused_total"]+k.missed)-k.others >= k.passed-k.lost
	}, x.far.Log.String)
}

// restart has the device fail, and waits until the responder has restarted it and answers.
func (x *planted) restart() {
	x.t.Helper()
	missed, restarts := x.missed(), x.metrics()[nic.RestartsFinished]
	if x.reset != nil {
		x.reset()
	} else {
		complaints(x.t, x.port)
		x.port.Reset()
	}
	await.Until(x.t, "the restart", func() bool { return x.metrics()[nic.RestartsFinished] > restarts },
		x.far.Log.String)
	if x.reset == nil {
		x.port.ForgetViolations() // a driver may read registers until it notices
	}
	if x.missed() < missed { // a reset clears the model's count
		x.before = missed
	}
	if x.service != "" {
		return // its queue pairs have new numbers
	}
	ping := append(append(plantMAC[:], benchMAC[:]...), nictest.EchoRequest(98)[12:]...)
	copy(ping[26:], []byte{10, 0, 0, 3, 10, 0, 0, 2})
	ping[24], ping[25] = 0, 0
	binary.BigEndian.PutUint16(ping[24:], ^cksum.Sum(ping[14:34], 0))
	await.Until(x.t, "a reply", func() bool {
		x.wire.mu.Lock()
		defer x.wire.mu.Unlock()
		if !x.wire.pinged {
			x.wire.inject = bytes.Clone(ping)
		}
		return x.wire.pinged
	}, x.far.Log.String)
}

// measured is what a measurement was in the eyes of the bench, the wire and the responder.
type measured struct {
	report        *report.Report
	truth         truth
	before, after map[string]uint64 // the responder's metrics
}

// measure runs the bench with count probes. Meanwhile steps handles those that arrive. It measures again, with twice
// the timeout, if the steps took longer than the bench waits for a reply, because it then misses replies that were
// sent.
func (x *planted) measure(count int, timeout time.Duration, steps func()) measured {
	x.t.Helper()
	const most = time.Minute // that a bench accepts
	for ; ; timeout = min(2*timeout, most) {
		m, before := measured{before: x.metrics()}, x.truth()
		var took time.Duration
		m.report = x.bench(count, timeout, func() {
			steps()
			took = x.wire.age()
		})
		if took < timeout*3/4 { // the rest is for the replies on their way
			m.after, m.truth = x.metrics(), x.truth().since(before)
			return m
		}
		x.t.Logf("the bench waited for %v, and the steps took %v", timeout, took)
		if timeout == most {
			x.t.Fatal("the steps took too long: a bench accepts no longer timeout")
		}
	}
}

func (x *planted) bench(count int, timeout time.Duration, steps func()) *report.Report {
	x.t.Helper()
	dir := filepath.Join(x.t.TempDir(), "run")
	c := exec.CommandContext(x.t.Context(), programs.Path(x.t, "bench"),
		append(x.args, "-count", fmt.Sprint(count), "-timeout", timeout.String(), "-out", dir)...)
	running, end := context.WithCancelCause(context.Background())
	x.running, x.said = running, &programs.Output{}
	c.Stdout, c.Stderr = x.said, x.said
	must.OK(x.t, c.Start())
	go func() { end(c.Wait()) }()
	x.t.Cleanup(func() { <-running.Done() }) // it is killed if a step fails
	steps()
	<-running.Done()
	if err := context.Cause(running); err != context.Canceled { // the cause of an end without an error
		x.t.Fatalf("%v\n%s", err, x.said)
	}
	return must.Get(report.Read(dir))(x.t)
}

// truth counts what was really done to the probes.
type truth struct {
	passed, lost, back int    // probes that were allowed, lost on the wire, answered
	others             int    // frames sent that answer no probe
	missed             uint64 // dropped by the card for lack of a buffer
}

func (x *planted) truth() truth {
	missed := x.missed()
	x.wire.mu.Lock()
	defer x.wire.mu.Unlock()
	return truth{x.wire.passed, x.wire.lost, x.wire.replies, x.wire.others, missed}
}

func (a truth) since(b truth) truth {
	return truth{a.passed - b.passed, a.lost - b.lost, a.back - b.back, a.others - b.others, a.missed - b.missed}
}

// dropped returns how many frames the responder's host dropped.
func (a truth) dropped() int64 { return int64(a.passed - a.lost - a.back) }

// Each frame that the responder's card or driver drops is counted once, under its own reason, in metrics, summary and
// report, also across a restart of the card. The bench attributes its missing probes to the same reasons.
func TestPlantedDrops(t *testing.T) {
	needs.Long(t)
	for _, c := range plants() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plantDrops(t, c)
		})
	}
}

func plantDrops(t *testing.T, c plant) {
	x := newPlanted(t, c)
	const normal, burst, failing = 300, 700, 20
	m := x.measure(normal+2*burst, 4*time.Second, func() {
		x.admit(normal)
		x.quiet()
		x.far.halt(t)
		x.admit(burst) // more than the rings have room for
		must.OK(t, x.far.Process.Signal(unix.SIGCONT))
		x.quiet()
		x.holdSends(true)
		x.admit(burst)
		x.holdSends(false)
		x.quiet()
	})
	if m.truth.missed == 0 || m.grew("tx_errors", "rx_errors", "resets", "refused_total") != 0 {
		t.Errorf("%v", m)
	}
	x.compare(m, false)
	again := normal + failing
	if c.service == "" {
		again += normal
	}
	m = x.measure(again, 10*time.Second, func() {
		x.admit(normal)
		x.quiet()
		resets := x.metrics()["send_queue_resets"]
		if x.fail != nil {
			x.port.Hold(x.fail)
		}
		x.admit(failing)
		await.Until(t, "the failure", func() bool { return x.fail == nil || x.metrics()["send_queue_resets"] > resets },
			x.far.Log.String)
		x.quiet()
		if c.service == "" { // whose queue pairs have new numbers after a restart
			x.restart()
			x.admit(normal)
			x.quiet()
		}
	})
	if c.service != "" {
		x.restart()
		m.after = x.metrics()
	}
	if (m.grew("tx_errors") > 0) != (x.fail != nil) || m.grew("resets") != 1 || m.grew("rx_errors") != 0 ||
		m.after["rx_frames"] < m.before["rx_frames"] {
		t.Errorf("%v", m)
	}
	x.compare(m, c.service == "")
	summary, own := x.far.stop(t, unix.SIGINT), must.Get(report.Read(x.folder))(t)
	for _, name := range []string{"rx_dropped", "rx_errors", "tx_dropped", "tx_errors", "resets"} {
		check.Equal(t, own.Device.Counters[name], m.after[name], "report: "+name+" is %d")
		if n := m.after[name]; n > 0 && !regexp.MustCompile(
			fmt.Sprintf(`(?m)^  %s +%s$`, name, latency.FormatCount(n))).MatchString(summary) {
			t.Errorf("no %s %d in the summary:\n%s", name, n, summary)
		}
	}
}

func (x *planted) holdSends(on bool) {
	if x.hold != nil {
		x.port.Hold(func() { x.hold(on) })
	}
}

// grew returns how much the responder's counters grew.
func (m measured) grew(names ...string) (n int64) {
	for _, name := range names {
		n += int64(m.after[name] - m.before[name])
	}
	return n
}

func (m measured) String() string {
	return fmt.Sprintf("metrics %v, before %v; the truth is %+v: %d dropped", m.after, m.before, m.truth,
		m.truth.dropped())
}

// compare fails unless the responder's counters and the bench's report explain the missing probes. restarted means that
// the responder's device was restarted.
func (x *planted) compare(m measured, restarted bool) {
	x.t.Helper()
	c, k, there := m.report.Counts, m.truth, m.grew("rx_dropped", "tx_dropped", "tx_errors")
	_, counted := m.after["rx_dropped"]
	if counted == (x.name == "virtio") || counted && m.grew("rx_dropped") != int64(k.missed) ||
		m.grew("tx_dropped", "tx_errors") != k.dropped()-int64(k.missed) {
		x.t.Errorf("%v", m)
	}
	for _, name := range []string{"rx_dropped", "tx_dropped", "tx_errors"} {
		n := m.grew(name)
		for _, d := range m.report.Drops {
			if d.By == "responder: "+name {
				n -= d.Frames
			}
		}
		if n != 0 {
			x.t.Errorf("the bench's drops %+v lack %d of %s", m.report.Drops, n, name)
		}
	}
	least := int64(k.lost)
	if restarted || !counted {
		least = 0
	}
	if c.Sent != int64(k.passed) || c.Received+c.Late != int64(k.back) || c.DroppedThere != there || counted &&
		there != k.dropped() || c.DroppedHere != 0 ||
		c.RefusedThere != 0 || c.Lost != int64(k.lost)+k.dropped() || c.LostLeast() != least ||
		c.DroppedThereCounted != counted {
		x.t.Errorf("%+v, %s lost; %v", c, c.LostText(), m)
	}
	if said := strings.Contains(strings.Join(m.report.Warnings, "\n"),
		"was restarted while measuring"); said != restarted {
		x.t.Errorf("warnings %q", m.report.Warnings)
	}
}
