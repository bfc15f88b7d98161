package confine

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const growEnv = "REBOUND_CONFINE_GROW"

// The runtime grows while the process changes its user. With all memory locked and a small limit, the process must
// survive this.
func TestBecomeWithLockedMemory(t *testing.T) {
	needs.Root(t, "changing the user")
	if os.Getenv(growEnv) == "" {
		for range 20 { // a change takes a moment; each must survive
			c := exec.Command("/proc/self/exe", "-test.run=^TestBecomeWithLockedMemory$")
			c.Env = append(os.Environ(), growEnv+"=1")
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%.2000s", err, out)
			}
		}
		return
	}
	small := unix.Rlimit{Cur: 64 << 10, Max: 64 << 10}
	must.OK(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &small))
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
		t.Skipf("mlockall: %v", err)
	}
	var keep [][]byte
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if keep = append(keep, make([]byte, 1<<20)); len(keep) > 256 {
					keep = nil
				}
			}
		}
	}()
	for range 10 {
		runtime.Gosched()
	}
	must.OK(t, Become(nobody))
	close(stop)
	<-done
}

const limitedEnv = "REBOUND_CONFINE_LIMITED"

// With a limit on locked memory, changing the user needs CAP_SETPCAP: Cannot returns in advance the error of Become.
func TestCannotWithLimitedMemory(t *testing.T) {
	needs.Root(t, "changing the user")
	switch os.Getenv(limitedEnv) {
	case "":
		for _, kept := range []string{"kept", "given up"} {
			c := exec.Command("/proc/self/exe", "-test.run=^TestCannotWithLimitedMemory$")
			c.Env = append(os.Environ(), limitedEnv+"="+kept)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("CAP_SETPCAP %s: %v\n%.2000s", kept, err, out)
			}
		}
		return
	case "given up":
		giveUp(unix.CAP_SETPCAP)
	}
	small := unix.Rlimit{Cur: 8 << 20, Max: 8 << 20}
	must.OK(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &small))
	giveUp(unix.CAP_SYS_RESOURCE)
	before := nobody.Cannot()
	err := Become(nobody)
	if (before == nil) != (err == nil) || (err == nil) != (os.Getenv(limitedEnv) == "kept") || err != nil && !strings.Contains(before.Error(), "CAP_SETPCAP") {
		t.Errorf("Cannot says %v, Become %v", before, err)
	}
}
