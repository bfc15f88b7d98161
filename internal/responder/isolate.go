package responder

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/latency"
)

// releaseCommand undoes what killed responders and benches left on this machine.
func releaseCommand(args []string, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return usageError(fmt.Sprintf("unexpected argument %q", args[0]))
	}
	return printUndone(stdout, (&isolate.Host{}).Abandoned())
}

// printUndone prints what was done for each change that was left, and fails if not all of it is undone.
func printUndone(stdout io.Writer, steps []isolate.Step) error {
	failed := 0
	for _, s := range steps {
		switch {
		case s.Err != nil:
			failed++
			fmt.Fprintln(stdout, s)
		case s.Done == "":
			fmt.Fprintf(stdout, "%s: still running; it undoes its changes when it exits\n", s.Name)
		default:
			fmt.Fprintln(stdout, s)
		}
	}
	if len(steps) == 0 {
		fmt.Fprintln(stdout, "nothing to undo")
	}
	if failed > 0 {
		return fmt.Errorf("%d could not be undone completely", failed)
	}
	return nil
}

// guarded logs the kernel's guards against cpu.priority, and rejects the setting if the user configured that.
func (s *settings) guarded(cores []int, log *slog.Logger) error {
	if s.cpu.priority == 0 {
		return nil
	}
	guards, err := (&isolate.Host{}).Guards(cores)
	if err != nil {
		return fmt.Errorf("cpu.priority: the kernel's throttling of real-time threads: %w", err)
	}
	if len(guards) > 0 && s.cpu.guard == "refuse" {
		return fmt.Errorf("cpu.priority = %d: %w: %s (cpu.realtime_guard = \"lift\" disables that while the responder runs, \"keep\" accepts it; by hand: %s)",
			s.cpu.priority, isolate.ErrGuarded, list(guards, isolate.Guard.String),
			list(guards, func(g isolate.Guard) string { return g.Lift }))
	}
	for _, g := range guards {
		log.Warn("the kernel throttles real-time threads", "guard", g.String(), "fix", g.Lift, "cpu.realtime_guard",
			s.cpu.guard)
	}
	return nil
}

// lift reports whether the kernel's guards against cpu.priority are lifted while the responder runs.
func (s *settings) lift() bool { return s.cpu.priority > 0 && s.cpu.guard == "lift" }

// lease isolates the cores as far as the settings request it. release undoes it.
func (s *settings) lease(cores []int, log *slog.Logger) (l *isolate.Lease, release func(), err error) {
	lift := s.lift()
	if !lift && !s.cpu.isolate {
		return nil, func() {}, nil
	}
	host := &isolate.Host{}
	if l, err = host.Begin(cores); err != nil {
		return nil, nil, fmt.Errorf("cpu.isolate, cpu.realtime_guard: %w", err)
	}
	release = func() {
		if err := l.Release(); err != nil {
			log.Error("cpu.isolate was not undone completely", "error", err)
		}
	}
	var steps []isolate.Step
	if s.cpu.isolate {
		steps = l.Isolate()
	}
	if lift {
		step := l.LiftGuards()
		if step.Err != nil {
			release()
			return nil, nil, fmt.Errorf("cpu.priority = %d: %w", s.cpu.priority, step.Err)
		}
		steps = append(steps, step)
	}
	isolate.Log(log, steps...)
	return l, release, nil
}

func list(guards []isolate.Guard, of func(isolate.Guard) string) string {
	out := make([]string, len(guards))
	for i, g := range guards {
		out[i] = of(g)
	}
	return strings.Join(out, "; ")
}

// probeGuards measures for two seconds per core how the kernel throttles a real-time loop there.
func probeGuards(stdout io.Writer, cores []int, priority int) error {
	guards, err := (&isolate.Host{}).Guards(cores)
	if err != nil {
		return err
	}
	for _, g := range guards {
		fmt.Fprintf(stdout, "guard    %v; to disable it: %s\n", g, g.Lift)
	}
	for _, c := range cores {
		const long = 2 * time.Second
		longest, total, err := isolate.Probe(c, priority, long)
		switch {
		case err != nil:
			fmt.Fprintf(stdout, "guard    core %d could not be tested: %v\n", c, err)
		case total > 0:
			fmt.Fprintf(stdout, "guard    a SCHED_FIFO %d thread was descheduled from core %d for %s in %s, up to %s at a time: a polling loop would be, too\n", priority, c, latency.FormatDuration(total), latency.FormatDuration(long), latency.FormatDuration(longest))
		default:
			fmt.Fprintf(stdout, "guard    a SCHED_FIFO %d thread was never descheduled from core %d for a millisecond in %s\n", priority, c, latency.FormatDuration(long))
		}
	}
	return nil
}
