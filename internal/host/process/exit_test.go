package process

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Each kind of error has its exit code, and is printed unless the command has done so.
func TestExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		say  bool
	}{
		{nil, 0, false}, {fmt.Errorf("run: %w", flag.ErrHelp), 0, false}, {io.EOF, 1, true},
		{fmt.Errorf("run: %w", Usagef("-x: %w", io.EOF)), 2, true}, {fmt.Errorf("compare: %w", ErrWorse), 3, true},
		{fmt.Errorf("run: %w", Status(7)), 7, false},
	} {
		code, say := ExitCode(c.err)
		if code != c.code || say != c.say {
			t.Errorf("%v: code %d, said %t; want %d, %t", c.err, code, say, c.code, c.say)
		}
	}
	check.Equal(t, Usagef("-x: %w", io.EOF).Error(), "-x: EOF", "%q")
	check.Fails(t, "the reason", Usagef("-x: %w", io.EOF), io.EOF)
	check.Equal(t, Status(7).Error(), "exit status 7", "%q")

	for _, c := range []struct {
		out        io.Writer
		code, want int
		says       string
	}{{io.Discard, 3, 3, ""}, {full{}, 0, 1, "x: the output is incomplete: disk full\n"},
		{full{}, 3, 3, "x: the output is incomplete: disk full\n"}} {
		out, stderr := sanitize.NewWriter(c.out), new(strings.Builder)
		fmt.Fprintln(out, "text")
		check.Equal(t, Printed(c.code, "x", out, stderr), c.want, "code %d")
		check.Equal(t, stderr.String(), c.says, "%q")
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// Each level and format of the log, with and without -v.
func TestLog(t *testing.T) {
	lines := func(l *slog.Logger, out *strings.Builder) string {
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, nic.Notice, slog.LevelWarn,
			slog.LevelError} {
			l.WithGroup("g").Log(t.Context(), level, "said", "n", 1)
		}
		var all []string
		for line := range strings.Lines(out.String()) {
			_, line, _ = strings.Cut(line, "level")
			all = append(all, strings.Trim(line, "\":=} \n"))
		}
		return strings.Join(all, "|")
	}
	for _, c := range []struct {
		set     []string
		verbose bool
		want    string
	}{
		{nil, false, "NOTICE msg=said g.n=1|WARN msg=said g.n=1|ERROR msg=said g.n=1"},
		{nil, true, "INFO msg=said g.n=1|NOTICE msg=said g.n=1|WARN msg=said g.n=1|ERROR msg=said g.n=1"},
		{[]string{"log.level=debug"}, true,
			"DEBUG msg=said g.n=1|INFO msg=said g.n=1|NOTICE msg=said g.n=1|WARN msg=said g.n=1|" +
				"ERROR msg=said g.n=1"},
		{[]string{"log.level=warn", "log.format=text"}, false, "WARN msg=said g.n=1|ERROR msg=said g.n=1"},
		{[]string{"log.level=error", "log.format=json"}, false, `ERROR","msg":"said","g":{"n":1`},
	} {
		var l Log
		table := setting.New(l.Settings()...)
		for _, set := range c.set {
			must.OK(t, table.Set(set))
		}
		must.OK(t, table.Apply())
		l.Verbose = c.verbose
		var out strings.Builder
		check.Equal(t, lines(l.New(&out), &out), c.want, fmt.Sprint(c.set)+": %s")
	}
	var none Log
	table := setting.New(none.Settings()...)
	must.OK(t, table.Set("log.level=loud"))
	check.Fails(t, "another level", table.Apply(), nil, `"loud" is not debug, info, notice, warn or error`)
	var out strings.Builder
	check.Equal(t, lines(NewLog(&out, slog.LevelError), &out), "ERROR msg=said g.n=1", "%s")
}

// The tail of what was written, by any number of writes, has up to 4 KiB.
func TestTail(t *testing.T) {
	var w Tail
	var all string
	for i := range 5000 {
		text := strings.Repeat(fmt.Sprint(i, " "), i%3)
		n, err := io.WriteString(&w, text)
		check.OK(t, err)
		check.Equal(t, n, len(text), "%d bytes written")
		all += text
		must.Equal(t, w.String(), all[max(0, len(all)-4096):], "%q")
	}
	io.WriteString(&w, strings.Repeat("x", 10_000))
	check.Equal(t, w.String(), strings.Repeat("x", 4096), "%q")
}

// All threads are reached, and the first error ends it, unless the thread has ended.
func TestEachThread(t *testing.T) {
	var all []int
	must.OK(t, EachThread(func(tid int) error { all = append(all, tid); return unix.ESRCH }))
	for _, d := range must.Get(os.ReadDir("/proc/self/task"))(t) {
		if !slices.ContainsFunc(all, func(tid int) bool { return fmt.Sprint(tid) == d.Name() }) {
			t.Errorf("thread %s is missing in %v", d.Name(), all)
		}
	}
	n := 0
	err := EachThread(func(int) error { n++; return unix.EPERM })
	check.Fails(t, "a refusal", err, unix.EPERM, "thread ")
	check.Equal(t, n, 1, "%d calls")
	var mask unix.CPUSet
	must.OK(t, unix.SchedGetaffinity(0, &mask))
	check.OK(t, Bind(&mask))
}

// The first signal asks the process to stop.
func TestOnSignal(t *testing.T) {
	var stop atomic.Bool
	restore := OnSignal(&stop)
	must.OK(t, unix.Kill(os.Getpid(), unix.SIGTERM))
	await.Until(t, "the signal", stop.Load)
	restore()
}
