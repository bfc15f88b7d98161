package responder

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/sim/efasim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// steps are the log of a start and an end, without the driver's part and what differs between machines and runs.
func steps(log string) string {
	var kept strings.Builder
	for line := range strings.Lines(log) {
		if !regexp.MustCompile(`finding=|msg=open|msg=device|is stalled`).MatchString(line) {
			kept.WriteString(line)
		}
	}
	varies := regexp.MustCompile(`(took|device|folder|core|url|address)=("[^"]*"|\S+)`)
	return varies.ReplaceAllString(kept.String(), "$1=")
}

// service is a responder in this process.
type service struct {
	out, log programs.Output
	ready    string
	ask      chan os.Signal // requests a summary
	stop     func() error
}

// scheduled returns a function that gives this process the CPUs that it has now.
func scheduled(t *testing.T) (restore func()) {
	var all unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &all))
	n := runtime.GOMAXPROCS(0)
	return func() {
		check.OK(t, process.Bind(&all))
		runtime.GOMAXPROCS(n)
	}
}

// serve runs a responder with these settings, and returns it when it is ready or has failed with stop's error.
func (w *wired) serve(t *testing.T, sets ...string) *service {
	t.Helper()
	restore := scheduled(t)
	online := must.Get(onlineCPUs())(t)
	x := &service{}
	log := slog.New(slog.NewTextHandler(&x.log, &slog.HandlerOptions{Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	x.stop = sync.OnceValue(func() error {
		stop()
		err := <-ended
		restore()
		return err
	})
	t.Cleanup(func() { x.stop() })
	sets = slices.Concat(w.sets, []string{"trust.confine=off", "cpu.lock_memory=false"}, sets)
	s := must.Get(loadConfig("", sets, online))(t)
	x.ask = make(chan os.Signal)
	go func() {
		ended <- serve(ctx, s, online, x.ask, &x.out, log)
		stop()
	}()
	await.Until(t, "the ready line", func() bool {
		x.ready, _, _ = strings.Cut(x.out.String(), "\n")
		return x.ready != "" || ctx.Err() != nil
	}, x.log.String)
	return x
}

// A responder on a card answers, keeps its threads off the core of its loop, says to the service manager what it does,
// and prints and saves what it counted.
func TestServe(t *testing.T) {
	online := must.Get(onlineCPUs())(t)
	core := chooseCore(online)
	w := newWired(t, ixgbesim.New(ixgbesim.Options{MAC: plantMAC}))
	dir := filepath.Join(t.TempDir(), "not", "there", "run")
	notify := filepath.Join(t.TempDir(), "notify")
	manager := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"}))(t)
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", notify)
	t.Setenv("WATCHDOG_USEC", "1000000")
	told := func() string {
		buf := make([]byte, 1000)
		must.OK(t, manager.SetReadDeadline(time.Now().Add(time.Minute)))
		return string(buf[:must.Get(manager.Read(buf))(t)])
	}
	p := w.serve(t, "stats.report="+dir, "stats.listen=127.0.0.1:0", "respond.stamp_ports=[862]")
	var mask unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(os.Getpid(), &mask))
	check.Equal(t, mask.IsSet(core), len(online) == 1, "a thread on the loop's core: %t")
	var reply []byte
	w.far.Send(0, w.request(7))
	await.Until(t, "the reply", func() bool { reply = w.far.Recv(0); return reply != nil }, p.log.String)
	check.Equal(t, string(reply[:12]), string(benchMAC[:])+string(plantMAC[:]), "a reply between %x")
	must.Equal(t, told(), "READY=1\nSTATUS="+p.ready, "%q")
	must.Equal(t, told(), "WATCHDOG=1", "%q")
	p.ask <- unix.SIGUSR1
	await.Until(t, "the summary", func() bool { return strings.Contains(p.out.String(), "\nsummary ") })
	must.OK(t, p.stop())
	check.Equal(t, strings.Count(p.out.String(), "\nsummary "), 2, "%d summaries")
	for told() != "STOPPING=1" {
	}
	check.Contains(t, p.ready, "ready driver=ixgbe device=vfio-user:", " mac=02:00:00:00:07:02 addresses=10.0.0.2/24")
	check.Contains(t, p.out.String(), "\n  udpv4 ")
	golden.Equal(t, "testdata/served.txt", steps(p.log.String()))
	r := must.Get(report.Read(dir))(t)
	check.Equal(t, r.Counts.Sent, 1, "%d answered")
	check.Equal(t, r.Host.Core, core, "core %d")
	if r.Gaps == nil || r.Clock.Frequency == 0 || r.Transfers["mmio write"] == 0 || r.Main().Total.Count == 0 {
		t.Errorf("the report has %+v", r)
	}
}

// What a responder on a card says when it is ready, warns of, or fails with. A failure leaves the device to the next.
func TestServeOn(t *testing.T) {
	busy := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer busy.Close()
	frames := newWired(t, ixgbesim.New(ixgbesim.Options{MAC: plantMAC}))
	messages := newWired(t, efasim.New(efasim.Options{MAC: plantMAC}))
	messages.sets = messages.sets[:1]
	down := newWired(t, virtiosim.New(virtiosim.Options{MAC: plantMAC}))
	down.far.SetUp(false)
	every := fmt.Sprintf("cpu.cores=[%s]", strings.ReplaceAll(strings.Trim(fmt.Sprint(must.Get(onlineCPUs())(t)), "[]"), " ", ","))
	for _, c := range []struct {
		on    *wired
		sets  []string
		ready string // an expression
		log   string
		err   string
	}{
		{on: frames, sets: []string{"stats.listen=" + busy.Addr().String()}, err: "address already in use"},
		{on: frames, sets: []string{"stats.report=/dev/null/no/run"}, err: "stats.report: cannot create a folder in /dev/null/no"},
		{on: frames, sets: []string{"nic.driver=virtio"}, err: "is no virtio network device"},
		{on: frames, sets: []string{every, "stats.offcore=true"}, ready: `addresses=10\.0\.0\.2/24$`,
			log: "every core that this process can have polls"},
		{on: down, ready: "driver=virtio", log: "link is down; answering starts when it comes up"},
		{on: messages, sets: []string{"respond.handover=192.0.2.1:18515"}, err: "respond.handover: hand-over of ud"},
		{on: messages, sets: []string{"respond.handover=127.0.0.1:0", "respond.stamp_messages=true"},
			ready: `^ready driver=efa \S+ gid=fe80::\S+ qkey=0x11111111 ud=\d+ srd=\d+ stamp-ud=\d+ stamp-srd=\d+ handover=ud@\S+,srd@\S+,stamp-ud@\S+,stamp-srd@\S+$`},
		{on: messages, sets: []string{"nic.driver=efa", "nic.push=llq"}, err: `push mode "llq": want one of auto, off`},
		{on: messages, sets: []string{"respond.addresses=10.0.0.2/24"}, err: "respond.addresses: has to be empty: efa carries messages"},
		{on: messages, sets: []string{"nic.driver=ena", "respond.addresses=10.0.0.2/24"}, err: "is not an ENA"},
	} {
		p := c.on.serve(t, c.sets...)
		err := p.stop()
		if c.err != "" {
			check.Fails(t, strings.Join(c.sets, " "), err, nil, c.err)
			check.Equal(t, p.ready, "", "ready: %q")
			continue
		}
		check.OK(t, err)
		if !regexp.MustCompile(c.ready).MatchString(p.ready) || !strings.Contains(p.log.String(), c.log) {
			t.Errorf("%q: %q, want %q and in the log %q:\n%s", c.sets, p.ready, c.ready, c.log, steps(p.log.String()))
		}
	}
}

// A folder for a report is one that this user may make, as far as the modes of the folders above it say.
func TestReportable(t *testing.T) {
	parent := t.TempDir()
	must.OK(t, os.Chmod(filepath.Dir(parent), 0o755))
	checked := make(chan error)
	for mode, allowed := range map[os.FileMode]bool{0o777: true, 0o555: false, 0o666: false} {
		must.OK(t, os.Chmod(parent, mode))
		go func() {
			runtime.LockOSThread() // never unlocked: the thread has another user, and ends
			if os.Geteuid() == 0 {
				// the real user, whom access(2) is about
				unix.RawSyscall(unix.SYS_SETRESUID, 65534, ^uintptr(0), ^uintptr(0))
			}
			checked <- reportable(parent + "/run/")
		}()
		if err := <-checked; allowed {
			check.OK(t, err)
		} else {
			check.Fails(t, mode.String(), err, unix.EACCES, "stats.report: cannot create a folder in "+parent)
		}
	}
	must.OK(t, os.Chmod(parent, 0o700))
}

// What release prints of each change that it found, and fails for.
func TestPrintUndone(t *testing.T) {
	busy := isolate.Step{Name: "busy"}
	done, failed := isolate.Step{Name: "one", Done: "undone"}, isolate.Step{Name: "two", Err: unix.EPERM}
	for _, c := range []struct {
		steps []isolate.Step
		want  string
	}{
		{nil, "nothing to undo\n<nil>"},
		{[]isolate.Step{busy, done}, "busy: still running; it undoes its changes when it exits\none: undone\n<nil>"},
		{[]isolate.Step{failed, failed}, strings.Repeat("two: not done: operation not permitted\n", 2) +
			"2 could not be undone completely"},
	} {
		var b strings.Builder
		err := printUndone(&b, c.steps)
		check.Equal(t, b.String()+fmt.Sprint(err), c.want, "%q")
	}
}

// check fails with the number of findings that are more than notes, and tests the guard of each core that a real-time
// loop would have.
func TestCheckCounts(t *testing.T) {
	needs.Long(t)
	for set, guards := range map[string]int{"cpu.priority=0": 0, "cpu.priority=1": 1} {
		var out strings.Builder
		err := checkCommand([]string{"-set", set}, &out, nil)
		bad := len(regexp.MustCompile(`(?m)^(warning|serious) `).FindAllString(out.String(), -1))
		if bad > 0 {
			check.Equal(t, err, error(errNotReady(bad)), "%v")
		} else {
			check.OK(t, err)
			check.Contains(t, out.String(), "ready for low latency")
		}
		tested := regexp.MustCompile(`(?m)^guard +(a SCHED_FIFO|core \d+ could)`).FindAllString(out.String(), -1)
		check.Equal(t, len(tested), guards, set+": %d cores were tested")
		check.Equal(t, regexp.MustCompile(`from core \d+ for 0`).MatchString(out.String()), false, "for no time: %t")
	}
}
