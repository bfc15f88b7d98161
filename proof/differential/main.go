// Package differential compares package fastpath with an oracle of the same rules on randomly mutated frames.
//
//	oracle [-frames 1e9] [-seed 1] [-workers N]
//
// Every frame goes through the leaves as a driver calls them and through Slow, under each of several configurations.
// The replies must equal the oracle's, byte for byte except for zero's two forms in one checksum, and each frame must
// be counted once. The frames depend only on the seed, not on the number of workers. It prints its counts, and exits
// with status 1 at the first difference, or 2 for wrong usage.
package differential

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Main runs the comparison with the arguments after the command name and returns the exit status.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	stdout, code := sanitize.NewWriter(os.Stdout), process.Done
	if err := run(ctx, args, stdout); err != nil {
		fmt.Fprintln(os.Stderr, "oracle:", sanitize.Error(err))
		if code = process.Failed; errors.Is(err, errUsage) {
			code = process.Usage
		}
	}
	return process.Printed(code, "oracle", stdout, os.Stderr)
}

var errUsage = errors.New("used wrongly")

// chunk is the number of frames per stream of random numbers.
const chunk = 1 << 16

func run(ctx context.Context, args []string, stdout io.Writer) error {
	f := flag.NewFlagSet("oracle", flag.ContinueOnError)
	count := f.Float64("frames", 1e8, "how many frames, rounded up to a multiple of 65536")
	seed := f.Uint64("seed", 1, "what the frames depend on")
	workers := f.Int("workers", runtime.GOMAXPROCS(0), "how many threads judge")
	f.SetOutput(io.Discard)
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		f.SetOutput(stdout)
		f.Usage()
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if f.NArg() > 0 || *count < 1 || *count > 1e15 || *workers < 1 {
		return fmt.Errorf("%w: want -frames from 1 to 1e15 and -workers from 1, and no arguments", errUsage)
	}
	chunks := (uint64(*count) + chunk - 1) / chunk
	start := time.Now()
	var next, done atomic.Uint64
	var mu sync.Mutex
	var total fastpath.Stats
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range *workers {
		all.Go(func() {
			j, err := newJudge()
			if err != nil {
				cancel(err)
				return
			}
			for ctx.Err() == nil {
				n := next.Add(1) - 1
				if n >= chunks {
					break
				}
				if err := j.chunk(*seed, n); err != nil {
					cancel(fmt.Errorf("seed %d, stream %d: %w", *seed, n, err))
					break
				}
				done.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range j.rules {
				s := r.fast.Stats()
				total.Add(&s)
			}
		})
	}
	all.Wait()
	took := time.Since(start)
	frames := done.Load() * chunk
	print(stdout, &total)
	fmt.Fprintf(stdout, "%d frames, each by leaves and by Slow, seed %d, %v, %.2f million a second on %d threads: ",
		frames, *seed, took.Round(time.Second), float64(frames)/took.Seconds()/1e6, *workers)
	if err := context.Cause(ctx); err != nil {
		fmt.Fprintln(stdout, "stopped")
		return err
	}
	fmt.Fprintln(stdout, "no difference")
	return nil
}

func print(w io.Writer, s *fastpath.Stats) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	for v, n := range s {
		fmt.Fprintf(t, "%d\t%s\t\n", n, cmp.Or(fastpath.Verdict(v).String(), "?"))
	}
	t.Flush()
}

// same reports whether two replies are equal except for zero's two forms in one checksum: two adjacent bytes.
func same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) != len(b) {
		return false
	}
	i := 0
	for a[i] == b[i] {
		i++
	}
	i &^= 1
	if i+2 > len(a) || !bytes.Equal(a[i+2:], b[i+2:]) {
		return false
	}
	x, y := string(a[i:i+2]), string(b[i:i+2])
	return x == "\x00\x00" && y == "\xff\xff" || x == "\xff\xff" && y == "\x00\x00"
}
