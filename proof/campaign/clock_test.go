package campaign

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// still is a machine whose clocks advance only when a test advances them.
type still struct{ real, mono time.Duration }

func (c *still) realtime() (time.Duration, error)  { return c.real, nil }
func (c *still) monotonic() (time.Duration, error) { return c.mono, nil }
func (c *still) set(t time.Duration) error         { c.real = t; return nil }

// When its input is closed, the guard restores the time of day, and does not change it if it was not stepped.
func TestGuard(t *testing.T) {
	for _, step := range []time.Duration{0, time.Millisecond, time.Hour, -time.Minute} {
		c := &still{real: 1000 * time.Hour, mono: time.Hour}
		in, ends := io.Pipe()
		said, out := io.Pipe()
		done := make(chan error)
		go func() { done <- guard(c, in, out) }()
		if line, err := bufio.NewReader(said).ReadString('\n'); line != "ready\n" {
			t.Fatal(line, err)
		}
		c.mono += 7 * time.Second
		c.real += 7*time.Second + step
		ends.Close()
		check.OK(t, <-done)
		want := 1000*time.Hour + 7*time.Second
		if step.Abs() <= unstepped {
			want += step
		}
		if c.real != want {
			t.Errorf("a step of %v: the time of day is %v, want %v", step, c.real, want)
		}
	}
}

// A campaign that is killed while the time of day is wrong leaves it restored. The test steps this machine's clock by
// three seconds.
func TestGuardAfterSIGKILL(t *testing.T) {
	if os.Getenv("REBOUND_CLOCK") == "" {
		t.Skip("steps this machine's clock: only with REBOUND_CLOCK=1")
	}
	if os.Getenv("REBOUND_CLOCK") == "2" {
		_ = guarded(func() error {
			now, err := machine{}.realtime()
			if err == nil {
				err = machine{}.set(now + 3*time.Second)
			}
			if err != nil {
				t.Fatal(err)
			}
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		})
	}
	needRoot(t)
	own := must.Get(offset(machine{}))(t)
	c := exec.Command("/proc/self/exe", "-test.run", "^TestGuardAfterSIGKILL$")
	c.Env = append(os.Environ(), "REBOUND_CLOCK=2")
	if err := c.Run(); err == nil || err.Error() != "signal: killed" {
		t.Fatalf("it was to be killed: %v", err)
	}
	var now time.Duration
	var err error
	await.Holds(func() bool {
		now, err = offset(machine{})
		return err != nil || (now-own).Abs() <= unstepped
	})
	if err != nil || (now-own).Abs() > unstepped {
		_ = putBack(machine{}, own)
		t.Errorf("the time of day is %v off, %v", now-own, err)
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(inGuard) != "" { // guarded starts the test program again
		if err := guard(machine{}, os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
