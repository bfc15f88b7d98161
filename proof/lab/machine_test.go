package lab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/efasim"
)

func kit(t *testing.T) *Kit {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	k, err := setup(ctx)
	available(t, err)
	k.Used = func(u Usage) { used(t, u) }
	if _, again := attempted.Load(t); again {
		k.Died = func(err error) { panic(died{err}) }
	}
	return k
}

// available skips the test if something that it needs cannot be had here.
func available(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, errCannot) {
		t.Skip(err)
	}
	must.OK(t, err)
}

func logDir(t *testing.T) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "lab-"+strings.ReplaceAll(t.Name(), "/", "-")+"-"))(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of guest and model: %s", dir)
			return
		}
		os.RemoveAll(dir)
	})
	return dir
}

// scene is a run of a guest: its folder, and the functions on its bus.
type scene struct {
	*testing.T
	kit       *Kit
	dir       string
	functions []*function
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{T: t, kit: kit(t), dir: logDir(t)}
	t.Log(s.kit.Version)
	return s
}

// play runs the guest with all functions, unless m names some. It logs what the guest says, what it shows under the
// keys and what its kernel reports, and fails the test if a driver violated a rule of a model.
func (s *scene) play(m Machine, keys ...string) (Result, error) {
	s.Helper()
	start, say := time.Now(), m.Say
	m.Say = func(key, text string, r Result) error {
		s.Logf("%6.1fs %s %s", time.Since(start).Seconds(), key, text)
		if say == nil {
			return nil
		}
		return say(key, text, r)
	}
	if m.Dir = s.dir; m.Sockets == nil {
		for _, f := range s.functions {
			m.Sockets = append(m.Sockets, f.socket)
		}
	}
	for _, f := range s.functions {
		if _, efa := f.model.(*efasim.Model); efa {
			m.NoPosting = true
		}
	}
	r, err := s.kit.Run(s.Context(), m)
	r.log(s.T, append(keys, "dmesg")...)
	for _, f := range s.functions {
		f.clean(s.T)
	}
	return r, err
}

func TestGuestScript(t *testing.T) {
	guests(t)
	k := kit(t)
	t.Log(k.Version)
	var said []string
	r := must.Get(k.Run(t.Context(), Machine{
		Limit:  time.Minute,
		Dir:    logDir(t),
		Script: "say hello world\nshow file cat /lab/data\nshow part printf 'half a line'\nsay after it\ndmesg >/tmp/dmesg\nshow tsc sed -n 's/.*tsc: Detected \\([0-9]*\\)\\..*/\\1/p' /tmp/dmesg\nneed test -d /lab\n",
		Files:  map[string][]byte{"data": []byte("one\ntwo\n")},
		Say: func(key, text string, _ Result) error {
			if key == "unbooted" { // the machine is busy: it restarts
				said = nil
				return nil
			}
			said = append(said, key+" "+text)
			return nil
		},
	}))(t)
	check.Equal(t, strings.Join(r["file"], ","), "one,two", "the guest showed %q")
	// On a busy machine, a guest that measures the rate may get a twentieth of it.
	for _, line := range r["tsc"] { // the kernel may refine the rate and report it again
		mhz, _ := strconv.ParseInt(line, 10, 64)
		if want := hostTSC() / 1e6; want > 0 && (mhz < want*9/10 || mhz > want*11/10) {
			t.Errorf("the guest's counter has %d MHz, this host's %d: %q", mhz, want, r["tsc"])
		}
	}
	if len(r["tsc"]) == 0 {
		t.Error("the guest did not report the rate of its counter")
	}
	check.Equal(t, strings.Join(r["part"], ","), "half a line", "the guest showed %q of a line without an end")
	if len(said) != 3 || said[1] != "hello world" || said[2] != "after it" || !strings.HasPrefix(said[0], "boot ") {
		t.Errorf("the guest said %q", said)
	}
	_, err := k.Run(t.Context(), Machine{Dir: logDir(t), Limit: time.Minute, Script: "need ls /nowhere\n"})
	check.Fails(t, "a failing script", err, errGuest, "/nowhere: No such file")
}

// A guest that stalls ends its run within the limit, and leaves diagnostics in its folder: its tasks' stacks and
// registers, and what QEMU and the models do. If QEMU itself stalls, only the latter are available.
func TestGuestThatHangs(t *testing.T) {
	guests(t)
	for _, c := range []struct {
		name string
		qemu bool
		logs map[string]string
	}{
		{"guest", false, map[string]string{"threads.log": "comm: ", "goroutines.log": "TestGuestThatHangs", "monitor.log": "RIP=", "console.log": "task:sleep "}},
		{"QEMU", true, map[string]string{"threads.log": "comm: ", "goroutines.log": "TestGuestThatHangs", "monitor.log": "i/o timeout"}},
	} {
		beside(t, c.name, func(t *testing.T) {
			dir := logDir(t)
			_, err := kit(t).Run(t.Context(), Machine{Dir: dir, Limit: time.Second, Script: "say asleep\nsleep 10000\n",
				Say: func(key, _ string, _ Result) error {
					if c.qemu && key == "asleep" {
						freeze(t, dir)
					}
					return nil
				}})
			check.Fails(t, "a guest that does not end", err, errGuest, "no end in time; it said last: asleep", dir)
			for file, want := range c.logs {
				if b, err := os.ReadFile(filepath.Join(dir, file)); err != nil || !strings.Contains(string(b), want) {
					t.Errorf("%s: %v; no %q in %d bytes: %s", file, err, want, len(b), tail(filepath.Join(dir, file)))
				}
			}
		})
	}
}

// A kernel that died from a breakpoint may stand still instead of ending QEMU. It does not use up the limit, and the
// scenario runs again.
func TestGuestBreakpoint(t *testing.T) {
	guests(t)
	var dirs []string
	attempts(t, func(t *testing.T) {
		dir := logDir(t)
		dirs = append(dirs, dir)
		m := Machine{Dir: dir, Limit: time.Hour, Script: "say alive\n"}
		if len(dirs) == 1 {
			m.Script += "echo '<0>Oops: int3: 0000' >/dev/kmsg; sleep 10000\n"
		}
		check.OK(t, check.Err(kit(t).Run(t.Context(), m)))
	})
	check.Equal(t, len(dirs), 2, "%d attempts")
}

// freeze stops the QEMU process that uses the folder.
func freeze(t *testing.T, dir string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range all {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if line, err := os.ReadFile(name); err == nil && pid != os.Getpid() &&
			bytes.Contains(line, []byte(dir+"/monitor")) {
			check.OK(t, unix.Kill(pid, unix.SIGSTOP))
			return
		}
	}
	t.Error("no process of QEMU")
}

func TestCrowd(t *testing.T) {
	for _, c := range []struct {
		loadavg string
		want    float64
	}{
		{"0.13 1.03 0.93 1/200 77", 1},
		{"0.50 1.03 0.93 8/200 77", 4},  // many are runnable now
		{"12.0 1.03 0.93 1/200 77", 6},  // many were runnable for a while
		{"90.0 1.03 0.93 1/200 77", 10}, // a limit that never expires would be useless
		{"garbage", 1},
	} {
		if got := crowdOf(c.loadavg, 2); got != c.want {
			t.Errorf("%q on 2 cores: %v runnable threads for each core, want %v", c.loadavg, got, c.want)
		}
	}
}

func TestLimitSpent(t *testing.T) {
	l := &limit{left: time.Second}
	if l.spend(900*time.Millisecond) || l.expired() {
		t.Error("the limit is over before its time")
	}
	l.extend(time.Second)
	if l.spend(900 * time.Millisecond) {
		t.Error("an extended limit is over before its time")
	}
	if !l.spend(200*time.Millisecond) || !l.expired() {
		t.Error("the limit is not over when all of it is spent")
	}
	if l.extend(time.Hour); !l.expired() {
		t.Error("a limit that was over is extended")
	}
}

// A guest that does not reach its init is booted again, and finally given up.
func TestGuestDoesNotBoot(t *testing.T) {
	guests(t)
	k := *kit(t)
	dir := logDir(t)
	k.Kernel = filepath.Join(dir, "kernel")
	must.OK(t, os.WriteFile(k.Kernel, []byte("no kernel"), 0o644))
	var said []string
	_, err := k.Run(t.Context(), Machine{
		Dir: dir, Limit: time.Minute,
		Say: func(key, text string, _ Result) error { said = append(said, key); return nil },
	})
	check.Fails(t, "a guest without a kernel", err, errGuest, "it said last: nothing")
	check.Equal(t, strings.Join(said, " "), "unbooted unbooted", "it was given %q")
}
