package baseline

import (
	"bufio"
	"bytes"
	_ "embed" // the loop in C
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
)

//go:embed testdata/gap.c
var gapSource []byte

// BuildGap compiles the polling loop in C to the file program.
func BuildGap(program string) error { return Compile(gapSource, program) }

// Compile compiles a C program with gcc.
func Compile(source []byte, program string) error {
	c := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-x", "c", "-o", program, "-")
	c.Stdin = bytes.NewReader(source)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// RunGap runs the program built by BuildGap on a core, and returns the gaps that it measured.
func RunGap(program string, core int, d time.Duration, clock *latency.Clock) (*latency.Histogram, error) {
	c := exec.Command(program, strconv.Itoa(core), strconv.Itoa(int(d.Seconds())))
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	var counts [polling.Buckets]uint64
	var greatest uint64
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s printed %q", program, lines.Text())
		}
		if key == "max" {
			greatest = n
			continue
		}
		i, err := strconv.Atoi(key)
		if err != nil || i < 0 || i >= len(counts) {
			return nil, fmt.Errorf("%s printed %q", program, lines.Text())
		}
		counts[i] = n
	}
	return latency.FromTicks(&counts, greatest, clock), nil
}

// Resolution returns the usual non-zero difference between two successive reads of the counter, in ns: the greater of
// its usual step and of the cost of a read.
func Resolution(clock *latency.Clock) float64 {
	var h polling.Histogram
	for range 100_000 {
		a := polling.TSC()
		if d := polling.TSC() - a; d > 0 {
			h.Record(d)
		}
	}
	return float64(latency.FromHot(&h, clock).Quantile(0.5))
}
