package measure

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/echohost"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

// answering is a UDP port of the loopback interface, and what it answers to the n-th datagram.
func answering(t *testing.T, answer func(n int, b []byte) []byte) (port int) {
	t.Helper()
	c := must.Get(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 1<<16)
		for n := 0; ; n++ {
			got, from, err := c.ReadFromUDP(b)
			if err != nil {
				return
			}
			if out := answer(n, b[:got]); out != nil {
				c.WriteToUDP(out, from)
			}
		}
	}()
	return c.LocalAddr().(*net.UDPAddr).Port
}

// Sessions over sockets of the loopback interface: what they do around the measurement, and what they say of targets
// that do not answer as they should.
func TestSessions(t *testing.T) {
	echo := answering(t, func(_ int, b []byte) []byte { return b })
	stamp := answering(t, func(_ int, b []byte) []byte { return echohost.Reflect(b) })
	deaf := answering(t, func(int, []byte) []byte { return nil })
	short := answering(t, func(_ int, b []byte) []byte { return b[:len(b)-4] })
	wrong := answering(t, func(_ int, b []byte) []byte { b[len(b)-1]++; return b })
	stops := answering(t, func(n int, b []byte) []byte {
		if n >= 20 {
			return nil
		}
		return b
	})
	closed := must.Get(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	unused := closed.LocalAddr().(*net.UDPAddr).Port
	closed.Close()
	to := func(proto string, port int, more string) string {
		timeout := "50ms"
		if slices.Contains([]int{echo, stamp, short, wrong}, port) {
			timeout = "10s"
		}
		return fmt.Sprintf("target=127.0.0.1,transport=socket,proto=%s,port=%d,timeout=%s,%s", proto, port, timeout, more)
	}
	file := filepath.Join(t.TempDir(), "ran")
	// rows in which a target is silent for a second or longer
	slow := []string{"a target that does not answer after the command", "a load and a silent target", "a closed port",
		"no reflector", "a target that stops"}
	for _, c := range needs.Each(2, []struct {
		name     string
		variants []string
		change   func(*Plan)
		reports  int
		fails    string   // the error
		says     []string // in the notes and warnings of the reports, and in the log
	}{
		{"one", []string{to("udp", echo, "name=a")}, nil, 1, "", nil},
		{"commands", []string{to("udp", echo, "name=a,do=echo $REBOUND_VARIANT >> "+file), to("udp", echo, "name=b,do=true")},
			func(o *Plan) { o.Paired = true }, 2, "", []string{"before each slice this command was run: true",
				"the setting of the last do= command remains in force"}},
		{"anonymous commands", []string{to("udp", echo, "name=a,do=true"), to("udp", echo, "name=b,do=true")},
			func(o *Plan) { o.Paired, o.Anonymous = true, true }, 2, "",
			[]string{"before each slice a command was run, which an anonymous report leaves out"}},
		{"a command that fails", []string{to("udp", echo, "name=a,do=echo no such sysctl >&2; exit 7"), to("udp", echo, "name=b,do=true")},
			func(o *Plan) { o.Paired = true }, -1, "exit status 7; it said: no such sysctl",
			[]string{"unknown which setting is active"}},
		{"a target that does not answer after the command", []string{to("udp", deaf, "name=a,do=true"), to("udp", echo, "name=b,do=true")},
			func(o *Plan) { o.Paired = true }, -1, `after the hook "true": a does not answer`, nil},
		{"a load", []string{to("udp", echo, "name=before"), to("udp", echo, "name=during"), to("udp", echo, "name=after")},
			func(o *Plan) { o.Under = "exec sleep 1000" }, 3, "", []string{"measured before the load: exec sleep 1000",
				"measured during the load", "measured after the load", "the load begins", "the load has ended"}},
		{"an anonymous load", []string{to("udp", echo, "name=before"), to("udp", echo, "name=during"), to("udp", echo, "name=after")},
			func(o *Plan) { o.Under, o.Anonymous = "exec sleep 1000", true }, 3, "",
			[]string{"measured before the load: a command, which an anonymous report leaves out"}},
		{"a load and a silent target", []string{to("udp", deaf, "name=before"), to("udp", deaf, "name=during"),
			to("udp", deaf, "name=after")}, func(o *Plan) { o.Under = "exec sleep 1000" }, 1,
			`before "exec sleep 1000": no usable reply from `, nil},
		{"enough", []string{to("udp", echo, "name=a"), to("udp", echo, "name=b")}, func(o *Plan) {
			o.Paired, o.Runs, o.Looks = true, 50, []int{2}
			o.Enough = func(all []*report.Report) bool {
				return len(all) == 2 && len(all[0].Runs) == 2 && len(all[1].Schedule.Places) == 2
			}
		}, 2, "", nil},
		{"a signal before anything", []string{to("udp", echo, "name=a")}, func(o *Plan) { o.Stop.Store(true) }, 0,
			errNoResult.Error(), nil},
		{"a closed port", []string{to("udp", unused, "name=a")}, nil, 1, "the kernel reports: connection refused", nil},
		{"no answer", []string{to("udp", deaf, "name=a")}, nil, 1,
			fmt.Sprintf("no usable reply from 127.0.0.1:%d by udp: ", deaf),
			[]string{"sent through lo to 127.0.0.1, none answered within 50.00 ms"}},
		{"no reflector", []string{to("stamp", deaf, "name=a")}, nil, 1, fmt.Sprintf("is there a reflector? A responder has one with -set respond.stamp_ports=%d", deaf), nil},
		{"replies that are cut off", []string{to("udp", short, "name=a,size=100")}, nil, 1,
			"length 20. The latest had 54 bytes of payload, the probe has 58", nil},
		{"wrong replies", []string{to("udp", wrong, "name=a")}, nil, 1, "20 replies, those to the warm-up included, rejected, by the first thing wrong in each: payload 20", nil},
		{"a target that stops", []string{to("udp", stops, "name=a")}, nil, 1,
			"the target stopped answering: a answered ", nil},
		{"attribution", []string{to("stamp", stamp, "name=a,explain=true")}, func(o *Plan) {
			o.SelfTest, o.Raw, o.Interval, o.Watch = time.Millisecond, true, time.Second, true
		}, 1, "", nil},
		{"a watched core", []string{to("udp", echo, "name=a")}, func(o *Plan) { o.Watch, o.Live = true, true }, 1, "", nil},
	}) {
		t.Run(c.name, func(t *testing.T) {
			if slices.Contains(slow, c.name) {
				needs.Long(t)
			}
			var variants []Settings
			for _, list := range c.variants {
				variants = append(variants, varied(t, list))
			}
			o, log := planned(t, variants...), new(bytes.Buffer)
			o.Log, o.Count, o.HookWithin = slog.New(slog.NewTextHandler(log, nil)), 20, time.Minute
			if c.change != nil {
				c.change(&o)
			}
			out, err := Run(o)
			if c.fails == "" {
				check.OK(t, err)
			} else {
				check.Fails(t, "it", err, nil, c.fails)
			}
			text := log.String()
			if out == nil {
				out = &Result{}
			}
			for _, rep := range out.Reports {
				text += strings.Join(append(slices.Clone(rep.Notes), rep.Warnings...), "\n") + "\n"
				back, err := report.Read(rep.Dir)
				if err != nil || back.Counts.Sent != rep.Counts.Sent || rep.Traffic.Transport != "socket" ||
					c.fails == "" && (len(rep.Runs) != 2 || rep.Main().Total.Count != rep.Counts.Received) {
					t.Errorf("%v, %+v, %d runs, %d samples", err, rep.Counts, len(rep.Runs), rep.Main().Total.Count)
				}
				if explained := strings.Contains(c.variants[0], "explain"); (rep.Attribution != nil) != explained ||
					explained && (len(rep.Attribution.Rows) == 0 || rep.STAMP == nil ||
						strings.HasPrefix(rep.Attribution.How, "counters only") !=
							(rep.Attribution.CausesBy == attribution.Counters)) {
					t.Errorf("attribution %+v, STAMP %+v", rep.Attribution, rep.STAMP)
				}
			}
			if c.reports >= 0 { // otherwise their order is random, and one may have been measured
				check.Equal(t, len(out.Reports), c.reports, "%d reports")
			}
			text = strings.ReplaceAll(text, `\"`, `"`)
			check.Contains(t, text+fmt.Sprint(err), c.says...)
			if c.name == "commands" {
				check.Equal(t, string(must.Get(os.ReadFile(file))(t)), "a\na\n", "the command wrote %q")
			}
		})
	}
}

// How runs are divided into slices. While they are measured there is a report of those before, and at the end of all
// until a signal.
func TestSlices(t *testing.T) {
	needs.Long(t)
	echo := answering(t, func(_ int, b []byte) []byte { return b })
	for _, c := range []struct {
		name    string
		plan    Plan
		stopAt  int // call before a slice
		runs    int
		sent    int64 // 0: as many as there is time for
		planned report.Unfinished
	}{
		{"of a time", Plan{Paired: true, Slice: 20e6, Duration: 50e6, Warmup: 1e9}, 0, 6, 0,
			report.Unfinished{Runs: 6, Run: 20e6}},
		{"of a number", Plan{Paired: true, Slice: time.Second, Count: 401}, 0, 40, 840, report.Unfinished{Runs: 40}},
		{"runs that are not divided", Plan{Paired: true, Count: 20}, 0, 2, 40, report.Unfinished{Runs: 2}},
		{"runs that are not compared", Plan{Slice: time.Second, Count: 20}, 0, 2, 40, report.Unfinished{Runs: 2}},
		{"until a signal", Plan{Count: 20}, 5, 1, 20, report.Unfinished{Runs: 2}},
	} {
		one := fmt.Sprintf("target=127.0.0.1,transport=socket,proto=udp,port=%d,timeout=10s,name=", echo)
		o := planned(t, varied(t, one+"a"), varied(t, one+"b"), varied(t, one+"c"))
		o.Paired, o.Slice, o.Duration, o.Count = c.plan.Paired, c.plan.Slice, c.plan.Duration, c.plan.Count
		o.Warmup = c.plan.Warmup
		calls, sent, varies := 0, map[*Series]int64{}, map[int64]bool{} // probes of a slice
		o.Before = func(s *Series) error {
			varies[s.Sent()-sent[s]] = true
			sent[s] = s.Sent()
			if calls++; calls == c.stopAt {
				o.Stop.Store(true)
			}
			if calls == 4 { // each has been measured once
				for i, name := range []string{"01-a", "02-b", "03-c"} {
					rep := must.Get(report.Read(filepath.Join(o.Out, name)))(t)
					if rep.Unfinished == nil || *rep.Unfinished != c.planned || len(rep.Runs) != 1 ||
						c.plan.Paired && (len(rep.Schedule.Places) != 1 || rep.Schedule.Places[0] > 2) {
						t.Errorf("%s: variant %d has %d runs, %+v, %+v", c.name, i, len(rep.Runs), rep.Unfinished,
							rep.Schedule)
					}
				}
			}
			return nil
		}
		out, err := Run(o)
		must.OK(t, err)
		if c.runs == 40 && len(varies) <= 2 {
			t.Errorf("%s: all slices have one length: %v", c.name, varies)
		}
		for i, rep := range out.Reports {
			runs, sent := c.runs, c.sent
			if c.stopAt > 0 && i == 2 { // backwards, so that it comes first
				runs, sent = 2*runs, 2*sent
			}
			if len(rep.Runs) != runs || sent > 0 && rep.Counts.Sent != sent || rep.Unfinished != nil ||
				(rep.Schedule != nil) != o.Paired || (rep.Session != "") != o.Paired {
				t.Errorf("%s: variant %d has %d runs, %+v, %+v", c.name, i, len(rep.Runs), rep.Counts, rep.Schedule)
			}
			check.Equal(t, strings.Contains(strings.Join(rep.Warnings, "\n"), "interrupted by a signal"), c.stopAt > 0,
				c.name+": interrupted %t")
		}
	}
	kept := survivor{journal: &report.Journal{}}
	check.Fails(t, "a full disk", kept.kept("dir", unix.ENOSPC), unix.ENOSPC, "; dir keeps the runs that were saved")
	check.Equal(t, (&survivor{}).kept("dir", unix.ENOSPC), error(unix.ENOSPC), "without a journal: %v")
	check.OK(t, kept.kept("dir", nil))
}

// How the causes of slow round trips will be known, and what that costs.
func TestPrepareNoise(t *testing.T) {
	const unwatched = "not watched: "
	for _, c := range []struct {
		cpus, without int // other CPUs, and variants whose round trips are not explained
		watch         bool
		explain       bool
		how, cost     string
	}{
		{1, 1, true, false, "", ""},
		{0, 0, true, true, unwatched + "this process may use only one CPU", ""},
		{1, 0, false, true, unwatched + "the responder has the other CPUs", ""},
		{1, 0, true, true, "", "not measured in this run: "},
		{1, 1, true, true, "", "measured in this session: "},
	} {
		s := &session{Plan: Plan{Watch: c.watch}, core: &Core{CPU: 3}}
		for i := range c.cpus + 1 {
			s.core.allowed.Set(3 - i)
		}
		s.series = append(slices.Repeat([]*Series{{}}, c.without), &Series{Settings: Settings{Explain: c.explain}})
		s.prepareNoise()
		n := s.around.Noise
		if n.How != c.how || !strings.HasPrefix(n.Cost, c.cost) || (n.Cost == "") != (c.cost == "") ||
			s.noisy != (c.cost != "") || n.By != attribution.NotWatched {
			t.Errorf("%+v: %+v, %t", c, n, s.noisy)
		}
		if c.cpus == 0 || !c.watch {
			_, err := s.isolate()
			check.Fails(t, "isolation", err, nil, "-isolate: this process may use only CPU 3")
		}
	}
}

// While a thread measures, it alone has the core, and nothing stops the world.
func TestTake(t *testing.T) {
	c := must.Get(Choose(-1))(t)
	rest := c.Rest()
	if rest.Count() == 0 {
		t.Skip("needs two CPUs")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	bound := func(own, others unix.CPUSet) {
		t.Helper()
		for _, f := range must.Get(os.ReadDir("/proc/self/task"))(t) {
			id, want := must.Get(strconv.Atoi(f.Name()))(t), others
			if id == unix.Gettid() {
				want = own
			}
			var is unix.CPUSet
			if unix.SchedGetaffinity(id, &is) == nil && is != want {
				t.Errorf("a thread has CPU %s, want %s", list(&is), list(&want))
			}
		}
	}
	var one unix.CPUSet
	one.Set(c.CPU)
	must.OK(t, c.Take())
	bound(one, rest)
	c.Leave()
	bound(c.allowed, c.allowed)

	percent, limit := debug.SetGCPercent(70), debug.SetMemoryLimit(1<<40)
	defer func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) }()
	restore := Quiet()
	most, none := debug.SetMemoryLimit(-1), debug.SetGCPercent(-1)
	check.Equal(t, fmt.Sprint(most, none, runtime.GOMAXPROCS(0) >= 4), fmt.Sprint(math.MaxInt64, -1, true), "%s")
	restore()
	check.Equal(t, fmt.Sprint(debug.SetMemoryLimit(-1), debug.SetGCPercent(70)), fmt.Sprint(1<<40, 70), "restored %s")
}

// Frames through an interface of the kernel: from its address and from one that it does not have, to several targets
// and ports, with a VLAN tag, and by two drivers.
func TestKernelInterfaces(t *testing.T) {
	pair := veth.New(t)
	const afpacket = ",driver=afpacket,transport=raw,timeout=2s"
	for _, c := range []struct {
		variants []string
		fails    string
	}{
		{[]string{"target=192.0.2.2" + afpacket, "target=2001:db8::2" + afpacket}, ""},
		{[]string{"target=192.0.2.2,driver=afxdp,transport=raw,timeout=2s"}, ""},
		{[]string{"target=192.0.2.2,source=192.0.2.77,iface=host0,ttl=9" + afpacket}, ""},
		{[]string{"target=192.0.2.2" + afpacket + ",MAC known"}, ""},
		{[]string{"target=192.0.2.2,proto=udp,port=9,source-ports=3" + afpacket + ",timeout=200ms"}, "it answered with"},
		{[]string{"target=192.0.2.99" + afpacket}, "the kernel found no MAC for 192.0.2.99 on host0"},
		{[]string{"target=192.0.2.99,source=192.0.2.77,iface=host0" + afpacket}, "192.0.2.99 did not answer"},
		{[]string{"target=192.0.2.2,vlan=5" + afpacket}, "192.0.2.2 did not answer"},
		{[]string{"target=192.0.2.2,driver=afxdp,transport=raw", "target=192.0.2.3,driver=afxdp,transport=raw,MAC known"},
			"afxdp would intercept all frames of host0"},
	} {
		var variants []Settings
		for i, list := range c.variants {
			list, known := strings.CutSuffix(list, ",MAC known")
			v := varied(t, list)
			if v.Name = fmt.Sprint(i); known {
				v.MAC = [6]byte(pair.Peer.MAC)
			}
			variants = append(variants, v)
		}
		o := planned(t, variants...)
		o.Count = 20
		var out *Result
		var err error
		pair.Host.Do(func() { out, err = Run(o) })
		if c.fails != "" {
			check.Fails(t, c.variants[0], err, nil, c.fails)
			continue
		}
		check.OK(t, err)
		for i, rep := range out.Reports {
			if rep.Counts.Received != 40 || rep.Counts.Lost != 0 || rep.Device.MAC != pair.Host.MAC.String() {
				t.Errorf("%s: %+v, %+v", c.variants[i], rep.Counts, rep.Device)
			}
		}
	}
}

// The measuring CPU is one that the process may use, and the others are named.
func TestChooseCore(t *testing.T) {
	var all unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &all))
	last, before := -1, -1
	for i := range len(all) * 64 {
		if all.IsSet(i) {
			last, before = i, last
		}
	}
	c := must.Get(Choose(-1))(t)
	if rest := c.Rest(); c.CPU != last || rest.Count() != all.Count()-1 || rest.IsSet(last) ||
		before >= 0 && c.Other() != before {
		t.Errorf("CPU %d, want %d; the others are %v, and %d", c.CPU, last, rest, c.Other())
	}
	check.Equal(t, (&Core{CPU: 5}).Other(), 5, "without another CPU: %d")
	var some unix.CPUSet
	for _, i := range []int{0, 1, 70} {
		some.Set(i)
	}
	check.Equal(t, list(&some), "0,1,70", "%q")
	for _, cpu := range []int{-2, last + 1, len(all) * 64} {
		check.Fails(t, "a CPU that does not exist", check.Err(Choose(cpu)), nil,
			fmt.Sprintf("-core %d: this process may use only CPU ", cpu))
	}
}

// The display of a session listens at its address, is quiet during a pause, and says why it cannot start.
func TestStartLive(t *testing.T) {
	paused := new(atomic.Bool)
	paused.Store(true)
	log, text := new(bytes.Buffer), new(bytes.Buffer)
	l := must.Get(startLive(nil, text, "127.0.0.1:0", paused, slog.New(slog.NewTextHandler(log, nil))))(t)
	check.Contains(t, log.String(), "url=http://127.0.0.1:")
	_, err := startLive(nil, text, "999.0.0.1:1", paused, slog.New(slog.DiscardHandler))
	check.Fails(t, "an address that is none", err, nil, "-live: ")
	l.end()
	check.Equal(t, l.to == text && l.lines == -1, true, "%t")
	m := newMade(t, "a")
	m.second(0, 10, 0, 5000)
	m.pass()
	h := must.Get(m.page(m.now))(t)
	check.Contains(t, string(h), "measuring a", "no reply", "–")
}
