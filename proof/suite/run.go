package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A job is one command: "go test -json" of some packages, or a step such as a build.
type job struct {
	name    string
	dir     string
	env     []string
	command []string
	test    bool          // it prints go test -json events
	each    bool          // each test has its own line
	variant string        // printed after the package's name
	needs   string        // a program without which the job is skipped
	left    string        // why another command runs it instead: the job is skipped
	seconds int           // expected duration on a quiet machine: the longest job starts first
	cores   float64       // number of cores in use
	limit   time.Duration // after this time on an unloaded machine it is killed, with a dump of its goroutines' stacks
}

// A runner runs jobs in parallel, within the number of cores, and prints one line for each package.
type runner struct {
	out    io.Writer
	cores  float64
	stacks string // folder for long dumps of stacks, "" for none

	mu      sync.Mutex // over the following, and out
	total   tally
	suspect []suspect
}

// A suspect is a test that failed, and its job.
type suspect struct {
	job       job
	pkg, test string
}

// mostSuspects is the largest number of failed tests that may be unsteady. More have a cause in common.
const mostSuspects = 3

// repeat runs each failed test again, with nothing beside it. One that passes is unsteady: it is listed, and does not
// count as failed.
func (r *runner) repeat(ctx context.Context) {
	suspects := r.suspect
	if len(suspects) > mostSuspects || len(suspects) != r.total.failures() || ctx.Err() != nil {
		return
	}
	for _, s := range suspects {
		fmt.Fprintf(r.out, "%s runs again, alone\n", testName(s.pkg, s.test))
		alone := &runner{out: r.out, cores: r.cores, stacks: r.stacks}
		alone.run(ctx, []job{s.job.only(s.pkg, s.test)})
		if ctx.Err() == nil && alone.total.failures() == 0 && alone.total.Passed > 0 {
			r.total.Failed[testName(s.pkg, s.test)]--
			r.total.Unsteady = append(r.total.Unsteady, testName(s.pkg, s.test))
		}
	}
}

// only is j with one test of one package. In another module (dir) it keeps all packages.
func (j job) only(pkg, test string) job {
	if j.dir == "" {
		j.command = slices.DeleteFunc(slices.Clone(j.command),
			func(arg string) bool { return strings.HasPrefix(arg, "./") })
		j.command = append(j.command, "./"+strings.TrimSuffix(pkg, " ("+j.variant+")"))
	}
	top, _, _ := strings.Cut(test, "/")
	j.command = append(slices.Clip(j.command), "-run", "^"+top+"$")
	return j
}

// run runs the jobs. Among those that fit into the free cores, the longest starts first; one that never fits runs
// alone.
func (r *runner) run(ctx context.Context, jobs []job) {
	done := make(chan job)
	free, running := r.cores, 0
	for len(jobs) > 0 || running > 0 {
		next := -1
		for i, j := range jobs {
			if ctx.Err() == nil && (j.cores <= free || running == 0) && (next < 0 || j.seconds > jobs[next].seconds) {
				next = i
			}
		}
		if next < 0 {
			if running == 0 {
				return // interrupted
			}
			j := <-done
			free, running = free+j.cores, running-1
			continue
		}
		j := jobs[next]
		jobs = append(jobs[:next:next], jobs[next+1:]...)
		free, running = free-j.cores, running+1
		go func() {
			r.one(ctx, j)
			done <- j
		}()
	}
}

// line prints the result of a package or step.
func (r *runner) line(name string, o outcome, t tally, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%-4s  %-40s %6.1fs", words[o], name, took.Seconds())
	for _, n := range []struct {
		n    int
		word string
	}{{t.Passed, "passed"}, {t.failures(), "failed"}, {t.skips(), "skipped"}} {
		if n.n > 0 {
			fmt.Fprintf(r.out, "  %d %s", n.n, n.word)
		}
	}
	if t.Passed == 0 && len(t.Skipped) == 1 {
		fmt.Fprintf(r.out, ": %s", slices.Collect(maps.Keys(t.Skipped))[0])
	}
	fmt.Fprintln(r.out)
	r.total.add(t)
}

// suspects notes which tests of a package failed. A package that failed as a whole has none.
func (r *runner) suspects(j job, pkg string, t tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range t.Failed {
		if test, ok := strings.CutPrefix(name, pkg+" "); ok {
			r.suspect = append(r.suspect, suspect{j, pkg, test})
		}
	}
}

var words = map[outcome]string{passed: "ok", failed: "FAIL", skipped: "skip"}

func (r *runner) ended(_, test string, o outcome, seconds float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%-4s    %-38s %6.1fs\n", words[o], test, seconds)
}

// failure prints the output of a failed test. If it was killed, the first line says so, and few of its stacks follow.
func (r *runner) failure(pkg, test, output string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := output
	if output = brief(full); output != full && r.stacks != "" {
		file := filepath.Join(r.stacks, strings.NewReplacer("/", "-", " ", "-").Replace(testName(pkg, test))+".stacks")
		if err := errors.Join(os.MkdirAll(r.stacks, 0o755), os.WriteFile(file, []byte(full), 0o644)); err != nil {
			file = err.Error()
		}
		output += "all stacks: " + file + "\n"
	}
	if m := timedOut.FindStringSubmatch(full); m != nil && !strings.HasPrefix(full, killedBy) {
		output = fmt.Sprintf("%s %s (go test -timeout)\n%s", killedBy, m[1], output)
	}
	fmt.Fprintf(r.out, "--- FAIL: %s\n%s", testName(pkg, test), output)
	if !strings.HasSuffix(output, "\n") {
		fmt.Fprintln(r.out)
	}
}

// one runs a job to its end.
func (r *runner) one(ctx context.Context, j job) {
	var t tally
	if j.left != "" {
		t.skip(j.name, "", j.left)
		r.line(j.name, skipped, t, 0)
		return
	}
	if j.needs != "" {
		if _, err := exec.LookPath(j.needs); err != nil {
			t.skip(j.name, "", fmt.Sprintf("needs %s (scripts/install-deps)", j.needs))
			r.line(j.name, skipped, t, 0)
			return
		}
	}
	start := time.Now()
	cmd := exec.Command(j.command[0], j.command[1:]...)
	cmd.Dir, cmd.Env = j.dir, append(os.Environ(), j.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	var events *io.PipeReader
	ended := make(chan struct{})
	packages := 0
	var killed atomic.Pointer[string]
	failure := func(pkg, test, output string) {
		if why := killed.Load(); why != nil {
			output = *why + "\n" + output
		}
		r.failure(pkg, test, output)
	}
	if j.test {
		var out *io.PipeWriter
		events, out = io.Pipe()
		cmd.Stdout = out
		go func() {
			defer close(ended)
			in := &reader{variant: j.variant, failure: failure,
				finished: func(pkg string, o outcome, t tally, took time.Duration) {
					packages++
					r.line(pkg, o, t, took)
					r.suspects(j, pkg, t)
				}}
			if j.each {
				in.ended = r.ended
			}
			if err := in.read(events); err != nil {
				fmt.Fprintln(&in.rest, err)
			}
			errs.WriteString(in.rest.String())
			if in.reused > 0 {
				fmt.Fprintf(r.out, "%d of these packages are unchanged since their last run, whose results are shown\n",
					in.reused)
			}
		}()
		defer out.Close()
	} else {
		cmd.Stdout = &errs
		close(ended)
	}
	err := wait(ctx, cmd, j.limit, func(why error) {
		text := why.Error()
		killed.Store(&text)
	})
	if out, ok := cmd.Stdout.(*io.PipeWriter); ok {
		out.Close()
	}
	<-ended

	took := time.Since(start)
	var cpu time.Duration
	if p := cmd.ProcessState; p != nil {
		cpu = p.UserTime() + p.SystemTime()
	}
	t.Jobs = []jobTime{{j.name, took.Seconds(), cpu.Seconds()}}
	switch {
	case err != nil && (packages == 0 || !errors.As(err, new(*exec.ExitError))): // no package's line shows what failed
		t.fail(j.name, "")
		r.failure(j.name, "", fmt.Sprintf("%s: %v\n%s", strings.Join(j.command, " "), err, errs.String()))
		r.line(j.name, failed, t, took)
	case !j.test:
		t.Passed++
		r.line(j.name, passed, t, took)
	default:
		r.mu.Lock()
		r.total.add(t)
		r.mu.Unlock()
	}
}

// wait runs a command in a process group that ends with it. At the limit, or when ctx is done, it calls killing, and
// the group is first signalled and then killed; SIGQUIT makes each Go process print its goroutines. Time on a loaded
// machine counts less (see share): beside other work the command may take longer, and one that hangs leaves the machine
// idle.
func wait(ctx context.Context, cmd *exec.Cmd, limit time.Duration, killing func(why error)) error {
	cmd.WaitDelay = 10 * time.Second // for child processes that left the group, but have our pipe
	if err := cmd.Start(); err != nil {
		return err
	}
	group := -cmd.Process.Pid
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer syscall.Kill(group, syscall.SIGKILL)
	step := min(time.Second, limit/4)
	tick := time.NewTicker(step)
	defer tick.Stop()
	start, left := time.Now(), limit
	var why error
	for why == nil {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			why = errors.New("interrupted")
			syscall.Kill(group, syscall.SIGTERM)
		case <-tick.C:
			load, _ := os.ReadFile("/proc/loadavg")
			if left -= time.Duration(float64(step) * share(string(load), runtime.NumCPU())); left <= 0 {
				why = fmt.Errorf("%s %v, after %v on a loaded machine", killedBy, limit, time.Since(start).Round(step))
				killing(why)
				syscall.Kill(group, syscall.SIGQUIT)
			}
		}
	}
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		syscall.Kill(group, syscall.SIGKILL)
		<-done
	}
	return why
}

// share is the part of a core that one process receives at a load average, the content of /proc/loadavg.
func share(loadavg string, cpus int) float64 {
	var load float64
	fmt.Sscan(loadavg, &load)
	return min(1, float64(cpus)/max(load, 1))
}

// brief shortens the dump of stacks of a process that was killed (SIGQUIT) or timed out, to those of tests.
func brief(output string) string {
	const most = 12 // lines of stacks
	at := dump.FindStringIndex(output)
	if at == nil {
		return output
	}
	var b strings.Builder
	b.WriteString(output[:at[1]] + "\n")
	lines := 0
	for stack := range strings.SplitSeq(output[at[1]:], "\n\n") {
		if !strings.Contains(stack, "_test.go:") {
			continue
		}
		for line := range strings.Lines(strings.TrimSpace(stack)) {
			if lines++; lines <= most {
				b.WriteString(strings.TrimRight(line, "\n") + "\n")
			}
		}
	}
	return b.String()
}

const killedBy = "killed by its limit of"

var timedOut = regexp.MustCompile(`(?m)^panic: test timed out after (\S+)`)

var dump = regexp.MustCompile(`(?m)^(SIGQUIT: quit|panic: test timed out after ).*$`)
