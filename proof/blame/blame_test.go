package blame

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/programs"
)

func TestMain(m *testing.M) {
	if IsChild() {
		os.Exit(Child())
	}
	if responder := os.Getenv(inKilled); responder != "" {
		o := options{episode: time.Hour, rate: 1000, driver: "afpacket", responder: responder}
		err := o.measure(episode{"stamp", []*plant{named("real-time hog on the bench's core"),
			named("responder stopped"), named("CPU quota of the responder"),
			named("softirqs on the bench's core")}}, 0, rand.New(rand.NewPCG(1, 1)), newMatrix())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func named(name string) *plant {
	return &plants[slices.IndexFunc(plants, func(p plant) bool { return p.name == name })]
}

// inKilled marks the campaign of TestKilled and its children, and has the responder's path.
const inKilled = "REBOUND_BLAME_KILLED"

// A campaign that is killed leaves no process and no cgroup.
func TestKilled(t *testing.T) {
	needs.Root(t, "network namespaces")
	if runtime.NumCPU() < 2 {
		t.Skip("the bench and the responder need a core each")
	}
	mark := inKilled + "=" + programs.Path(t, "responder")
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), mark)
	var said bytes.Buffer
	c.Stderr = &said
	must.OK(t, c.Start())
	ended := make(chan struct{})
	go func() { _ = c.Wait(); close(ended) }()
	t.Cleanup(func() { _ = c.Process.Kill(); <-ended })
	cgroups := func() []string {
		all, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/cpu/%s%d-*", cgroupPrefix, c.Process.Pid))
		unified, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/%s%d-*", cgroupPrefix, c.Process.Pid))
		return append(all, unified...)
	}
	var left []string
	processes := func(comm string) bool {
		left = nil
		all, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range all {
			if b, err := os.ReadFile(name); err == nil && bytes.Contains(b, []byte(mark)) {
				// a hog names its thread, which need not be the first
				threads, _ := filepath.Glob(filepath.Dir(name) + "/task/*/comm")
				for _, comm := range threads {
					b, _ := os.ReadFile(comm)
					left = append(left, strings.TrimSpace(string(b)))
				}
			}
		}
		return slices.Contains(left, comm)
	}
	await.Until(t, "all plants at work", func() bool {
		select {
		case <-ended:
			t.Fatalf("the campaign ended: %s", said.String())
		default:
		}
		return len(cgroups()) > 0 && processes(hogName)
	}, func() string { return fmt.Sprint(left, cgroups()) })
	must.OK(t, c.Process.Kill())
	<-ended
	await.Until(t, "no process and no cgroup", func() bool {
		processes("")
		return len(left) == 0 && len(cgroups()) == 0
	}, func() string { return fmt.Sprint(left, cgroups()) })
}

// tried ends a test at an episode's error, and skips it if the bench cannot send at its rate.
func tried(t *testing.T, err error) {
	t.Helper()
	if err != nil && strings.Contains(err.Error(), engine.ErrBehind.Error()) {
		t.Skip("this machine is too busy: ", err)
	}
	must.OK(t, err)
}

// Of the slow probes whose round trip is mostly in the pulses of a plant, more are attributed to its side than to all
// others. The machine may be so busy that other causes make all the slowest probes: then there are more episodes.
func TestPlantedSides(t *testing.T) {
	needs.Root(t, "network namespaces")
	if runtime.NumCPU() < 2 {
		t.Skip("the bench and the responder need a core each")
	}
	o := options{episode: 2 * time.Second, rate: 2000, driver: "afpacket", responder: programs.Path(t, "responder")}
	m, r := newMatrix(), rand.New(rand.NewPCG(1, 1))
	const enough, most = 20, 8
	number := 0
	for _, name := range []string{"responder stopped", "bench stopped", "delay on the way there"} {
		p := named(name)
		by, all := map[string]int{}, 0
		for ; all < enough && number < most; number++ {
			tried(t, o.measure(episode{"stamp", []*plant{p}}, number, r, m))
			by, all = m.plants[name].by, 0
			for _, n := range by {
				all += n
			}
		}
		if all < enough {
			t.Skipf("%s: only %d of the slowest probes in %d episodes are the plant's: this machine delays all others longer", name, all, number)
		}
		if right := by[p.side.String()]; right <= all-right-by[attribution.Unknown.String()] {
			t.Errorf("%s: attributed to %v", name, by)
		}
	}
}

// What the bench's card holds up on the way to memory is this host's by the card's timestamps, although its loop looked
// all the time.
func TestHeldTransfers(t *testing.T) {
	needs.Root(t, "network namespaces")
	if runtime.NumCPU() < 2 {
		t.Skip("the bench and the responder need a core each")
	}
	o := options{episode: 2 * time.Second, rate: 300, driver: "afpacket", card: "mlx5", timestamps: true,
		responder: programs.Path(t, "responder")}
	m, r := newMatrix(), rand.New(rand.NewPCG(1, 1))
	const enough, most = 10, 6
	p := named("transfers of the bench's card held up")
	by, all := map[string]int{}, 0
	for number := 0; all < enough && number < most; number++ {
		tried(t, o.measure(episode{"udp", []*plant{p}}, number, r, m))
		by, all = m.plants[p.name].by, 0
		for _, n := range by {
			all += n
		}
	}
	if all < enough {
		t.Skipf("only %d of the slowest probes are the plant's: this machine delays all others longer", all)
	}
	if right := by[p.side.String()]; 2*right <= all {
		t.Errorf("attributed to %v", by)
	}
}

func TestTruth(t *testing.T) {
	// from 1,000,000 to 1,100,000 ns, sent at 1,010,000
	row := attribution.Row{At: 1000, RTT: 100_000, Times: []int64{0, 10_000, -1}}
	for _, c := range []struct {
		name    string
		planted []pulse
		want    []attribution.Side
	}{
		{"nothing", nil, nil},
		{"before and after", []pulse{{from: 0, to: 999_999}, {from: 1_100_001, to: 2_000_000}}, nil},
		{"less than half", []pulse{{from: 1_060_000, to: 2_000_000, side: attribution.Here}}, nil},
		{"half", []pulse{{from: 1_050_000, to: 2_000_000, side: attribution.Here}}, []attribution.Side{attribution.Here}},
		{"what overlaps counts once", []pulse{{from: 0, to: 1_040_000, side: attribution.Here}, {from: 0, to: 1_040_000, side: attribution.Here}}, nil},
		{"both", []pulse{{from: 0, to: 2_000_000, side: attribution.Here}, {from: 0, to: 1_060_000, side: attribution.Responder}},
			[]attribution.Side{attribution.Responder, attribution.Here}},
		{"before it was sent", []pulse{{from: 0, to: 1_055_000, side: attribution.Responder}}, nil},
		{"this host before it was sent", []pulse{{from: 0, to: 1_055_000, side: attribution.Here}}, []attribution.Side{attribution.Here}},
		{"this probe", []pulse{{from: 0, to: 2_000_000, sent: 1_010_500, side: attribution.Network}}, []attribution.Side{attribution.Network}},
		{"another probe", []pulse{{from: 0, to: 2_000_000, sent: 1_510_000, side: attribution.Network}}, nil},
	} {
		if got, _ := (&records{pulses: c.planted}).truth(&row); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	// It left the card at 1,020,000, and was between the hosts' ends of the wire from 1,030,000 to 1,031,000 and from
	// 1,088,000 to 1,089,000.
	row.Times = []int64{0, 10_000, 20_000}
	wire := []passage{{sent: 700_000, off: 710_000},
		{sent: 1_030_000, there: 1_030_000, on: 1_031_000, back: 1_088_000, off: 1_089_000}, {sent: 1_031_000, off: 3_000_000}}
	for _, c := range []struct {
		side     attribution.Side
		from, to int64
		want     bool
	}{
		{attribution.Responder, 0, 1_085_000, true}, {attribution.Responder, 0, 1_075_000, false},
		{attribution.Here, 0, 1_088_000, false}, {attribution.Here, 0, 2_000_000, false},
		{attribution.Here, 1_000_000, 1_030_000, false}, {attribution.Network, 0, 2_000_000, false},
	} {
		all := &records{pulses: []pulse{{from: c.from, to: c.to, side: c.side}}, wire: wire}
		if got, _ := all.truth(&row); slices.Contains(got, c.side) != c.want {
			t.Errorf("%v from %d to %d: %v", c.side, c.from, c.to, got)
		}
	}
	wire[1].back, wire[1].off = 1_040_000, 1_041_000
	all := &records{pulses: []pulse{{from: 0, to: 2_000_000, side: attribution.Here}}, wire: wire}
	if got, _ := all.truth(&row); !slices.Equal(got, []attribution.Side{attribution.Here}) {
		t.Errorf("it was in this host for 89 of 100 µs: %v", got)
	}
	wire[1].sent = 2_000_000
	if got, names := all.truth(&row); len(got)+len(names) != 0 {
		t.Errorf("it did not pass the relay: %v", got)
	}
	both := []pulse{{from: 0, to: 2_000_000, name: "hog", side: attribution.Here},
		{from: 1, to: 2_000_000, side: attribution.Here}}
	if _, names := (&records{pulses: both}).truth(&row); names[attribution.Here] != "hog" {
		t.Errorf("a plant that other records overlap is %q", names)
	}
}

// The committed object equals the compiler's output for the source, if the compiler has the same version.
func TestObject(t *testing.T) { nictest.BPFObject(t, "spin.c", "spin_bpfel.o", "14.0.6") }

// Records of context switches give the times between leaving and getting a core, whatever else is among them.
func TestOffCore(t *testing.T) {
	var ring []byte
	record := func(kind uint32, misc uint16, body ...uint64) {
		b := binary.NativeEndian.AppendUint32(nil, kind)
		b = binary.NativeEndian.AppendUint16(b, misc)
		b = binary.NativeEndian.AppendUint16(b, uint16(8+8*len(body)))
		for _, v := range body {
			b = binary.NativeEndian.AppendUint64(b, v)
		}
		ring = append(ring, b...)
	}
	record(unix.PERF_RECORD_SWITCH, 0, 50) // it got the core, and lost it before the record began
	record(unix.PERF_RECORD_SWITCH, unix.PERF_RECORD_MISC_SWITCH_OUT, 100)
	record(unix.PERF_RECORD_LOST, 0, 1, 2, 150)
	record(unix.PERF_RECORD_SWITCH, 0, 200)
	record(unix.PERF_RECORD_SWITCH, unix.PERF_RECORD_MISC_SWITCH_OUT, 300)
	want, head := []pulse{{from: 100, to: 200}}, uint64(len(ring))
	if got, err := offCore(append(ring, make([]byte, 64)...), head); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if _, err := offCore(append(ring, make([]byte, 63)...), head); err == nil {
		t.Error("a full ring: no error")
	}
	if got := within([]pulse{{from: 100, to: 200}, {from: 300, to: 400}},
		[]pulse{{from: 150, to: 350}}); !slices.Equal(got, []pulse{{from: 150, to: 200}, {from: 300, to: 350}}) {
		t.Errorf("within: %v", got)
	}
	for n := range head { // a record that is not complete
		_, _ = offCore(append(ring[:n:n], make([]byte, 64)...), n)
	}
}

// A row has the right cause, only others, or none; and no cause of a plant that was not there.
func TestCauses(t *testing.T) {
	hog, stop := named("hog on the bench's core"), named("bench stopped")
	here := attribution.Here.String()
	a := &attribution.Result{Causes: []attribution.Count{{Side: here, Text: "polling thread descheduled on cpu 1",
		Name: hogName},
		{Side: here, Text: "timer tick on cpu 1"}, {Side: here,
			Text: "polling thread stopped (SIGSTOP or a debugger) on cpu 1"}}}
	m, planted := newMatrix(), []pulse{{from: 0, to: 1 << 40, side: attribution.Here, name: hog.name}}
	for _, causes := range [][]int{{0, 1}, {1}, {2}, {}} {
		a.Rows = append(a.Rows, attribution.Row{At: 1, RTT: 1000, Times: []int64{0, 0}, Side: here, Causes: causes})
	}
	m.add([]*plant{hog}, "stamp", true, a, a, &records{pulses: planted})
	if got := m.plants[hog.name].causes; got != [3]int{1, 2, 1} {
		t.Errorf("%v", got)
	}
	if m.absent[stop.name] != 1 || len(m.absent) != 1 {
		t.Errorf("not planted: %v", m.absent)
	}
	if right, wrong, all := score(m.kinds["stamp, clocks of stated error"]); right != 4 || wrong != 0 || all != 4 {
		t.Errorf("%d, %d of %d", right, wrong, all)
	}
	m.add([]*plant{hog}, "udp", false, &attribution.Result{}, a, &records{pulses: planted})
	for kind, want := range map[string]int{"udp": 0,
		"udp explained by the responder's report, clocks of unknown error": 4} {
		if right, _, _ := score(m.kinds[kind]); right != want {
			t.Errorf("%s: %d right, want %d", kind, right, want)
		}
	}
}

// Elsewhere is right for what is not this host's, if the report knows no more.
func TestScoreReduced(t *testing.T) {
	here, elsewhere, network := attribution.Here.String(), attribution.Elsewhere.String(), attribution.Network.String()
	of := map[attribution.Side]map[string]int{attribution.Here: {here: 5, elsewhere: 2},
		attribution.Responder: {elsewhere: 7, here: 1}}
	if right, wrong, all := score(of); right != 12 || wrong != 3 || all != 15 {
		t.Errorf("%d, %d of %d", right, wrong, all)
	}
	of[attribution.Network] = map[string]int{network: 1}
	if right, wrong, all := score(of); right != 6 || wrong != 3 || all != 16 {
		t.Errorf("%d, %d of %d", right, wrong, all)
	}
}

// The interval has the ranks that the binomial distribution gives: 2 and 9 of 10 values, 1 and 6 of 6.
func TestMedianInterval(t *testing.T) {
	for _, c := range []struct {
		n                 int
		median, low, high float64
	}{{10, 5.5, 2, 9}, {6, 3.5, 1, 6}, {5, 3, math.Inf(-1), math.Inf(1)}, {30, 15.5, 10, 21}} {
		var v []float64
		for i := range c.n {
			v = append(v, float64(c.n-i))
		}
		if m, low, high := medianInterval(v); m != c.median || low != c.low || high != c.high {
			t.Errorf("%d values: %v, %v to %v", c.n, m, low, high)
		}
	}
}

// The session's autogroup gets this process's nice value and, afterwards, its own again. Without autogroups nothing
// happens.
func TestAutogroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "autogroup")
	content := func(want string) {
		t.Helper()
		must.Equal(t, string(must.Get(os.ReadFile(file))(t)), want, "the file has %q")
	}
	must.OK(t, os.WriteFile(file, []byte("/autogroup-9 nice 3\n"), 0o600))
	before, restore, err := raise(file, -20)
	must.OK(t, err)
	must.Equal(t, before, 3, "before: %d")
	content("-20")
	restore()
	content("3")
	must.OK(t, os.WriteFile(file, []byte("/autogroup-9 nice 0\n"), 0o600))
	_, restore, err = raise(file, 0)
	must.OK(t, err)
	restore()
	content("/autogroup-9 nice 0\n")
	_, restore, err = raise(file+"-none", -20)
	must.OK(t, err)
	restore()
	must.OK(t, os.WriteFile(file, nil, 0o600))
	_, restore, err = raise(file, -20)
	must.OK(t, err)
	restore()
	content("")
	must.OK(t, withPriority(func() error { return nil }))
}
